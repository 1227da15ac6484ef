"""Everything the page of results is made of, and where it differs from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sheafdeq.records import RunRecord
from sheafdeq.report.collection import Collection
from sheafdeq.report.explanations import Explanations
from sheafdeq.report.summary import Summary
from sheafdeq.report.tables import Cell, Row, Select, Table, paper_table

__all__ = [
    "POINTS",
    "SHARE",
    "Difference",
    "Evidence",
    "differences",
    "paired_rows",
    "plain_cell",
    "short_title",
]


POINTS = 2.0
"""A difference of accuracy that needs an explanation, in points outside the paper's range."""

SHARE = 0.1
"""The same for errors: outside the range by more than this share of the paper's median."""


@dataclass(frozen=True)
class Evidence:
    """Everything the page is made of."""

    found: Collection
    summaries: Sequence[Summary]
    select: Select
    explanations: Explanations
    fresh: Mapping[str, float]
    protocol: Callable[[RunRecord], str]  # how the run was trained
    apart: int = 0  # runs that are in no summary: those of the ablations

    def table(self, name: str, *, full: bool = False) -> Table:
        """One of the paper's two tables."""
        return paper_table(
            name,
            self.summaries,
            self.select,
            full=full,
            fresh=self.fresh,
            excluded=self.found.excluded,
            apart=self.apart,
        )

    @property
    def runs(self) -> dict[str, RunRecord]:
        """Records by id."""
        return {record.id: record for record in self.found.runs}


@dataclass(frozen=True)
class Difference:
    """A cell of a row of the paper's whose median is too far outside the paper's range."""

    table: str
    row: str
    column: str
    cell: Cell
    paper: Cell
    explanation: str  # or "unexplained"


def paired_rows(table: Table) -> list[tuple[Row, Row]]:
    """Our rows that have the paper's below them, each with it."""
    return [
        (ours, paper)
        for ours, paper in zip(table.rows, table.rows[1:], strict=False)
        if ours.source == "ours" and paper.source == "paper"
    ]


def differences(evidence: Evidence) -> list[Difference]:
    """Cells of the paper's rows, every configuration in its own, that lie too far outside the
    paper's range."""
    found = []
    for name in ("community", "distributed"):
        table = evidence.table(name, full=True)
        for ours, paper in paired_rows(table):
            for column, cell, reference in zip(table.columns, ours.cells, paper.cells, strict=True):
                if (
                    reference.spread is None
                    or cell.verdict in ("", "inside")
                    or cell.gap <= _allowance(reference)
                ):
                    continue
                known = evidence.explanations.of(name, ours.title, short_title(column))
                text = (
                    "unexplained"
                    if known is None
                    else (f"{known.text} ({', '.join(f'`{r[:8]}`' for r in known.records)})")
                )
                found.append(
                    Difference(name, ours.title, short_title(column), cell, reference, text)
                )
    return found


def short_title(column: str) -> str:
    """A column without its unit."""
    return column.split(" (")[0]


def _allowance(paper: Cell) -> float:
    """Points where the score is an accuracy in per cent, a share of the paper's median where it is
    minus an error."""
    assert paper.spread is not None
    return POINTS if paper.spread[0] > 0 else SHARE * abs(paper.spread[0])


def plain_cell(cell: Cell) -> str:
    """Median, range and verdict, without rank and configuration."""
    return replace(cell, rank=None, note="").text().replace("|", "\\|").replace("*", "\\*")
