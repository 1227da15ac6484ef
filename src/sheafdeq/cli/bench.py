"""``sheafdeq bench``: how fast and how small the fused step is, beside its peers, on this machine,
now."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = [
    "configure",
    "run",
]


def configure(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time and memory of the fused step against its peers",
        description=(
            "Forward and backward of 20 SheafDEQ steps on the six community graphs: the fused "
            "kernel, its pure PyTorch twin, "
            "straightforward PyG message passing (also compiled), and the other models at equal "
            "sizes. One process, alternating, "
            "minimum of several runs; memory in processes of their own. Wants an otherwise idle "
            "machine."
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repetitions, no compilation, small graphs only (about a minute)",
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="also 10^7 edges: a training step on 10^6 nodes (minutes, about 12 GiB)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write bench.json and the figures there"
    )
    # the child process that measures memory, or one scale
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write."""
    from sheafdeq.speed.bench_figure import draw_bench
    from sheafdeq.speed.memory import memory_of
    from sheafdeq.speed.timings import measure, scale_row

    if options.measure:
        kind, _, size = options.measure.partition(":")
        print(
            json.dumps(scale_row(int(size)) if kind == "scale" else memory_of(kind, options.quick))
        )
        return 0
    result = measure(quick=options.quick, scale=options.scale)
    if options.out:
        from sheafdeq.records import write_bytes

        options.out.mkdir(parents=True, exist_ok=True)
        write_bytes(options.out / "bench.json", (json.dumps(result, indent=2) + "\n").encode())
        draw_bench(result, options.out)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0


def _table(result: dict[str, Any]) -> str:
    """The readable form."""
    machine = result["machine"]
    lines = [
        f"{result['steps']} steps forward and backward, {result['nodes']:,} nodes, "
        f"{result['edges']:,} stored edges, float32",
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load_average']:.2f}, "
        f"torch {machine['torch']}, one thread "
        "unless said",
        "",
        f"{'':24}{'seconds':>10}{'over PyG':>10}{'memory':>12}",
    ]
    for row in result["rows"]:
        memory = f"{row['memory_bytes'] / 2**20:.0f} MiB" if row["memory_bytes"] is not None else ""
        lines.append(
            f"{row['name']:24}{row['seconds']:10.3f}{row['speedup_over_pyg']:9.1f}x{memory:>12}"
        )
    lines += ["", "a training pass of each model"]
    lines += [f"{row['name']:24}{row['seconds']:10.3f}" for row in result["models"]]
    if result["scales"]:
        lines += ["", f"{'edges':>12}{'ns per edge and step':>24}{'peak memory':>16}"]
        for row in result["scales"]:
            lines.append(
                f"{row['edges']:12,}{row['nanoseconds_per_edge']:24.0f}"
                f"{row['peak_memory_bytes'] / 2**30:12.2f} GiB"
            )
    lines.append("")
    for key, label, unit in (
        ("speedup_over_pyg", "faster than PyG message passing", "x"),
        ("times_arithmetic_limit", "times the arithmetic limit", ""),
        ("times_arithmetic_limit_without_recomputation", "  not counting recomputed work", ""),
        ("memory_ratio", "less memory than PyG", "x"),
        ("thread_scaling", "two threads against one", "x"),
        ("growth", "slowest over fastest time per edge", ""),
    ):
        if result[key] is not None:
            lines.append(f"{label:40}{result[key]:8.2f}{unit}")
    lines += result["notes"]
    return "\n".join(lines)
