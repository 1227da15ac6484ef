"""Seconds to build the extension for all instruction sets in an empty folder, on two cores.

    python benchmarks/build_time.py --json results/build_time.json

What ``pip install`` does once cmake, ninja and nanobind are there; nanobind is installed into an
environment of its own for the measurement. The target is 30 s; a quiet machine is needed for
figures worth keeping.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from sheafdeq.machine import processor_name

TREE = Path(__file__).resolve().parent.parent


def measure(folder: Path, jobs: int) -> dict[str, float]:
    """Wall and processor seconds of the compiler and linker, after configuring."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "nanobind"], check=True)
    nanobind = subprocess.run(
        [python, "-m", "nanobind", "--cmake_dir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    build = folder / "build"
    configure = ["cmake", "-S", str(TREE), "-B", str(build), "-G", "Ninja"]
    configure += [f"-Dnanobind_DIR={nanobind}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, check=True, capture_output=True)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["cmake", "--build", build, "-j", str(jobs)], check=True, capture_output=True)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if not list(build.glob("_native*")):
        raise SystemExit("nothing was built: a C++ compiler and Python's headers are needed")
    return {"seconds": wall, "processor_seconds": after.ru_utime - before.ru_utime}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.jobs)
    record = {
        "benchmark": "build_time",
        "jobs": options.jobs,
        "target_seconds": 30,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **found,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
