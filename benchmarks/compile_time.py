"""Seconds until five compiled steps and their gradient are there, with nothing cached.

    python benchmarks/compile_time.py --json results/compile_time.json

``torch.compile(model)`` compiles one step as the cell of its loop; the time is that of the first
pass and its backward pass: tracing, and the C++ compiler on as many processes as PyTorch starts.
The second pass compiles nothing. The target is 20 s; a quiet machine is needed for figures worth
keeping.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import torch

from sheafdeq import SheafCascade, SheafDEQ
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.machine import processor_name

MODELS = {
    "sheafdeq": lambda: SheafDEQ(2, 3, steps=5),
    "sheaf-cascade": lambda: SheafCascade(2, 3, levels=1, level_steps=5),
}


def measure(model: EquilibriumModel) -> dict[str, float]:
    """Of a pass with its gradient on a graph of 30 nodes, the first time and again."""
    torch.manual_seed(0)
    x, edges = torch.randn(30, 2), torch.randint(0, 30, (2, 90))
    compiled = torch.compile(model)
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        compiled(x, edges).sum().backward()
        seconds.append(time.perf_counter() - begun)
    return {"first_seconds": seconds[0], "again_seconds": seconds[1]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), default="sheafdeq")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:  # nothing compiled earlier is found again
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        found = measure(MODELS[options.model]())
    record = {
        "benchmark": "compile_time",
        "model": options.model,
        "steps": 5,
        "target_seconds": 20,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **found,
    }
    print(json.dumps(record, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
