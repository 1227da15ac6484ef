"""The kernels compiled for 64-bit ARM and run under emulation: NEON computes what SSE2 does.

Both are the baseline copy, vectors of 16 bytes, so they add in the same order; only tiles of
products are larger where there are 32 registers.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import sheafdeq.ops

NATIVE = Path(sheafdeq.ops.__file__).parent / "native"
DRIVER = Path(__file__).with_name("sanitizer_driver.cpp")
HERE = shutil.which("g++")
CROSS = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (HERE and CROSS and EMULATOR),
        reason="needs g++, aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, "
        "qemu-user-static)",
    ),
]


def total(compiler: str, before: list[str], program: Path, scalar: str) -> float:
    """Build the driver, run it, and return the sum over all its results."""
    subprocess.run(
        [
            compiler,
            *("-std=c++17", "-O1", "-w", "-static", "-ffp-contract=off", "-fno-math-errno"),
            *("-DSHEAFDEQ_VECTOR_BYTES=16", f"-DSHEAFDEQ_DRIVER_SCALAR={scalar}"),
            *(f"-I{NATIVE}", str(DRIVER), "-o", str(program)),
        ],
        check=True,
        timeout=900,
    )
    done = subprocess.run(
        [*before, str(program)], capture_output=True, text=True, check=True, timeout=600
    )
    number, word = done.stdout.split()
    assert word == "clean"
    return float(number)


@pytest.mark.parametrize(("scalar", "precision"), [("double", 1e-10), ("float", 1e-3)])
def test_neon_computes_what_sse2_does(scalar: str, precision: float, tmp_path: Path) -> None:
    assert HERE is not None
    assert CROSS is not None
    assert EMULATOR is not None
    here = total(HERE, [], tmp_path / "here", scalar)
    there = total(CROSS, [EMULATOR], tmp_path / "there", scalar)
    assert there == pytest.approx(here, rel=precision)
