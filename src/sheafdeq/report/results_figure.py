"""The community table as a picture: the paper's ranges, and ours beside them."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.report.figures import Drawing, Source
from sheafdeq.report.figures.picture import accuracy_by_level
from sheafdeq.report.style import look_of, style
from sheafdeq.report.tables import Cell, Table

__all__ = ["community_figure"]

ROWS = (
    ("SheafDEQ", "SheafDEQ, the paper's protocol", "sheafdeq", 0),
    ("SheafDEQ [mixers=channels]", "the same with W_1 on channels", "sheafdeq", 3),
    ("SheafDEQ Δ [recipe reliable]", "SheafDEQ, recipe reliable Δ", "sheafdeq", 1),
    ("SheafDEQ Δ [recipe reliable-long]", "SheafDEQ, recipe reliable-long Δ", "sheafdeq", 2),
    (
        "Sheaf Cascade Δ [recipe cascade-wide]",
        "Sheaf Cascade (settles for every weight) Δ",
        "sheaf-cascade",
        0,
    ),
    ("Loop Transformer (control)", "Loop Transformer, the paper's protocol", "loop-transformer", 0),
)
"""Title of the row, legend text, model that gives the colour, which of its looks."""

_SIZES = {"*": 6.5}
"""A star fills less of its box than the other markers do."""


def community_figure(table: Table, runs: Sequence[Source]) -> Drawing:
    """Median and range of our rows at each level, over the paper's range of SheafDEQ; open markers:
    fresh graphs."""
    import matplotlib.pyplot as plt

    columns = [title for title in table.columns if not title.endswith(" fresh")]
    lines = {row.title: row.cells for row in table.rows if row.source == "ours"}
    position = next(
        n for n, row in enumerate(table.rows) if row.title == "SheafDEQ" and row.source == "ours"
    )
    used: dict[str, None] = {}
    with style():
        figure, axis = plt.subplots(figsize=(7.2, 3.4))
        for place, title in enumerate(columns):
            spread = table.rows[position + 1].cells[table.columns.index(title)].spread
            if spread is not None:
                label = "SheafDEQ in the paper: range and median" if place == 0 else None
                axis.fill_between(
                    [place - 0.42, place + 0.42],
                    spread[1],
                    spread[2],
                    color="0.86",
                    linewidth=0,
                    label=label,
                )
                axis.plot(
                    [place - 0.42, place + 0.42], [spread[0]] * 2, color="0.55", linewidth=1.2
                )
        shown = [row for row in ROWS if any(cell.spread for cell in lines.get(row[0], ()))]
        for number, (name, text, model, variant) in enumerate(shown):
            look = look_of(model, variant)
            offset = 0.16 * (number - (len(shown) - 1) / 2)
            for place, title in enumerate(columns):
                cell = lines[name][table.columns.index(title)]
                used.update(dict.fromkeys(cell.runs))
                _mark(axis, place + offset, cell, look.colour, look.marker, filled=True)
                if f"{title} fresh" in table.columns:
                    _mark(
                        axis,
                        place + offset + 0.05,
                        lines[name][table.columns.index(f"{title} fresh")],
                        look.colour,
                        "D",
                        filled=False,
                    )
            axis.plot([], [], color=look.colour, marker=look.marker, linestyle="none", label=text)
        if any(title.endswith(" fresh") for title in table.columns):
            axis.plot(
                [],
                [],
                color="0.35",
                marker="D",
                markersize=3.5,
                markerfacecolor="white",
                linestyle="none",
                label="the same on ten fresh graphs",
            )
        accuracy_by_level(axis, [title[1:] for title in columns], below=0.12, columns=2)
    caption = (
        "Community detection: median and range over the seeds that have finished, beside the "
        "range of SheafDEQ over five seeds in the "
        "paper. "
        "Δ: sees differences of raw node features on its edges; the paper's models do not. "
        "Open diamonds: ten fresh graphs a level that no training and no choice has seen."
    )
    sources = tuple(source for source in runs if source.run is not None and source.run.id in used)
    return Drawing("results-community", figure, caption, sources)


def _mark(axis: object, x: float, cell: Cell, colour: str, marker: str, *, filled: bool) -> None:
    if cell.spread is None:
        return
    middle, low, high = cell.spread
    face = colour if filled else "white"
    if filled:
        axis.plot([x, x], [low, high], color=colour, linewidth=1.0)  # type: ignore[attr-defined]
    axis.plot(  # type: ignore[attr-defined]
        [x],
        [middle],
        marker=marker,
        markersize=_SIZES.get(marker, 4.5) if filled else 3.5,
        color=colour,
        markerfacecolor=face,
        linestyle="none",
    )
