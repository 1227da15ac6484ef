"""A table as rows of plain cells; it knows nothing of formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sheafdeq.errors import OptionError
from sheafdeq.report.summary import Summary

__all__ = [
    "Cell",
    "Column",
    "Row",
    "Select",
    "Table",
    "add_ranks",
    "only_columns",
    "rank",
]


Select = Callable[[Iterable[Summary]], Summary | None]

Column = tuple[str, int | None, str]  # task, level, further task options


@dataclass(frozen=True)
class Cell:
    """Median and range, how many seeds stand behind them, and what must be said about them."""

    spread: tuple[float, float, float] | None = None  # median, min, max
    form: str = ".1f"
    seeds: tuple[int, int] | None = None  # finished, planned
    marks: tuple[str, ...] = ()  # dagger: unconverged solver; star: not the paper's protocol
    rank: int | None = None
    note: str = ""  # chosen configuration
    absent: str = "missing"
    runs: tuple[str, ...] = ()  # ids of the runs behind the number
    verdict: str = ""  # our median against the paper's range: inside, above or below
    gap: float = 0.0  # how far outside

    def scores(self) -> str:
        """``98.6 [96.9, 99.1]``, one number where they are equal; of a filled cell."""
        assert self.spread is not None
        middle, low, high = (format(value, self.form) for value in self.spread)
        return middle if middle == low == high else f"{middle} [{low}, {high}]"

    def text(self) -> str:
        """``98.6 [96.9, 99.1] 5/5 above 0.2 (1st)``, or why there is nothing."""
        if self.spread is None:
            return self.absent
        words = [self.scores()]
        if self.seeds is not None:
            words.append(f"{self.seeds[0]}/{self.seeds[1]}")
        if self.verdict:
            words.append(
                self.verdict
                if self.verdict == "inside"
                else f"{self.verdict} {format(self.gap, self.form)}"
            )
        words.extend(self.marks)
        if self.note:
            words.append(f"({self.note})")
        if self.rank is not None and self.rank <= 3:
            words.append(("(1st)", "(2nd)", "(3rd)")[self.rank - 1])
        return " ".join(words)


@dataclass(frozen=True)
class Row:
    """One line: a model, whose numbers these are (ours, paper), and a cell for each column."""

    title: str
    source: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Title, column titles, rows, and the notes that belong under it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())


def rank(values: Sequence[float | None], form: str) -> list[int | None]:
    """1, 2, 3, ... from the highest, None for absent values; ties at the displayed precision share
    a rank (1, 1, 3)."""
    shown = [None if value is None else float(format(value, form)) for value in values]
    return [
        None if value is None else 1 + sum(other is not None and other > value for other in shown)
        for value in shown
    ]


def add_ranks(lines: list[list[Cell]], forms: Sequence[str]) -> None:
    """Mark the places of every column with at least two numbers."""
    for column, form in enumerate(forms):
        medians = [spread[0] if (spread := line[column].spread) else None for line in lines]
        if sum(value is not None for value in medians) < 2:
            continue  # a row that stands alone is not first
        ranks = rank(medians, form)
        for line, place in zip(lines, ranks, strict=True):
            line[column] = Cell(**{**vars(line[column]), "rank": place})


def only_columns(table: Table, titles: Sequence[str]) -> Table:
    """Some columns of a table. Rows of ours that have nothing in them go, with the paper's row
    below."""
    unknown = [title for title in titles if title not in table.columns]
    if unknown:
        raise OptionError(
            f"no column {unknown[0]!r} in this table; it has: {', '.join(table.columns)}"
        )
    places = [table.columns.index(title) for title in titles]
    rows: list[Row] = []
    kept = False
    for row in table.rows:
        cells = tuple(row.cells[place] for place in places)
        if row.source != "paper":
            kept = any(cell.spread is not None for cell in cells)
        if kept:
            rows.append(Row(row.title, row.source, cells))
    return Table(table.title, tuple(titles), tuple(rows), table.notes)
