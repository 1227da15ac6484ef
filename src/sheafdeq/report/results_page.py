"""RESULTS.md: what was measured beside what the paper prints, from records alone.

The page is a function of the records, the paper's numbers and the file of explanations, so a test
makes it again and compares. Nothing in it depends on the machine or the day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from sheafdeq.records import RunRecord, Summary
from sheafdeq.report.collection import Collection
from sheafdeq.report.explanations import Explanations
from sheafdeq.report.tables import Cell, Row, Select, Table, paper_table, render, staleness_table

__all__ = ["Difference", "Evidence", "differences", "headlines", "results_page", "with_section"]

POINTS = 2.0
"""A difference of accuracy that needs an explanation, in points outside the paper's range."""
SHARE = 0.1
"""The same for errors: outside the range by more than this share of the paper's median."""
PAPER_SETTLING = {
    "sheafdeq": "residual 8.95e-07 after 420 iterations; accuracy kept through 100",
    "sheafdeq-no-norm": "residual 1.04e-02 after 500 iterations; accuracy kept through 100",
    "loop-transformer": "loses its accuracy beyond its 20 loops",
}
"""What the paper says of its three level-7 checkpoints (its Section 4.3 and appendix on
staleness)."""


@dataclass(frozen=True)
class Evidence:
    """Everything the page is made of."""

    found: Collection
    summaries: Sequence[Summary]
    select: Select
    explanations: Explanations
    fresh: Mapping[str, float]
    protocol: Callable[[Mapping[str, Any]], str]  # configuration -> how the run was trained

    def table(self, name: str, *, full: bool = False) -> Table:
        """One of the paper's two tables."""
        return paper_table(
            name,
            self.summaries,
            self.select,
            full=full,
            fresh=self.fresh,
            excluded=self.found.excluded,
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


# ---------------------------------------------------------------------- rows that carry the paper's
# numbers


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
                known = evidence.explanations.of(name, ours.title, _short(column))
                text = (
                    "unexplained"
                    if known is None
                    else (f"{known.text} ({', '.join(f'`{r[:8]}`' for r in known.records)})")
                )
                found.append(Difference(name, ours.title, _short(column), cell, reference, text))
    return found


def _short(column: str) -> str:
    """A column without its unit."""
    return column.split(" (")[0]


def _allowance(paper: Cell) -> float:
    """Points where the score is an accuracy in per cent, a share of the paper's median where it is
    minus an error."""
    assert paper.spread is not None
    return POINTS if paper.spread[0] > 0 else SHARE * abs(paper.spread[0])


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
        lines += [
            "| table | row | column | ours | the paper | what explains it |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {d.table} | {d.row} | {d.column} | {_plain(d.cell)} | {_plain(d.paper)} | "
            f"{d.explanation} |"
            for d in found
        ]
    else:
        lines.append("None of the cells that are filled.")
    if explanations.unsupported:
        lines += [
            "",
            "Explanations without their records, not counted: "
            f"{'; '.join(explanations.unsupported)}.",
        ]
    return "\n".join(lines)


def _plain(cell: Cell) -> str:
    """Median, range and verdict, without rank and configuration."""
    return replace(cell, rank=None, note="").text().replace("|", "\\|").replace("*", "\\*")


# ---------------------------------------------------------------------- the first lines


def headlines(
    evidence: Evidence, tables: Mapping[str, Table], found: Sequence[Difference]
) -> list[str]:
    """Five lines that say what the tables say."""
    return [
        _coverage_line(tables, found),
        _row_line(tables["community"], "SheafDEQ", "SheafDEQ under the paper's protocol"),
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


def _row_line(table: Table, title: str, words: str) -> str:
    row = next((ours for ours, _ in paired_rows(table) if ours.title == title), None)
    cells = (
        []
        if row is None
        else [(c, cell) for c, cell in zip(table.columns, row.cells, strict=True) if cell.verdict]
    )
    if not cells:
        return f"**{words}.** Not run yet."
    return (
        f"**{words}.** "
        + "; ".join(f"{_short(column)} {_plain(cell)}" for column, cell in cells)
        + "."
    )


def _cells_of(table: Table, start: str) -> list[tuple[str, Cell]]:
    """Filled cells of the row whose title begins so; of several, the one with most of them."""
    rows = [
        [
            (c, cell)
            for c, cell in zip(table.columns, row.cells, strict=True)
            if cell.spread is not None
        ]
        for row in table.rows
        if row.source == "ours" and row.title.startswith(start)
    ]
    return max(rows, key=len, default=[])


def _cascade_line(table: Table) -> str:
    cells = _cells_of(table, "Sheaf Cascade Δ")
    if not cells:
        return "**Sheaf Cascade.** Not run yet."
    text = "; ".join(f"{column} {_plain(cell)}" for column, cell in cells)
    return (
        "**Sheaf Cascade**, proved to settle for every weight, with differences on its "
        f"edges: {text}."
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
        f"{_number(row.last)} at iteration {row.iterations}, {row.groups} end state(s) from "
        f"{row.starts} starts; "
        "the paper's has 8.95e-07 at 420."
    )


# ---------------------------------------------------------------------- studies


@dataclass(frozen=True)
class ContinuedRow:
    """One run iterated on from several starts."""

    model: str
    title: str
    run: str
    seed: int
    protocol: str
    damping: float
    horizon: int
    iterations: int
    at_horizon: float | None
    last: float | None
    score_at_horizon: float | None
    score_last: float | None
    starts: int
    groups: int


def continued_rows(evidence: Evidence) -> list[ContinuedRow]:
    """Diagnostics at level 7, the paper's protocol first."""
    runs = evidence.runs
    rows = []
    for payload in evidence.found.diagnostics:
        task = payload["task"]
        if (task["name"], task["level"]) != ("community", 7):
            continue
        record = runs.get(payload["run"])
        continued, bands = payload["continued"], payload["continued"]["bands"]
        horizon, iterations = continued["horizon"], continued["iterations"]
        rows.append(
            ContinuedRow(
                payload["model"]["name"],
                payload["model"]["title"],
                payload["run"],
                payload["seed"],
                "no record of the run" if record is None else _trained(evidence, record),
                float(payload.get("damping", 1.0)),
                horizon,
                iterations,
                _at(bands["update"], horizon - 1),
                _at(bands["update"], iterations - 1),
                _at(bands["score"], horizon),
                _at(bands["score"], iterations),
                len(continued["trajectories"]),
                len(continued["agreement"]["groups"]),
            )
        )
    return sorted(
        rows,
        key=lambda row: (row.protocol != "paper", row.model, row.protocol, row.run, row.damping),
    )


def _trained(evidence: Evidence, record: RunRecord) -> str:
    """How a run was trained, in few words."""
    if record.config.get("init_from") is not None:
        return "continued from another run"
    return evidence.protocol(record.config)


def _at(band: Mapping[str, Any], place: int) -> float | None:
    values = band["median"]
    return values[place] if 0 <= place < len(values) else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _continued_text(evidence: Evidence) -> str:
    rows = continued_rows(evidence)
    lines = [
        "Median over six starts of the largest relative change of a node in one step, and of the "
        "test accuracy, at the trained horizon "
        "and at the end (`sheafdeq studies results/runs --paper`). End states: how many different "
        "ones the starts reach.",
        "",
        "| run | trained by | iterations | update at the horizon | at the end | accuracy at the "
        "horizon | at the end | end states | "
        "the paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        title = f"{row.title}, seed {row.seed} (`{row.run[:8]}`)" + (
            "" if row.damping == 1.0 else f", damped {row.damping:g}"
        )
        paper = PAPER_SETTLING.get(row.model, "") if row.damping == 1.0 else ""
        lines.append(
            f"| {title} | {row.protocol} | {row.iterations} | {_number(row.at_horizon)} | "
            f"{_number(row.last)} | "
            f"{_score(row.score_at_horizon)} | {_score(row.score_last)} | {row.groups} of "
            f"{row.starts} | {paper} |"
        )
    return (
        "\n".join(lines)
        if rows
        else "\n".join(
            ["No record yet.", *[f"The paper's {k}: {v}." for k, v in PAPER_SETTLING.items()]]
        )
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
            else f" [{_trained(evidence, runs[ids[0]])}]"
            if ids[0] in runs
            else " [no record of the run]"
        )
        rows.append(replace(row, title=f"{row.title}{how}"))
    return render(replace(table, rows=tuple(rows)), "markdown").strip()


# ---------------------------------------------------------------------- cost, and what is not there


def _cost_text(tables: Mapping[str, Table], evidence: Evidence) -> str:
    runs = evidence.runs
    lines = [
        "Core-minutes of training of the runs behind each row (processor time, one thread a run, "
        "on machines shared with other work).",
        "",
        "| table | row | runs | core-minutes in all | median a run |",
        "|---|---|---|---|---|",
    ]
    total = 0.0
    for name, table in tables.items():
        for row in table.rows:
            ids = dict.fromkeys(run for cell in row.cells for run in cell.runs if run in runs)
            minutes = [runs[run].timing.get("cpu_seconds", 0.0) / 60 for run in ids]
            if minutes:
                total += sum(minutes)
                lines.append(
                    f"| {name} | {row.title} | {len(minutes)} | {sum(minutes):.1f} | "
                    f"{median(minutes):.1f} |"
                )
    lines += ["", f"{total / 60:.1f} core-hours in all."]
    return "\n".join(lines)


def _missing_text(tables: Mapping[str, Table]) -> str:
    lines = [
        "Cells of the paper's rows without a run of its protocol, and those with fewer than "
        "five seeds.",
        "",
    ]
    lines += ["| table | row | not run | fewer than five seeds |", "|---|---|---|---|"]
    for name, table in tables.items():
        for ours, paper in paired_rows(table):
            absent, few = [], []
            for column, cell, reference in zip(table.columns, ours.cells, paper.cells, strict=True):
                if column.endswith(" fresh"):
                    continue
                if cell.spread is None:
                    absent.append(
                        _short(column)
                        + ("" if reference.spread is not None else " (none in the paper either)")
                    )
                elif cell.seeds is not None and cell.seeds[0] < cell.seeds[1]:
                    few.append(f"{_short(column)} {cell.seeds[0]}/{cell.seeds[1]}")
            if absent or few:
                lines.append(f"| {name} | {ours.title} | {', '.join(absent)} | {', '.join(few)} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------- a section of another page

BEGIN, END = "<!-- results: begin (made by `sheafdeq tables results`) -->", "<!-- results: end -->"


def with_section(page: str, lines: Sequence[str]) -> str:
    """The page with what stands between the two marks replaced; a page without the marks comes back
    as it was."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return page
    return "\n".join([before + BEGIN, *lines, END]) + after
