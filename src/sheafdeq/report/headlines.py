"""The first lines of the page of results: what the tables say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sheafdeq.report.continued_rows import ContinuedRow, continued_rows
from sheafdeq.report.evidence import POINTS, Difference, Evidence, paired_rows, short_title
from sheafdeq.report.tables import Cell, Table

__all__ = [
    "headlines",
]


def headlines(
    evidence: Evidence, tables: Mapping[str, Table], found: Sequence[Difference]
) -> list[str]:
    """Five lines that say what the tables say."""
    return [
        _coverage_line(tables, found),
        _sheafdeq_line(tables["community"]),
        _cascade_line(tables["community"]),
        _information_line(tables["community"]),
        _settling_line(evidence),
    ]


def _coverage_line(tables: Mapping[str, Table], found: Sequence[Difference]) -> str:
    verdicts: dict[str, int] = {"inside": 0, "above": 0, "below": 0}
    total = 0
    for table in tables.values():
        for ours, paper in paired_rows(table):
            for cell, reference in zip(ours.cells, paper.cells, strict=True):
                total += reference.spread is not None
                if cell.verdict:
                    verdicts[cell.verdict] += 1
    filled = sum(verdicts.values())
    unexplained = sum(d.explanation == "unexplained" for d in found)
    return (
        f"**Coverage.** {filled} of the {total} cells of the paper's compact tables are filled "
        "under its protocol: "
        f"{verdicts['inside']} inside its range, {verdicts['above']} above, {verdicts['below']} "
        "below. Of all configurations run, "
        f"{len(found)} cells lie more than {POINTS:g} points outside, {unexplained} of them "
        "unexplained."
    )


def _sheafdeq_line(table: Table) -> str:
    row = next((ours for ours, _ in paired_rows(table) if ours.title == "SheafDEQ"), None)
    paper = (
        []
        if row is None
        else [(c, cell) for c, cell in zip(table.columns, row.cells, strict=True) if cell.verdict]
    )
    channels = _cells_of(table, f"SheafDEQ [{CHANNELS}]")
    other = f"; with W_1 on channels: {_told(channels)}" if channels else ""
    return (
        f"**SheafDEQ** by the paper's protocol: {_told(paper)}{_places(paper)}{other}. By the "
        "recipe `reliable`, with differences on its edges: "
        f"{_told(_cells_of(table, 'SheafDEQ Δ [recipe reliable]'))}; with twice the epochs: "
        f"{_told(_cells_of(table, 'SheafDEQ Δ [recipe reliable-long]'))}."
    )


def _told(cells: Sequence[tuple[str, Cell]]) -> str:
    """``99.0, 98.7 % at L7, L10 (medians of 1 to 3 seeds; the worst 98.3 % at L10)``."""
    if not cells:
        return "not run yet"
    seeds = sorted({cell.seeds[0] for _, cell in cells if cell.seeds is not None})
    worst, place = min(
        (cell.spread[1], short_title(column)) for column, cell in cells if cell.spread is not None
    )
    few = " to ".join(str(number) for number in dict.fromkeys((seeds[0], seeds[-1])))
    what = "one seed" if few == "1" else f"medians of {few} seeds; the worst {worst:.1f} %"
    if few != "1" and len(cells) > 1:
        what += f" at {place}"
    return f"{_medians(cells)} % at {_columns(cells)} ({what})"


def _medians(cells: Sequence[tuple[str, Cell]]) -> str:
    return ", ".join(_middle(cell) for _, cell in cells)


def _columns(cells: Sequence[tuple[str, Cell]]) -> str:
    return ", ".join(short_title(column) for column, _ in cells)


def _places(cells: Sequence[tuple[str, Cell]]) -> str:
    """``; inside the paper's range but for L7 (7.4 below)``."""
    if not cells:
        return ""
    outside = [
        f"{short_title(column)} ({format(cell.gap, cell.form)} {cell.verdict})"
        for column, cell in cells
        if cell.verdict != "inside"
    ]
    return "; inside the paper's range" + (f" but for {', '.join(outside)}" if outside else "")


