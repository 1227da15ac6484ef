"""Bounded staleness: trajectories, the sweep over the largest delay, and faults."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import median
from typing import Any

from sheafdeq.printable import mathtext
from sheafdeq.report.figures.picture import (
    Drawing,
    file_stem,
    floor_of,
    labelled,
    legend_below,
    letter,
    plottable,
    score_label,
)
from sheafdeq.report.figures.source import Source

__all__ = [
    "faults",
    "median_curve",
    "tau_sweep",
    "trajectories",
]


def _conditions(group: Sequence[Source]) -> list[str]:
    labels: list[str] = []
    for source in group:
        labels += [c["label"] for c in source.payload["conditions"] if c["label"] not in labels]
    return labels


def _condition(source: Source, label: str) -> dict[str, Any] | None:
    return next((c for c in source.payload["conditions"] if c["label"] == label), None)


def median_curve(samples: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Median over samples of their i-th recorded point; a run that became stationary keeps its last
    value."""
    length = max(len(sample["work"]) for sample in samples)
    work, value = [], []
    for i in range(length):
        reached = [sample for sample in samples if len(sample["work"]) > i]
        work.append(median(sample["work"][i] for sample in reached))
        value.append(
            median(sample["d_out"][min(i, len(sample["d_out"]) - 1)] for sample in samples)
        )
    return work, value


