"""The table of targets and figures in docs/kernel.md, from a record of ``sheafdeq bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sheafdeq.errors import InputError
from sheafdeq.records import write_bytes

__all__ = ["TARGETS", "Target", "bench_table", "write_page"]

BEGIN = "<!-- bench: written by `sheafdeq bench --from FILE --page docs/kernel.md` -->"
END = "<!-- bench: end -->"


class Target(NamedTuple):
    """What a ratio is to reach: at least ``bound`` where more is better, else at most."""

    label: str
    bound: float | None
    more_is_better: bool = True

    def met(self, value: float) -> bool | None:
        """Whether ``value`` reaches it; None where nothing was asked."""
        if self.bound is None:
            return None
        return value >= self.bound if self.more_is_better else value <= self.bound


TARGETS: dict[str, Target] = {
    "speedup_over_pyg": Target(
        "faster than PyG message passing, 20 steps forward and backward, one thread", 18.0
    ),
    "times_arithmetic_limit": Target("times the arithmetic limit", 1.6, False),
    "memory_ratio": Target("less memory than PyG", 30.0),
    "thread_scaling": Target("two threads against one", 1.75),
    "edge_time_ratio": Target("time per edge, 10^7 edges over 10^4", 1.25, False),
    "attention_speedup": Target("fused attention against PyTorch", 4.0),
    "sums_speedup": Target("an epoch of Sums against the PyG peer", 10.0),
    "terrain_speedup": Target("an epoch of MNIST Terrain against the PyG peer", 10.0),
    "coordinates_speedup": Target("an epoch of Coordinates against the PyG peer", None),
}
"""The ratios of ``sheafdeq bench``, with what was asked of each."""


def bench_table(result: dict[str, Any]) -> str:
    """The Markdown table of a record: figure, target, and whether it is met."""
    machine, kernel = result["machine"], result["kernel"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {kernel.get('instruction_set')}, load "
        f"{machine['load_average']:.2f} when it ended, torch {machine['torch']}.",
        "",
        "| ratio | measured | target | |",
        "|---|---|---|---|",
    ]
    for name, target in TARGETS.items():
        value = result.get(name)
        bound = ""
        if target.bound is not None:
            bound = f"at {'least' if target.more_is_better else 'most'} {target.bound:g}"
        if value is None:
            figure, verdict = "not measured", ""
        else:
            figure = f"{value:.2f}"
            verdict = {True: "met", False: "missed", None: ""}[target.met(value)]
        lines.append(f"| {target.label} (`{name}`) | {figure} | {bound} | {verdict} |")
    return "\n".join(lines)


def write_page(result: dict[str, Any], page: Path) -> None:
    """Put the table between the two marks of a page."""
    text = page.read_text() if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page} has no place for the table: put {BEGIN} and {END} into it")
    write_bytes(page, f"{before}{BEGIN}\n\n{bench_table(result)}\n\n{END}{after}".encode())
