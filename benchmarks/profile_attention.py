"""Attention, epochs on small graphs and gradients of equilibria, timed on a busy machine.

    python benchmarks/profile_attention.py --out results/profiles/attention.json

``sheafdeq bench`` measures the same on an idle machine by the clock on the wall. Here processor
time is counted, which other work on the machine stretches (shared caches) but does not multiply.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from sheafdeq.machine import processor_name
from sheafdeq.ops.native_module import native_description
from sheafdeq.speed.attention_times import attention_times
from sheafdeq.speed.gradient_times import gradient_times
from sheafdeq.speed.small_graphs import epoch_times
from sheafdeq.speed.work import community_batch


def main() -> None:
    """Measure and write after every part, so that what was measured is never lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    time.perf_counter = time.process_time
    graph = community_batch()
    record: dict[str, Any] = {
        "command": "python benchmarks/profile_attention.py --out results/profiles/attention.json",
        "clock": "processor time of one process with one thread, beside other work",
        "load_average": os.getloadavg()[0],
        "processor": processor_name(),
        "torch": torch.__version__,
        "kernel": native_description(),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
    }

    def keep(key: str, rows: list[dict[str, Any]]) -> None:
        record[key] = record.get(key, []) + rows
        out.write_text(json.dumps(record, indent=2) + "\n")

    models = ("graph-attn-deq", "loop-transformer", "gat")
    keep("attention", [row.row() for row in attention_times(graph, rounds=3, models=models)])
    small = community_batch(quick=True)
    for name in ("ignn", "strong-sheaf"):
        keep("gradient", [gradient_times(name, small).row()])
    for name in ("counting", "coordinates", "sums"):
        keep("small_graphs", [epoch_times(name, rounds=2, peer_rounds=1).row()])


if __name__ == "__main__":
    main()
