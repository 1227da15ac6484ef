"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, and a kernel broken on purpose
that they must catch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import sheafdeq.ops

NATIVE = Path(sheafdeq.ops.__file__).parent / "native"
DRIVER = Path(__file__).with_name("sanitizer_driver.cpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")

pytestmark = [
    pytest.mark.slow,
    # about half a minute of processor time each; a busy machine may take much longer
    pytest.mark.timeout(2400),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]


def build_and_run(native: Path, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    program = folder / "driver"
    assert COMPILER is not None
    subprocess.run(
        [
            COMPILER,
            "-std=c++17",
            "-O1",
            "-g1",
            "-w",
            "-Wno-psabi",
            "-ffp-contract=fast",
            "-fno-math-errno",
            # every function once, loops not unrolled: the same reads and writes, compiled in a
            # fraction of the time
            "-DSHEAFDEQ_INLINE=inline",
            "-DSHEAFDEQ_ANY_DIMENSION",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            *flags,
            f"-I{native}",
            str(DRIVER),
            "-o",
            str(program),
        ],
        check=True,
        timeout=1500,
    )
    return subprocess.run([str(program)], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("scalar", "width"), [("double", 16), ("float", 32)])
def test_kernels_are_clean(scalar: str, width: int, tmp_path: Path) -> None:
    # the shortest and the longest vectors; 32 bytes without AVX flags are split by the compiler:
    # the same code on any machine
    done = build_and_run(
        NATIVE, tmp_path, f"-DSHEAFDEQ_VECTOR_BYTES={width}", f"-DSHEAFDEQ_DRIVER_SCALAR={scalar}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("clean")


def test_an_overrun_is_caught(tmp_path: Path) -> None:
    broken = tmp_path / "native"
    shutil.copytree(NATIVE, broken)
    nodes = (broken / "nodes.hpp").read_text()
    right = "const int nodes = last - v < NB ? static_cast<int>(last - v) : NB;"
    assert right in nodes
    # runs past the last node
    (broken / "nodes.hpp").write_text(nodes.replace(right, "const int nodes = NB;"))
    done = build_and_run(
        broken,
        tmp_path,
        "-DSHEAFDEQ_VECTOR_BYTES=16",
        "-DSHEAFDEQ_DRIVER_SCALAR=float",
        "-DSHEAFDEQ_DRIVER_STEP",
    )
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