def _cells_of(table: Table, start: str) -> list[tuple[str, Cell]]:
    """Filled cells of the row whose title begins so, without fresh graphs; of several rows, the one
    with most of them."""
    rows = [
        [
            (c, cell)
            for c, cell in zip(table.columns, row.cells, strict=True)
            if cell.spread is not None and not c.endswith(" fresh")
        ]
        for row in table.rows
        if row.source == "ours" and row.title.startswith(start)
    ]
    return max(rows, key=len, default=[])


def _cascade_line(table: Table) -> str:
    return (
        "**Sheaf Cascade**, proved to settle for every weight, with differences on its edges, by "
        "the recipe `cascade-wide`: "
        f"{_told(_cells_of(table, 'Sheaf Cascade Δ [recipe cascade-wide]'))}."
    )


def _information_line(table: Table) -> str:
    pairs = (
        ("SheafDEQ", "SheafDEQ Δ [recipe per-graph]", "SheafDEQ [recipe per-graph]"),
        ("Sheaf Cascade", "Sheaf Cascade Δ [recipe cascade]", "Sheaf Cascade [recipe cascade]"),
    )
    texts = []
    for name, with_, without in pairs:
        seen, blind = _cells_of(table, with_), _cells_of(table, without)
        shared = dict(seen).keys() & dict(blind).keys()
        if shared:
            ours, theirs = (
                [(column, cell) for column, cell in cells if column in shared]
                for cells in (seen, blind)
            )
            texts.append(
                f"{name} {_spreads(ours)} % with and {_spreads(theirs)} % without at "
                f"{_columns(ours)}"
            )
    for name, row in (
        ("GraphAttnDEQ", "GraphAttnDEQ (ablation) Δ [recipe per-graph]"),
        ("Loop Transformer", "Loop Transformer (control) Δ [recipe per-graph]"),
    ):
        if cells := _cells_of(table, row):
            texts.append(f"{name} {_spreads(cells)} % with at {_columns(cells)}")
    told = "; ".join(texts) or "the runs that tell model from input are not finished yet"
    return (
        "**The same information.** With and without differences of raw features on the edges, by "
        f"the same training, median [min, max] where seeds differ: {told}."
    )


def _spreads(cells: Sequence[tuple[str, Cell]]) -> str:
    """``97.7 [96.2, 99.3], 99.4``: with the range of seeds that differ."""
    return ", ".join(cell.scores() for _, cell in cells)


def _middle(cell: Cell) -> str:
    assert cell.spread is not None
    return format(cell.spread[0], cell.form)


CHANNELS = "mixers=channels"
"""The protocol of runs whose W_1 mixes channels, as the printed number of parameters has it."""


def _lowest(row: ContinuedRow) -> str:
    return "unknown" if row.score_lowest is None else f"{row.score_lowest:.1f} %"


def _settling_line(evidence: Evidence) -> str:
    rows = [
        row
        for row in continued_rows(evidence)
        if row.model == "sheafdeq" and row.damping == 1.0 and row.protocol in ("paper", CHANNELS)
    ]
    if not rows:
        return (
            "**Settling.** The paper's checkpoints have not been iterated on under its "
            "protocol yet."
        )
    told = "; ".join(
        f"{'W_1 on channels, ' if row.protocol == CHANNELS else ''}seed {row.seed}: {row.resting} "
        f"of {row.nodes} within {row.iterations} iterations, accuracy {_lowest(row)} "
        f"(`{row.run[:8]}`)"
        for row in rows
    )
    return (
        "**Settling** at level 7 under the paper's protocol, nodes at rest (changing by less than "
        f"{rows[0].tolerance:.0e}) and lowest accuracy since the horizon: {told}. The paper's "
        "seed 43 changes by 8.95e-07 at 420."
    )
