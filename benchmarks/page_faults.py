"""Seconds and page faults of a training pass on MNIST Terrain, with freed memory kept and without.

    python benchmarks/page_faults.py --root DATA --json results/page_faults.json

Each number is the least of ``--passes`` passes of a process of its own, one thread, the processes
taking turns; a quiet machine is needed for figures worth keeping.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from sheafdeq.machine import processor_name

MODELS = ("graph-attn-deq", "loop-transformer")


def measure(name: str, keep: bool, root: str, passes: int) -> dict[str, float]:
    """One model, here: forward and backward over the whole training graph."""
    import torch

    from sheafdeq import load_task
    from sheafdeq.registry import build_model
    from sheafdeq.training.kept_memory import keep_freed_memory
    from sheafdeq.training.loop import shape_of

    torch.set_num_threads(1)
    if keep and not keep_freed_memory():
        raise SystemExit("this C library cannot be asked to keep freed memory")
    task = load_task("mnist-terrain", root=root, margin=4)
    torch.manual_seed(0)
    model = build_model(name, shape_of(task))
    model.train()
    least = {"seconds": float("inf"), "page_faults": float("inf")}
    for _ in range(passes + 1):  # the first asks for everything
        faults, begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        model.zero_grad()
        task.loss(model.run(task.train.graph).logits, task.train).backward()
        seconds = time.perf_counter() - begun
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        least = {
            "seconds": min(least["seconds"], seconds),
            "page_faults": min(least["page_faults"], faults),
        }
    return least


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True, help="data folder with mnist/raw")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "KEEP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, keep = options.one
        print(json.dumps(measure(name, keep == "True", options.root, options.passes)))
        return 0
    rows = []
    for name in MODELS:
        found = {}
        for keep in (False, True, False, True):
            command = [sys.executable, __file__, "--root", options.root, "--one", name, str(keep)]
            command += ["--passes", str(options.passes)]
            answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            before = found.get(keep, answer)
            found[keep] = {key: min(before[key], answer[key]) for key in answer}
        ratio = found[False]["seconds"] / found[True]["seconds"]
        rows.append({"model": name, "returned": found[False], "kept": found[True], "ratio": ratio})
        print(
            f"{name:18} {found[False]['seconds']:.3f} s, kept {found[True]['seconds']:.3f} s, "
            f"{ratio:.2f} times"
        )
    record = {
        "benchmark": "page_faults",
        "task": "mnist-terrain, margin 4",
        "threads": 1,
        "passes": options.passes,
        "processor": processor_name(),
        "rows": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
