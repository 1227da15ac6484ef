"""Continued iteration: what updates, states, predictions and scores do beyond the trained horizon,
and when nodes settle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from sheafdeq.printable import mathtext
from sheafdeq.report.figures.picture import (
    Drawing,
    file_stem,
    floor_of,
    graphs,
    labelled,
    legend_below,
    letter,
    plottable,
    score_label,
)
from sheafdeq.report.figures.source import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "continued_full",
    "continued_short",
    "settling",
]


def _counted(group: Sequence[Source]) -> str:
    left_out = sum(
        len(source.payload["continued"]["trajectories"]) - source.payload["continued"]["counted"]
        for source in group
    )
    return f" {left_out} non-finite starts are left out of the medians." if left_out else ""


_PANELS = {
    "update": "relative update",
    "state_discrepancy": "state discrepancy",
    "prediction_discrepancy": "prediction discrepancy",
}


def continued_short(group: Sequence[Source], title: str, until: int | None = None) -> Drawing:
    """Two panels: relative update, and score under continued recurrence."""
    return _continued(group, title, ("update", "score"), "continued", until)


def continued_full(group: Sequence[Source], title: str, until: int | None = None) -> Drawing:
    """Four panels: update, state and prediction discrepancy, score."""
    return _continued(
        group,
        title,
        ("update", "state_discrepancy", "prediction_discrepancy", "score"),
        "continued-full",
        until,
    )


def _continued(
    group: Sequence[Source], title: str, panels: Sequence[str], kind: str, until: int | None
) -> Drawing:
    import matplotlib.pyplot as plt

    rows = 1 if len(panels) == 2 else 2
    figure, grid = plt.subplots(rows, 2, figsize=(7.2, 3.1 * rows), squeeze=False)
    axes = list(grid.flat)
    for axis, panel in zip(axes, panels, strict=True):
        _continued_panel(axis, group, panel, until)
    letter(axes)
    legend_below(figure, axes[0])
    last = max(source.payload["continued"]["iterations"] for source in group)
    graph = graphs(group)
    caption = (
        f"Continued iteration, {title} ({graph}): medians over the starts with interquartile "
        "bands, reference: the "
        "default start "
        f"after {last} iterations (not assumed to be an equilibrium). Models whose state is not "
        "exposed are judged by the "
        "updates of "
        "their outputs from their own start, without band. Dashed lines mark trained horizons. "
        "Zeros are drawn at the smallest "
        f"positive value.{_long_text(group, until)}{_counted(group)}"
    )
    return Drawing(file_stem(kind, title), figure, caption, tuple(group))


def _long_text(group: Sequence[Source], until: int | None) -> str:
    if until is not None:
        return f" Drawn up to iteration {until}."
    common = _common_length(group)
    return (
        "" if common is None else (f" Beyond {common} iterations (shaded) the axis is logarithmic.")
    )


def _continued_panel(axis: Axes, group: Sequence[Source], panel: str, until: int | None) -> None:
    logarithmic = panel != "score"
    curves = [source.payload["continued"]["bands"][panel] for source in group]
    floor = floor_of(curve["median"] for curve in curves) if logarithmic else None
    first = 1 if panel == "update" else 0  # the update from k to k + 1 is drawn at k + 1
    end = None if until is None else until + 1 - first
    for (source, label, look), curve in zip(labelled(group), curves, strict=True):
        middle = plottable(curve["median"][:end], floor=floor)
        if not middle:
            axis.plot([], [], label=mathtext(label), **look.options())
            continue
        k = range(first, first + len(middle))
        axis.plot(k, middle, label=mathtext(label), **look.options(points=len(middle)))
        if source.payload["continued"]["counted"] > 1:
            lower, upper = (
                plottable(curve[name][:end], floor=floor) for name in ("lower", "upper")
            )
            axis.fill_between(k, lower, upper, color=look.colour, alpha=0.18, linewidth=0)
    if until is None:
        _shorten_long_runs(axis, group)
    horizons = {source.payload["continued"]["horizon"] for source in group}
    _mark_horizons(axis, sorted(h for h in horizons if until is None or h <= until))
    axis.set_xlabel("iteration")
    if logarithmic:
        axis.set_yscale("log")
        axis.set_ylabel(f"{_PANELS[panel]} (median)")
    else:
        axis.set_ylabel(mathtext(score_label(group)))


def _common_length(group: Sequence[Source]) -> int | None:
    """The length most runs have, where one is so much longer that it would squeeze the others; else
    None."""
    lengths = sorted(source.payload["continued"]["iterations"] for source in group)
    common = int(median(lengths))
    return common if lengths[-1] > 1.5 * common else None


def _shorten_long_runs(axis: Axes, group: Sequence[Source]) -> None:
    """Linear up to the common length, logarithmic beyond it, so that one long run takes a quarter
    of the axis at most."""
    common = _common_length(group)
    if common is None:
        return
    longest = max(source.payload["continued"]["iterations"] for source in group)
    decades = math.log10(longest / common)
    axis.set_xscale("symlog", linthresh=common, linscale=3 * decades)
    axis.set_xlim(-0.02 * common, longest * 1.03)
    ticks = [round(common * part / 4) for part in range(5)]
    doubled = common * 2
    while doubled < longest * 0.75:
        ticks.append(doubled)
        doubled *= 2
    axis.set_xticks([*ticks, longest], [str(tick) for tick in [*ticks, longest]])
    axis.minorticks_off()
    axis.axvspan(common, longest * 1.03, color="0.5", alpha=0.06, linewidth=0)


def _mark_horizons(axis: Axes, horizons: Sequence[int]) -> None:
    """Dashed lines; numbers above them, those that would overprint one another in one text."""
    to_axes = axis.transData + axis.transAxes.inverted()
    groups: list[list[tuple[float, int]]] = []
    for horizon in horizons:
        axis.axvline(horizon, color="0.4", linestyle="--", linewidth=0.8)
        place = float(to_axes.transform((horizon, axis.get_ylim()[1]))[0])
        if groups and place - groups[-1][-1][0] < 0.09:
            groups[-1].append((place, horizon))
        else:
            groups.append([(place, horizon)])
    for members in groups:
        middle = sum(place for place, _ in members) / len(members)
        text = ", ".join(str(horizon) for _, horizon in members)
        axis.text(
            middle,
            1.0,
            text,
            transform=axis.transAxes,
            ha="center",
            va="bottom",
            fontsize=7,
            color="0.3",
        )


def settling(group: Sequence[Source], title: str) -> Drawing:
    """How many nodes came to rest when, from the default start."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    longest = max(source.payload["continued"]["iterations"] for source in group)
    for source, label, look in labelled(group):
        result = source.payload["continued"]["trajectories"][0]["settling"]
        nodes = sum(result["counts"]) + result["unsettled"]
        share = [100 * count / max(nodes, 1) for count in accumulate(result["counts"])]
        # a node at rest from the start counts as settled at 1: the axis is logarithmic
        rest, end = share[1:] or share, len(share)
        middle = (
            "more than half never" if result["median"] is None else (f"median {result['median']}")
        )
        axis.step(
            range(1, len(rest) + 1),
            rest,
            where="post",
            label=mathtext(f"{label}: {middle}"),
            color=look.colour,
            linestyle=look.line,
        )
        axis.plot([end], rest[-1:], look.marker, color=look.colour, markersize=6, clip_on=False)
    axis.set_xscale("log")
    axis.set_xlim(1, longest * 1.15)
    axis.set_ylim(-2, 102)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if tick <= longest]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("iteration; the marker stands where the run ends")
    axis.set_ylabel("nodes at rest for good (%)")
    legend_below(figure, axis, columns=2)
    tolerance = group[0].payload["continued"]["trajectories"][0]["settling"]["tolerance"]
    caption = (
        f"Settling times, {title}: the share of nodes whose row changes by at most {tolerance:g} "
        "(relative) from this iteration to the "
        "end, from the default start. What is missing to 100 % at the marker was still moving in "
        "the last iteration; the rise "
        "in a run's very last iterations counts nodes that had no time left to move again."
    )
    return Drawing(file_stem("settling", title), figure, caption, tuple(group))
