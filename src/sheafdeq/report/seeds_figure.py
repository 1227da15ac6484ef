"""Every seed as a point: how much of a result is luck."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.report.evidence import Evidence
from sheafdeq.report.figures import Drawing, Source
from sheafdeq.report.figures.picture import accuracy_by_level
from sheafdeq.report.style import look_of, style
from sheafdeq.report.summary import Summary

__all__ = ["seeds_figure"]

ROWS = (
    ("sheafdeq", "paper", "SheafDEQ, the paper's protocol", 0),
    ("sheafdeq", "mixers=channels", "the same with W_1 on channels", 3),
    ("sheafdeq", "recipe reliable", "SheafDEQ, recipe reliable Δ", 1),
    ("sheafdeq", "recipe reliable-long", "SheafDEQ, recipe reliable-long Δ", 2),
    ("sheaf-cascade", "recipe cascade-wide", "Sheaf Cascade, recipe cascade-wide Δ", 0),
)
"""Model, how it was trained, legend text, which of the model's looks."""


def seeds_figure(evidence: Evidence, runs: Sequence[Source]) -> Drawing:
    """Test accuracy of every finished seed at each community level, the rows side by side."""
    import matplotlib.pyplot as plt

    chosen = [_rows_of(evidence, model, how) for model, how, _, _ in ROWS]
    levels = sorted({level for row in chosen for level in row})
    used: dict[str, None] = {}
    with style():
        figure, axis = plt.subplots(figsize=(7.2, 3.4))
        for number, ((model, _, text, variant), row) in enumerate(zip(ROWS, chosen, strict=True)):
            look = look_of(model, variant)
            middle = 0.18 * (number - (len(ROWS) - 1) / 2)
            for level, summary in row.items():
                place = levels.index(level) + middle
                for offset, record in enumerate(summary.records):
                    used[record.id] = None
                    axis.plot(
                        [place + 0.032 * (offset - (len(summary.records) - 1) / 2)],
                        [record.scores["test"]],
                        marker=look.marker,
                        color=look.colour,
                        markerfacecolor=look.colour if variant == 0 else "white",
                        markersize=4.5,
                        linestyle="none",
                        clip_on=False,
                    )
            counts = sorted({len(summary.records) for summary in row.values()})
            seeds = "not run yet" if not counts else _counts(counts)
            axis.plot(
                [], [], marker=look.marker, color=look.colour, linestyle="none",
                markerfacecolor=look.colour if variant == 0 else "white",
                label=f"{text} ({seeds})",
            )  # fmt: skip
        accuracy_by_level(axis, levels, below=0.1, columns=2)
    caption = (
        "Every seed that has finished, on the paper's three test graphs. Δ: sees differences of "
        "raw node features on its edges; the paper's protocol does not."
    )
    sources = tuple(source for source in runs if source.run is not None and source.run.id in used)
    return Drawing("seeds-community", figure, caption, sources)


def _counts(counts: Sequence[int]) -> str:
    low, high = counts[0], counts[-1]
    return f"{low} seed{'s' if low > 1 else ''}" if low == high else f"{low} to {high} seeds"


def _rows_of(evidence: Evidence, model: str, how: str) -> dict[int, Summary]:
    """Level -> the configuration of one row; of several, the one chosen by validation."""
    found: dict[int, list[Summary]] = {}
    for summary in evidence.summaries:
        name, level, rest = summary.column
        plain = name == "community" and not rest and level is not None
        if plain and summary.model == model and summary.protocol == how:
            if how == "paper" and summary.differences:
                continue
            found.setdefault(level or 0, []).append(summary)
    chosen = {level: evidence.select(options) for level, options in sorted(found.items())}
    return {level: summary for level, summary in chosen.items() if summary is not None}
