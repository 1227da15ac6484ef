"""Whatever the records hold, in one table."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.report.summary import Summary
from sheafdeq.report.tables.run_rows import (
    configuration_label,
    constant_row,
    row_title,
    run_notes,
    summary_cell,
)
from sheafdeq.report.tables.table import Cell, Column, Row, Select, Table, add_ranks

__all__ = [
    "overview_table",
]


def overview_table(
    summaries: Sequence[Summary], select: Select, *, full: bool = False, metric: str | None = None
) -> Table:
    """Whatever the records hold: a column for each task, a row for each family (or
    configuration)."""
    keys = sorted(
        {summary.column for summary in summaries}, key=lambda key: (key[0], key[1] or 0, key[2])
    )
    planned = max((len(summary.records) for summary in summaries), default=0)
    ordered = sorted(
        summaries,
        key=lambda summary: (
            summary.model,
            configuration_label(summary),
            summary.protocol,
            summary.differences,
        ),
    )

    def row_of(summary: Summary) -> str:
        return row_title(configuration_label(summary) if full else summary.title, summary)

    names = dict.fromkeys(map(row_of, ordered))
    forms = [
        ".1f" if _score_name(summaries, key).endswith("(%)") and metric is None else ".4g"
        for key in keys
    ]
    lines: list[list[Cell]] = []
    chosen: list[Summary] = []
    titles: list[str] = []
    for name in names:
        members = [summary for summary in ordered if row_of(summary) == name]
        picked = [select(summary for summary in members if summary.column == key) for key in keys]
        chosen.extend(summary for summary in picked if summary is not None)
        titles.append(name)
        lines.append(
            [
                summary_cell(summary, form, metric, show_options=not full, planned=planned)
                for summary, form in zip(picked, forms, strict=True)
            ]
        )
    add_ranks(lines, forms)
    rows = [Row(title, "ours", tuple(line)) for title, line in zip(titles, lines, strict=True)]
    if metric is None:
        rows.append(constant_row(summaries, keys, forms))
    titles = [
        _key_title(key) + f": {_score_name(summaries, key) if metric is None else metric}"
        for key in keys
    ]
    notes = tuple(
        note.replace("/5: seeds finished of 42 to 46", f"/{planned}: seeds finished")
        for note in run_notes(chosen, full)
    )
    return Table(
        "All records: test, median [min, max] over seeds; higher is better",
        tuple(titles),
        tuple(rows),
        notes,
    )


def _key_title(key: Column) -> str:
    name, level, options = key
    title = name if level is None else f"{name} L{level}"
    return f"{title} ({options})" if options else title


def _score_name(summaries: Sequence[Summary], key: Column) -> str:
    return next(summary.records[0].task.score for summary in summaries if summary.column == key)
