"""The first lines of the page of results: what the tables say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sheafdeq.report.continued_rows import continued_rows, number_text
from sheafdeq.report.evidence import (
    POINTS,
    Difference,
    Evidence,
    paired_rows,
    plain_cell,
    short_title,
)
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
    return (
        f"**SheafDEQ.** Under the paper's protocol: {_told(paper)}. By the recipe `reliable`, with "
        f"differences on its edges: {_told(_cells_of(table, 'SheafDEQ Δ [recipe reliable]'))}; "
        f"with twice the epochs: {_told(_cells_of(table, 'SheafDEQ Δ [recipe reliable-long]'))}."
    )


def _told(cells: Sequence[tuple[str, Cell]]) -> str:
    """``L7 99.0 1/5; L10 98.7 3/5``."""
    text = "; ".join(f"{short_title(column)} {plain_cell(cell)}" for column, cell in cells)
    return text or "not run yet"


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
        seen, blind = dict(_cells_of(table, with_)), dict(_cells_of(table, without))
        both = [column for column in seen if column in blind]
        if both:
            texts.append(
                f"{name} "
                + ", ".join(
                    f"{c} {_middle(seen[c])} with and {_middle(blind[c])} without" for c in both
                )
            )
    told = "; ".join(texts) if texts else "the runs that tell model from input are not finished yet"
    return (
        f"**The same information.** {told[0].upper()}{told[1:]} (differences of raw features "
        "on the edges, same training)."
    )


def _middle(cell: Cell) -> str:
    assert cell.spread is not None
    return format(cell.spread[0], cell.form)


def _settling_line(evidence: Evidence) -> str:
    rows = [
        row
        for row in continued_rows(evidence)
        if row.protocol == "paper" and row.model == "sheafdeq"
    ]
    if not rows:
        return (
            "**Settling.** The paper's checkpoints have not been iterated on under its "
            "protocol yet."
        )
    row = rows[0]
    verdict = "settles" if row.last is not None and row.last <= 1e-3 else "does not settle"
    return (
        f"**Settling.** Our level-7 SheafDEQ of the paper's protocol (`{row.run[:8]}`) {verdict}: "
        "median update "
        f"{number_text(row.last)} at iteration {row.iterations}, {row.groups} end state(s) from "
        f"{row.starts} starts; "
        "the paper's has 8.95e-07 at 420."
    )
