"""Where the time of a training pass goes, function by function of the extension, as a record.

    python benchmarks/profile_step.py --out results/profiles/step.json
    python benchmarks/profile_step.py --task terrain --out results/profiles/terrain.json
    python benchmarks/profile_step.py --task attention --out results/profiles/attending.json

Samples 20 SheafDEQ steps forward and backward on the six community graphs, epochs of a task of
small graphs, or attention as `sheafdeq bench` measures it, with `perf` (the system clock, so it
works on virtual machines, too), one thread. Shares are of the samples inside the extension.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from sheafdeq.machine import processor_name
from sheafdeq.ops.attention import packed_attention
from sheafdeq.ops.native_module import native_description
from sheafdeq.records import write_bytes
from sheafdeq.speed.small_graphs import SMALL_TASKS, SmallWork
from sheafdeq.speed.work import Work, community_batch

PHASES = {
    "node products": ("product", "product_columns", "product_tile"),
    "other work on nodes": ("NodeKernel", "NarrowNodes", "finish", "start", "curve_of"),
    "hidden rows: gather, add, rectify, transpose": ("hidden_of",),
    "second layer": ("second_layer",),
    "gradient of hidden rows, added to source and target rows": ("hidden_gradient",),
    "gradient of the second layer": ("weight_gradient",),
    "maps: norms, products, derivatives": ("products", "map_gradients", "inner_products"),
    "messages, their derivatives, asking for rows": ("EdgeKernel", "NarrowEdges"),
    "attention: products of rows, summed over the lanes": ("products_of", "scores"),
    "attention: softmax, averages, gradients added to rows": ("AttentionKernel",),
}
LINE = re.compile(r"\s*([\d.]+)%\s+\[\.\]\s+(.*)")


def phase(symbol: str) -> str:
    """The phase of a function like ``EdgeKernel<float, 3>::finish``; methods before classes."""
    owner, _, method = symbol.rpartition("::")
    names = (method.split("<")[0], owner.split("<")[0])
    for name in names:
        for title, words in PHASES.items():
            if name in words:
                return title
    return "other"


def attend(times: int) -> None:
    """Attention of three heads of width 16, forward and backward, on the six community graphs."""
    graph = community_batch()
    packed = torch.randn(graph.num_nodes, 144).requires_grad_()
    for _ in range(times):
        packed_attention(packed, graph.edges, 3, own=True).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument(
        "--task", choices=[*sorted(SMALL_TASKS), "attention"], help="epochs of this task instead"
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        torch.set_num_threads(1)
        if options.task == "attention":
            attend(200 * options.passes)
            return
        if options.task:
            small = SmallWork(options.task)
            for _ in range(options.passes):
                small.ours()
            return
        work = Work(community_batch())
        for _ in range(options.passes):
            work.training_pass("native")
        return
    task = ["--task", options.task] if options.task else []
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        command = [sys.executable, __file__, "--out", "-", "--work", f"--passes={options.passes}"]
        command += task
        record = ["perf", "record", "-q", "-F", "2000", "-e", "cpu-clock", "-o", data]
        subprocess.run([*record, *command], check=True, stderr=subprocess.DEVNULL)
        report = ["perf", "report", "-i", data, "--stdio", "--sort", "dso,symbol", "-q"]
        done = subprocess.run(report, check=True, capture_output=True, text=True)
    functions = {}
    for line in done.stdout.splitlines():
        if "_native." not in line:
            continue
        found = LINE.match(re.sub(r"\s_native\S+", "", line))
        if found:
            name = re.sub(r"(\s+-)+\s*$", "", found[2]).strip()
            functions[name.replace("(anonymous namespace)::", "")] = float(found[1])
    total = sum(functions.values())
    if total == 0:
        sys.exit("perf saw no function of the extension: was it built without symbols?")
    phases: dict[str, float] = {}
    for name, share in functions.items():
        phases[phase(name)] = phases.get(phase(name), 0.0) + share / total
    result = {
        "command": " ".join(
            ["python benchmarks/profile_step.py", *task, f"--passes {options.passes}"]
        ),
        "machine": processor_name(),
        "kernel": native_description(),
        "phases": {k: round(v, 3) for k, v in sorted(phases.items(), key=lambda item: -item[1])},
        "functions": {k: round(v / total, 4) for k, v in functions.items() if v / total >= 0.002},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(options.out, (json.dumps(result, indent=2) + "\n").encode())
    print(json.dumps(result["phases"], indent=2))


if __name__ == "__main__":
    main()