def trajectories(group: Sequence[Source], title: str) -> Drawing:
    """d_out against work: one panel for each condition, thin curves for schedules, thick for their
    median."""
    import matplotlib.pyplot as plt

    labels = _conditions(group)
    columns = min(len(labels), 4)
    rows = -(-len(labels) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(2.3 * columns, 4.0) + 0.6, 2.9 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    floor = floor_of(
        sample["d_out"]
        for source in group
        for condition in source.payload["conditions"]
        for sample in condition["trajectories"]
    )
    for axis, label in zip(grid.flat, labels, strict=False):
        for source, text, look in labelled(group):
            condition = _condition(source, label)
            samples = (
                [] if condition is None else [s for s in condition["trajectories"] if _counts(s)]
            )
            if not samples:
                axis.plot([], [], label=mathtext(text), **look.options())
                continue
            for sample in samples:
                axis.plot(
                    sample["work"],
                    plottable(sample["d_out"], floor=floor),
                    color=look.colour,
                    linewidth=0.5,
                    alpha=0.35,
                )
            work, value = median_curve(samples)
            axis.plot(
                work,
                plottable(value, floor=floor),
                label=mathtext(text),
                **{**look.options(points=len(work)), "linewidth": 2.0},
            )
        axis.set_title(rf"$(s_\mathrm{{upd}}, \tau_\max)$ = {mathtext(label)}", fontsize=8)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_yscale("log")
        axis.set_xlabel("work (updates per node)")
    for axis in list(grid.flat)[len(labels) :]:
        axis.set_visible(False)
    for axis in grid[:, 0]:
        axis.set_ylabel(r"$d_\mathrm{out}$ from the reference")
    legend_below(figure, grid.flat[0])
    caption = (
        f"Asynchronous inference, {title} ({group[0].payload['graph']}): relative Frobenius "
        "discrepancy of the outputs from the "
        "synchronous "
        "reference against mean updates per node. Thin: sampled schedules; thick: their median; "
        "points at observed work, "
        "not interpolated; a curve ends where its run no longer changes. "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(file_stem("async", title), figure, caption, tuple(group))


def _counts(sample: dict[str, Any]) -> bool:
    return sample["status"] not in ("non-finite", "diverged") and all(
        value is not None for value in sample["d_out"]
    )


def _reference_text(group: Sequence[Source]) -> str:
    parts = []
    for source, text, _ in labelled(group):
        reference = source.payload["reference"]
        residual = "-" if reference["residual"] is None else f"{reference['residual']:.1e}"
        parts.append(
            f"{text}: {reference['steps']} iterations, {reference['status']}, residual {residual}"
        )
    return "References: " + "; ".join(parts) + "."


def _work_text(group: Sequence[Source]) -> str:
    """One number of updates for all, or each model's own."""
    works = {text: source.payload["work"] for source, text, _ in labelled(group)}
    if len(set(works.values())) == 1:
        return f"{next(iter(works.values())):g} mean updates per node"
    return "mean updates per node of " + ", ".join(
        f"{work:g} ({text})" for text, work in works.items()
    )


def _zeros_text(group: Sequence[Source]) -> str:
    """A logarithmic axis has no zero, and the synchronous control of a finite-horizon model is
    exactly there."""
    medians = (
        c["d_out"]["median"]
        for source in group
        for c in source.payload["conditions"]
        if c["d_out"] is not None
    )
    return (
        " Exact zeros are drawn at the smallest positive value."
        if any(median == 0 for median in medians)
        else ""
    )


def _left_out(group: Sequence[Source]) -> str:
    count = sum(
        c["samples"] - c["counted"] for source in group for c in source.payload["conditions"]
    )
    return f" {count} runs that diverged or became non-finite are left out." if count else ""


def tau_sweep(group: Sequence[Source], title: str) -> Drawing:
    """d_out and score against the largest delay."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
    delays = sorted({c["max_delay"] for source in group for c in source.payload["conditions"]})
    ticks = [math.log2(1 + delay) for delay in delays]
    floor = floor_of(
        [c["d_out"][key] for key in ("min", "median")]
        for s in group
        for c in s.payload["conditions"]
        if c["d_out"]
    )
    for source, text, look in labelled(group):
        for axis, key in ((left, "d_out"), (right, "score")):
            conditions = [c for c in source.payload["conditions"] if c[key] is not None]
            x = [math.log2(1 + c["max_delay"]) for c in conditions]
            low, middle, high = (
                plottable(
                    [c[key][name] for c in conditions], floor=floor if key == "d_out" else None
                )
                for name in ("min", "median", "max")
            )
            axis.plot(x, middle, label=mathtext(text), **look.options(every=1))
            axis.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    for axis in (left, right):
        axis.set_xticks(ticks, [str(delay) for delay in delays])
        axis.set_xlabel(r"largest delay $\tau_\max$ (slots)")
    left.set_yscale("log")
    left.set_ylabel(r"$d_\mathrm{out}$ from the reference")
    right.set_ylabel(mathtext(score_label(group)))
    letter([left, right])
    legend_below(figure, left)
    caption = (
        f"Sweep over the largest delay, {title} ({group[0].payload['graph']}), every node "
        "updating in every slot: median and "
        "range over "
        f"sampled schedules after {_work_text(group)} (finite-horizon models: their own number of "
        "loops). "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(file_stem("tau-sweep", title), figure, caption, tuple(group))


def faults(group: Sequence[Source], title: str) -> Drawing:
    """d_out under loss, duplication, reordering and sleep."""
    import matplotlib.pyplot as plt

    labels = _conditions(group)
    shown = labelled(group)
    figure, axis = plt.subplots(figsize=(7.2, 1.2 + 0.38 * len(labels)))
    floor = floor_of(
        [c["d_out"]["min"]] for s in group for c in s.payload["conditions"] if c["d_out"]
    )
    for position, (source, text, look) in enumerate(shown):
        offset = 0.7 * ((position + 0.5) / len(shown) - 0.5)
        for row, label in enumerate(labels):
            condition = _condition(source, label)
            if condition is None or condition["d_out"] is None:
                continue
            low, middle, high = (
                max(condition["d_out"][name], floor) for name in ("min", "median", "max")
            )
            y = row + offset
            axis.plot([low, high], [y, y], color=look.colour, linewidth=1.2)
            axis.plot(
                [middle],
                [y],
                look.marker,
                color=look.colour,
                markersize=5,
                label=mathtext(text) if row == 0 else None,
            )
    axis.set_yticks(range(len(labels)), [_fault_text(group, label) for label in labels])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel(r"$d_\mathrm{out}$ from the reference (median and range)")
    legend_below(figure, axis)
    caption = (
        f"Unreliable communication, {title} ({group[0].payload['graph']}), update window and "
        "delay (5, 2): median and range of "
        "d_out over "
        "sampled schedules; in brackets the largest staleness that was observed, in slots. "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(file_stem("faults", title), figure, caption, tuple(group))


def _fault_text(group: Sequence[Source], label: str) -> str:
    found = [c for source in group if (c := _condition(source, label)) is not None]
    worst = max(c["staleness"]["max"] for c in found)
    text = mathtext(label).removeprefix("(5, 2)").removeprefix(", ")
    return "\n".join(textwrap.wrap(f"{text or 'independent delays'} [{worst}]", width=34))
