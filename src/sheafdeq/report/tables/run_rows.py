"""Cells and titles of rows from summaries of runs, and the notes every table of runs has."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.report.summary import Summary
from sheafdeq.report.tables.paper import PAPER_SEEDS
from sheafdeq.report.tables.table import Cell, Column, Row

__all__ = [
    "DIFFERENCES",
    "configuration_label",
    "constant_row",
    "row_protocol",
    "row_title",
    "run_notes",
    "summary_cell",
]


DIFFERENCES = "Δ"
"""In the title of a row: the model sees differences of raw node features on its edges."""


def row_title(title: str, summary: Summary) -> str:
    """The model, whether it sees differences, and how it was trained if not by the paper's
    protocol."""
    seen = f" {DIFFERENCES}" if summary.differences else ""
    protocol = row_protocol(summary)
    if protocol == summary.protocol:
        protocol = summary.trained_by
    return f"{title}{seen}" + ("" if protocol == "paper" else f" [{protocol}]")


def row_protocol(summary: Summary) -> str:
    """Recipes that differ by their task alone (``cascade``, ``cascade-coordinates``) share a
    row."""
    name, _, task = summary.protocol.rpartition("-")
    return name if name.startswith("recipe ") and task in summary.column[0] else summary.protocol


def configuration_label(summary: Summary) -> str:
    """The model with the options its configuration names and its row does not."""
    return ", ".join([summary.title, *_options(summary)])


def _options(summary: Summary) -> list[str]:
    """``shift 1.3``, without what the protocol says already (``mixers=channels``)."""
    said = summary.protocol.split(", ")
    return [f"{key} {v}" for key, v in summary.options.items() if f"{key}={v}" not in said]


def summary_cell(
    summary: Summary | None,
    form: str,
    metric: str | None,
    *,
    show_options: bool,
    planned: int = len(PAPER_SEEDS),
) -> Cell:
    """What one configuration scored in one column."""
    if summary is None:
        return Cell(form=form)
    marks = ("†",) if summary.unconverged else ()
    note = ", ".join(_options(summary)) if show_options else ""
    runs = tuple(record.id for record in summary.records)
    return Cell(
        summary.spread(metric), form, (len(summary.records), planned), marks, None, note, runs=runs
    )


def constant_row(summaries: Sequence[Summary], keys: Sequence[Column], forms: Sequence[str]) -> Row:
    """Test score of the best predictor that ignores its input; every record carries it."""
    cells = []
    for key, form in zip(keys, forms, strict=True):
        values = [
            summary.records[0].task.constant_score for summary in summaries if summary.column == key
        ]
        value = values[0] if values else None
        cells.append(Cell(form=form) if value is None else Cell((value, value, value), form))
    return Row("constant predictor", "ours", tuple(cells))


def run_notes(shown: Sequence[Summary], full: bool) -> tuple[str, ...]:
    """How seeds, ranks and marks are to be read."""
    notes = [
        "n/5: seeds finished of 42 to 46; ranks by median, ties at the displayed precision "
        "share a rank."
    ]
    if not full:
        notes.append(
            "Each family is shown by the configuration (in parentheses) of highest mean "
            "validation score, per column."
        )
    unconverged = sum(summary.unconverged for summary in shown)
    if unconverged:
        notes.append(
            "† the solver did not reach its tolerance in the final evaluation "
            f"({unconverged} runs)."
        )
    horizon = [
        record
        for summary in shown
        for record in summary.records
        if record.solves and not record.solves.to_tolerance
    ]
    open_ended = sum(
        set(record.solves.final) != {"converged"} for record in horizon if record.solves
    )
    if horizon:
        notes.append(
            f"{len(horizon)} runs read out a fixed number of iterations, as in the paper; in "
            f"{open_ended} of them the last "
            "residual is above tolerance, so these numbers say nothing about convergence."
        )
    return tuple(notes)
