"""Trainable parameters beside the paper's counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sheafdeq.report.tables.paper import paper_numbers
from sheafdeq.report.tables.table import Cell, Row, Table

__all__ = [
    "parameter_table",
]


def parameter_table(counts: Mapping[int, Sequence[tuple[str, Mapping[str, Any], int]]]) -> Table:
    """Trainable parameters by input width f: ``counts[f]`` lists (model, options, number)."""
    paper = paper_numbers("parameters")
    widths = sorted(counts)
    rows = []
    for line in paper["rows"]:
        cells = []
        for width in widths:
            wanted = (line["model"], line["options"])
            number = next(
                (count for model, options, count in counts[width] if (model, options) == wanted),
                None,
            )
            cells.append(_count_cell(number))
        cells.append(_count_cell(line["count"]))
        rows.append(Row(line["title"], "", tuple(cells)))
    notes = (
        "The task has two input features; every count the paper prints that can be matched needs "
        "three.",
        "The text of the paper gives 10,798 for SheafDEQ with three features; the printed 11,045 "
        "is that with a first mixer of channels (q x q) in the place of the stalk mixer W_1 "
        "(d x d).",
    )
    return Table(
        paper["title"], (*(f"ours, f = {width}" for width in widths), "paper"), tuple(rows), notes
    )


def _count_cell(number: int | None) -> Cell:
    return Cell() if number is None else Cell((number, number, number), ",.0f")
