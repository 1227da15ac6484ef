"""``sheafdeq bench``: how fast and how small the fused step is, beside its peers, on this machine,
now."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sheafdeq.cli.arguments import Parser, output_file, output_folder, present_file
from sheafdeq.errors import InputError

__all__ = [
    "configure",
    "run",
]

HISTORY = Path("benchmarks/history.jsonl")


HELP = "time and memory of the fused step against its peers"


def configure(parser: Parser) -> None:
    """Forward and backward of 20 SheafDEQ steps on the six community graphs: the fused kernel, its
    pure PyTorch twin, straightforward PyG message passing (also compiled), and the other models at
    equal sizes. One process, alternating, minimum of several runs; memory in processes of their
    own. Wants an otherwise idle machine."""
    parser.flag("--json", "print one JSON object instead of the table")
    parser.flag("--quick", "fewer repetitions, no compilation, small graphs only (about a minute)")
    parser.flag(
        "--scale", "a whole training pass of 20 steps at 10^6 nodes and 10^7 edges (about 12 GiB)"
    )
    parser.value("--out", _folder, "write bench.json and the figures there", metavar="DIR")
    parser.add_argument(
        "--history",
        nargs="?",
        type=_file,
        const=HISTORY,
        metavar="FILE",
        help=f"append commit, machine and ratios to FILE ({HISTORY}) and say what became slower",
    )
    parser.add_argument(
        "--from",
        dest="record",
        type=lambda text: Path(present_file(text)),
        metavar="FILE",
        help="do not measure: take what an earlier run wrote with --out or --json",
    )
    parser.value("--page", _file, "write the table of targets into a page", metavar="FILE")
    # the child process that measures memory, or one scale
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def _folder(text: str) -> Path:
    return Path(output_folder(text))


def _file(text: str) -> Path:
    return Path(output_file()(text))


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write."""
    from sheafdeq.speed.bench_figure import draw_bench
    from sheafdeq.speed.memory import memory_of
    from sheafdeq.speed.scales import order_row, scale_row
    from sheafdeq.speed.timings import measure
    from sheafdeq.speed.work import STEPS

    if options.measure:
        kind, _, what = options.measure.partition(":")
        if kind == "order":
            row = order_row(what)
        elif kind.startswith("scale"):
            row = scale_row(int(what), STEPS if kind == "scale-whole" else 2)
        else:
            row = memory_of(kind, options.quick)
        print(json.dumps(row))
        return 0
    if options.history and not options.history.parent.is_dir():
        raise InputError(f"{options.history.parent} is no folder: name a file with --history FILE")
    if options.record:
        result = _read(options.record)
    else:
        result = measure(quick=options.quick, scale=options.scale)
    if options.out:
        from sheafdeq.records import write_bytes

        options.out.mkdir(parents=True, exist_ok=True)
        write_bytes(options.out / "bench.json", (json.dumps(result, indent=2) + "\n").encode())
        draw_bench(result, options.out)
    if options.page:
        from sheafdeq.speed.bench_page import write_page

        write_page(result, options.page)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    if options.history:
        from sheafdeq.speed.history import append, fallen, read_history

        earlier = read_history(options.history)
        for sentence in fallen(append(result, options.history), earlier):
            print(sentence, file=sys.stderr)
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        _table(result)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no record of sheafdeq bench: {error}") from None
    return result


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
    attention = f"{'forward and backward':24}{'seconds':>10}{'peer':>18}{'seconds':>10}{'':>8}"
    epoch = f"{'an epoch of':24}{'seconds':>10}{'in the kernel':>16}{'PyG':>10}{'':>8}"
    for part, head, line in (
        ("attention", attention, "{name:24}{seconds:10.4f}{peer:>18}{peer_seconds:10.4f}"),
        (
            "small_graphs",
            epoch,
            "{task:24}{seconds:10.3f}{kernel_seconds:16.3f}{peer_seconds:10.3f}",
        ),
    ):
        if result[part]:
            lines += ["", head, *((line + "{speedup:7.1f}x").format(**row) for row in result[part])]
    if result["scales"]:
        lines += ["", f"{'edges':>12}{'ns per edge and step':>24}{'peak memory':>16}"]
        for row in result["scales"]:
            lines.append(
                f"{row['edges']:12,}{row['nanoseconds_per_edge']:24.0f}"
                f"{row['peak_memory_bytes'] / 2**30:12.2f} GiB"
            )
    for row in result["orders"]:
        lines.append(
            f"{row['edges']:12,}{row['nanoseconds_per_edge']:24.0f}"
            f"{row['peak_memory_bytes'] / 2**30:12.2f} GiB  {row['graph']}, numbered at random "
            f"({row['order']})"
        )
    lines.append("")
    from sheafdeq.speed.bench_page import TARGETS

    for name, target in TARGETS.items():
        if result.get(name) is not None:
            lines.append(f"{target.label:76}{result[name]:8.2f}")
    without = result["times_arithmetic_limit_without_recomputation"]
    if without is not None:
        lines.append(f"{'times the limit, not counting what is computed again':76}{without:8.2f}")
    lines += result["notes"]
    return "\n".join(lines)
