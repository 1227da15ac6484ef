"""Tables as their pages show them: groups of rows, cells with links to runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sheafdeq.report import tables
from sheafdeq.report.collection import Collection
from sheafdeq.report.site.environment import page_name
from sheafdeq.report.site.words import clip
from sheafdeq.report.summary import Summary
from sheafdeq.report.tables import Cell, Select, Table

__all__ = [
    "page_table",
    "tables_of",
]


def tables_of(
    summaries: Sequence[Summary], select: Select, collection: Collection, parameters: Table | None
) -> list[tuple[str, Table]]:
    """Every table that has a number of ours in it."""
    fresh = collection.fresh_scores()
    made = [
        ("community", tables.paper_table("community", summaries, select, fresh=fresh)),
        (
            "community-full",
            tables.paper_table("community", summaries, select, full=True, fresh=fresh),
        ),
        ("distributed", tables.paper_table("distributed", summaries, select, fresh=fresh)),
        ("staleness", tables.staleness_table(collection.studies, full=True)),
        ("all", tables.overview_table(summaries, select)),
    ]
    if parameters is not None:
        made.append(("parameters", parameters))
    return [(name, table) for name, table in made if _has_ours(table)]


def _has_ours(table: Table) -> bool:
    ours = (
        row for row in table.rows if row.source != "paper" and row.title != "constant predictor"
    )
    return any(cell.spread is not None for row in ours for cell in row.cells)


def page_table(table: Table, name: str, known: set[str]) -> dict[str, Any]:
    """A table as the template takes it: rows of one model are a group that sorting keeps
    together."""
    groups: list[dict[str, Any]] = []
    for row in table.rows:
        if row.title or not groups:
            groups.append({"title": clip(row.title, 120), "rows": []})
        groups[-1]["rows"].append(row)
    for group in groups:
        paper = next((row for row in group["rows"] if row.source == "paper"), None)
        group["lines"] = [
            {
                "source": row.source,
                "cells": [_page_cell(cell, known) for cell in row.cells],
            }
            for row in group["rows"]
        ]
        group["empty"] = not any(
            cell.spread for row in group["rows"] if row is not paper for cell in row.cells
        )
    return {
        "name": name,
        "title": clip(table.title),
        "columns": [
            {"title": clip(title, 120), "level": _level_of(title)} for title in table.columns
        ],
        "groups": groups,
        "notes": [clip(note, 2000) for note in table.notes],
        "sources": any(row.source for row in table.rows),
    }


def _level_of(title: str) -> str:
    match = re.search(r"(?:^|\s)L(\d+)\b", title)
    return match.group(1) if match else ""


def _page_cell(cell: Cell, known: set[str]) -> dict[str, Any]:
    runs = [page_name(run) for run in cell.runs if run in known]
    href = (
        ""
        if not runs
        else (f"runs/{runs[0]}.html" if len(runs) == 1 else f"compare.html#{','.join(runs)}")
    )
    middle, spread = cell.absent, ""
    if cell.spread is not None:
        middle, low, high = (format(value, cell.form) for value in cell.spread)
        spread = "" if middle == low == high else f"[{low}, {high}]"
    return {
        "middle": middle,
        "spread": spread,
        "seeds": "" if cell.seeds is None else f"{cell.seeds[0]}/{cell.seeds[1]}",
        "marks": "".join(cell.marks),
        "note": clip(cell.note, 120),
        "rank": cell.rank if cell.rank is not None and cell.rank <= 3 else None,
        "href": href,
        "value": "" if cell.spread is None else repr(float(cell.spread[0])),
        "absent": cell.spread is None,
        "verdict": cell.verdict,
        "gap": format(cell.gap, cell.form) if cell.verdict in ("above", "below") else "",
    }
