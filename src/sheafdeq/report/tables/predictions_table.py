"""Proved labels: one row for every record of ``certify --predictions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sheafdeq.report.tables.table import Cell, Row, Table

__all__ = ["predictions_table"]

COLUMNS = (
    "radius",
    "nodes",
    "proved",
    "proved and right",
    "smallest proved margin",
    "largest distance bound",
    "processor seconds",
)


def predictions_table(payloads: Sequence[Mapping[str, Any]], *, full: bool = False) -> Table:
    """``payloads`` are what ``sheafdeq certify --predictions`` writes (``sheafdeq.predictions/1``).

    One row a record, at its smallest radius (0 as a rule); with ``full`` one for every radius.
    """
    rows = []
    for payload in sorted(payloads, key=_order):
        pairs = list(zip(payload["curve"], payload["predictions"], strict=True))
        for line, found in pairs if full else pairs[:1]:
            rows.append(
                Row(
                    f"{payload['model']['title']}, {payload['task']['title']}, {payload['graph']}",
                    payload["run"][:8],
                    _cells(line, found),
                )
            )
    notes = ("Records: sheafdeq certify RUN --predictions --out DIR; each names its command.",)
    return Table("Labels proved at the equilibrium", COLUMNS, tuple(rows), notes)


def _order(payload: Mapping[str, Any]) -> tuple[str, int, str, str]:
    task = payload["task"]
    return (task["name"], task["level"] or 0, payload["run"], payload["graph"])


def _cells(line: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Cell, ...]:
    margins = [
        margin
        for margin, proved in zip(found["margin"], found["is_proved"], strict=True)
        if proved and margin is not None
    ]
    distances = [value for value in found["distance"] if value is not None]

    def one(value: float | None, form: str) -> Cell:
        return Cell(absent="none") if value is None else Cell((value, value, value), form)

    return (
        one(line["radius"], ".2g"),
        one(line["nodes"], ",.0f"),
        one(line["proved"], ",.0f"),
        one(line["proved_right"], ",.0f"),
        one(min(margins, default=None), ".2g"),
        one(max(distances, default=None), ".2g"),
        one(line["processor_seconds"], ".0f"),
    )
