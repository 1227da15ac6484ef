"""Time of the community generator as the number of stored edges grows from 10^4 to 10^7.

    OMP_NUM_THREADS=1 python benchmarks/generator_scaling.py --json results/generator_scaling.json

Prints seconds of the clock and of the processor, seconds for a million edges, peak memory so far,
and the exponent of a straight line through (log edges, log seconds): 1 is linear. Nothing is
asserted; a quiet machine is needed for figures worth keeping.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from sheafdeq.data.community import REWIRINGS, community_graph

EDGES_PER_NODE = 9.25  # stored edges of a union-symmetrised 8-neighbour graph in the plane


def measure(edges: int, rewiring: str, level: int, repeats: int) -> dict[str, float]:
    nodes = max(6, round(edges / EDGES_PER_NODE / 3)) * 3
    seconds, processor_seconds = [], []
    for repeat in range(repeats):
        start, processor_start = time.perf_counter(), time.process_time()
        graph, _ = community_graph(42 + repeat, level=level, nodes=nodes, rewiring=rewiring)
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(time.process_time() - processor_start)
    median = statistics.median(seconds)
    return {
        "nodes": nodes,
        "stored_edges": graph.num_edges,
        "seconds": median,
        "processor_seconds": statistics.median(processor_seconds),
        "repeats": repeats,
        "seconds_per_million_edges": median / graph.num_edges * 1e6,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--edges", type=float, nargs="+", default=[1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7]
    )
    parser.add_argument("--level", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    community_graph(0, level=options.level, nodes=300)  # first use loads code
    result: dict[str, object] = {
        "benchmark": "generator_scaling",
        "level": options.level,
        "machine": platform.processor() or platform.machine(),
        "python": sys.version.split()[0],
        "numpy": np.__version__,
    }
    for rewiring in REWIRINGS:
        rows = []
        print(
            f"\n{rewiring}\n{'nodes':>10} {'edges':>12} {'seconds':>9} {'processor':>9} "
            f"{'s / 1e6 edges':>14} {'peak GB':>8}"
        )
        for edges in options.edges:
            row = measure(int(edges), rewiring, options.level, repeats=5 if edges <= 1e6 else 1)
            rows.append(row)
            print(
                f"{row['nodes']:>10,} {row['stored_edges']:>12,} {row['seconds']:>9.3f} "
                f"{row['processor_seconds']:>9.3f} "
                f"{row['seconds_per_million_edges']:>14.2f} {row['peak_gigabytes']:>8.2f}",
                flush=True,
            )
        logs = np.log([[row["stored_edges"], row["seconds"]] for row in rows])
        exponent = (
            float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(rows) > 1 else float("nan")
        )
        print(f"exponent {exponent:.3f} (1 is linear)")
        result[rewiring] = {"rows": rows, "exponent": exponent}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
