"""RESULTS.md: what was measured beside what the paper prints, from records alone.

The page is a function of the records, the paper's numbers and the file of explanations, so a test
makes it again and compares. Nothing in it depends on the machine or the day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from sheafdeq.report.continued_rows import PAPER_SETTLING, continued_rows, trained_by
from sheafdeq.report.evidence import (
    POINTS,
    SHARE,
    Difference,
    Evidence,
    differences,
    paired_rows,
    plain_cell,
    short_title,
)
from sheafdeq.report.explanations import Explanations
from sheafdeq.report.graph_scores import graph_scores_text
from sheafdeq.report.grid import markdown_grid
from sheafdeq.report.group_rows import ablation_text, reading_text
from sheafdeq.report.headlines import headlines
from sheafdeq.report.mixers import mixers_text
from sheafdeq.report.tables import Table, render, staleness_table
from sheafdeq.report.time_to_accuracy import time_text

__all__ = ["BEGIN", "END", "results_page", "with_section"]


def results_page(evidence: Evidence, command: str) -> str:
    """The whole page in Markdown."""
    tables = {name: evidence.table(name) for name in ("community", "distributed")}
    found = differences(evidence)
    parts = [
        "# Results",
        f"Made from the records below `results/` by `{command}`; do not edit. A test makes it "
        "again and compares. "
        "Every configuration in a row of its own: `sheafdeq tables community --full`, `sheafdeq "
        "tables distributed --full`.",
        "\n".join(f"* {line}" for line in headlines(evidence, tables, found)),
        "## Community detection",
        render(tables["community"], "markdown").strip(),
        "## Distributed tasks",
        render(tables["distributed"], "markdown").strip(),
        "## What differs, and what explains it",
        _difference_text(found, evidence.explanations),
        "## Seeds",
        "![Test accuracy of every seed](docs/figures/seeds-community.png)",
        "## Graphs that chose, and graphs that did not",
        graph_scores_text(evidence),
        "## How long is the warm-up?",
        reading_text(evidence),
        "## What does W_1 mix?",
        mixers_text(evidence),
        "## What each ingredient of the recipe gives",
        ablation_text(evidence, "ablation", "the recipe `reliable`, in 120 epochs"),
        "## What depth, ties and noise give the cascade",
        ablation_text(evidence, "cascade-ablation", "the recipe `cascade`"),
        "## Time to accuracy",
        time_text(evidence),
        "## Continued iteration at level 7",
        _continued_text(evidence),
        "## Bounded staleness at level 7",
        _staleness_text(evidence),
        "## What each row cost",
        _cost_text(tables, evidence),
        "## What is missing",
        _missing_text(tables),
    ]
    return "\n\n".join(parts) + "\n"


def _difference_text(found: Sequence[Difference], explanations: Explanations) -> str:
    lines = [
        "Every configuration of the paper's full tables that was run under its protocol and with "
        "its inputs, and whose median is more than "
        f"{POINTS:g} points (errors: more than {SHARE:.0%} of the paper's median) outside its "
        "range. An explanation names the records "
        "that support it.",
        "",
    ]
    if found:
        header = ("table", "row", "column", "ours", "the paper", "what explains it")
        lines.append(
            markdown_grid(
                header,
                [
                    (
                        d.table,
                        d.row,
                        d.column,
                        plain_cell(d.cell),
                        plain_cell(d.paper),
                        d.explanation,
                    )
                    for d in found
                ],
            )
        )
    else:
        lines.append("None of the cells that are filled.")
    if explanations.unsupported:
        lines += [
            "",
            "Explanations without their records, not counted: "
            f"{'; '.join(explanations.unsupported)}.",
        ]
    return "\n".join(lines)


def _continued_text(evidence: Evidence) -> str:
    rows = continued_rows(evidence)
    if not rows:
        paper = [f"The paper's {model}: {words}." for model, words in PAPER_SETTLING.items()]
        return "\n".join(["No record yet.", *paper])
    header = (
        "run",
        "trained by",
        "iterations",
        "update at the horizon",
        "at the end",
        "accuracy at the horizon",
        "at the end",
        "lowest since the horizon",
        "nodes at rest",
        "end states",
        "the paper",
    )
    return (
        "Median over six starts of the largest relative change of a node in one step, and of the "
        "test accuracy, at the trained horizon and at the end (`sheafdeq studies results/runs "
        "--paper`, `sheafdeq diagnose RUN`). Lowest since the horizon: of those medians; where "
        "it is far below both, the state swings and accuracy with it. Nodes at rest: those that "
        "change by less than 1e-3 from some iteration on, from the trained start. End states: how "
        "many different ones the starts reach.\n\n"
        + markdown_grid(header, [row.words() for row in rows])
    )


def _staleness_text(evidence: Evidence) -> str:
    table = staleness_table(evidence.found.studies, full=True)
    runs = evidence.runs
    rows = []
    for row in table.rows:
        ids = [run for cell in row.cells for run in cell.runs]
        how = (
            ""
            if not ids
            else f" [{trained_by(evidence, runs[ids[0]])}]"
            if ids[0] in runs
            else " [no record of the run]"
        )
        rows.append(replace(row, title=f"{row.title}{how}"))
    return render(replace(table, rows=tuple(rows)), "markdown").strip()


def _cost_text(tables: Mapping[str, Table], evidence: Evidence) -> str:
    runs = evidence.runs
    lines = [
        "Core-minutes of training of the runs behind each row (processor time, one thread a run, "
        "on machines shared with other work).",
        "",
    ]
    rows: list[tuple[str, ...]] = []
    total = 0.0
    for name, table in tables.items():
        for row in table.rows:
            ids = dict.fromkeys(run for cell in row.cells for run in cell.runs if run in runs)
            minutes = [runs[run].timing.get("cpu_seconds", 0.0) / 60 for run in ids]
            if minutes:
                total += sum(minutes)
                numbers = (str(len(minutes)), f"{sum(minutes):.1f}", f"{median(minutes):.1f}")
                rows.append((name, row.title, *numbers))
    header = ("table", "row", "runs", "core-minutes in all", "median a run")
    lines += [markdown_grid(header, rows), "", f"{total / 60:.1f} core-hours in all."]
    return "\n".join(lines)


def _missing_text(tables: Mapping[str, Table]) -> str:
    lines = [
        "Cells of the paper's rows without a run of its protocol, and those with fewer than "
        "five seeds.",
        "",
    ]
    rows: list[tuple[str, ...]] = []
    for name, table in tables.items():
        for ours, paper in paired_rows(table):
            absent, few = [], []
            for column, cell, reference in zip(table.columns, ours.cells, paper.cells, strict=True):
                if column.endswith(" fresh"):
                    continue
                if cell.spread is None:
                    absent.append(
                        short_title(column)
                        + ("" if reference.spread is not None else " (none in the paper either)")
                    )
                elif cell.seeds is not None and cell.seeds[0] < cell.seeds[1]:
                    few.append(f"{short_title(column)} {cell.seeds[0]}/{cell.seeds[1]}")
            if absent or few:
                rows.append((name, ours.title, ", ".join(absent), ", ".join(few)))
    lines.append(markdown_grid(("table", "row", "not run", "fewer than five seeds"), rows))
    return "\n".join(lines)


BEGIN, END = "<!-- results: begin (made by `sheafdeq tables results`) -->", "<!-- results: end -->"


def with_section(page: str, lines: Sequence[str]) -> str:
    """The page with what stands between the two marks replaced; a page without the marks comes back
    as it was."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return page
    return "\n".join([before + BEGIN, *lines, END]) + after
