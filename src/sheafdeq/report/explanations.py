"""What explains a difference from the paper: a small file people write, with the records that
support each sentence.

    [[explanation]]
    table = "community"
    row = "IGNN"
    column = "L10"
    text = "With a warm-up of a twentieth it ends at 52.9, inside the paper's range."
    records = ["41a589e2", "77f0c3ab"]

An explanation without a record at hand is not one: it is named, and the difference stays
unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sheafdeq.errors import InputError
from sheafdeq.regular_file import read_toml

__all__ = ["Explanation", "Explanations", "read_explanations"]


class Explanation(BaseModel):
    """One sentence about one cell, or about a whole row (``column = "*"``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    row: str
    column: str = "*"
    text: str
    records: list[str] = Field(min_length=1)  # beginnings of ids


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    explanation: list[Explanation] = Field(default_factory=list)


@dataclass(frozen=True)
class Explanations:
    """Those whose records are at hand, and a sentence about each of the others."""

    entries: tuple[Explanation, ...] = ()
    unsupported: tuple[str, ...] = ()

    def of(self, table: str, row: str, column: str) -> Explanation | None:
        """The explanation of a cell: its own before that of its row."""
        found = [entry for entry in self.entries if (entry.table, entry.row) == (table, row)]
        return next(
            (e for e in found if e.column == column),
            next((e for e in found if e.column == "*"), None),
        )


def read_explanations(path: Path, ids: Iterable[str]) -> Explanations:
    """Read the file (absent: nothing is explained) and hold every record it names against the ids
    there are."""
    if not path.exists():
        return Explanations()
    try:
        entries = _File.model_validate(read_toml(path)).explanation
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    known = list(ids)
    supported, unsupported = [], []
    for entry in entries:
        missing = [
            name
            for name in entry.records
            if len(name) < 8 or sum(found.startswith(name) for found in known) != 1
        ]
        if missing:
            unsupported.append(
                f"{entry.table}, {entry.row}, {entry.column}: no record {', '.join(missing)}"
            )
        else:
            supported.append(entry)
    return Explanations(tuple(supported), tuple(unsupported))
