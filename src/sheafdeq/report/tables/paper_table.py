"""The paper's two result tables, with our runs beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from sheafdeq.report.summary import LONGEST_NAME, Summary, options_text
from sheafdeq.report.tables.paper import PAPER_SEEDS, paper_numbers
from sheafdeq.report.tables.run_rows import (
    DIFFERENCES,
    configuration_label,
    constant_row,
    row_protocol,
    row_title,
    run_notes,
    summary_cell,
)
from sheafdeq.report.tables.table import Cell, Row, Select, Table, add_ranks

__all__ = [
    "judged",
    "paper_table",
]


@dataclass(frozen=True)
class _Line:
    """One row in the making: the summaries it may show, and the paper's cells to hold them
    against."""

    title: str
    members: tuple[Summary, ...]
    published: Sequence[Any] | None = None  # the paper's cells of this configuration
    show_paper: bool = False


def paper_table(
    name: str,
    summaries: Sequence[Summary],
    select: Select,
    *,
    full: bool = False,
    metric: str | None = None,
    fresh: Mapping[str, float] | None = None,
    excluded: Sequence[str] = (),
    apart: int = 0,
) -> Table:
    """``community`` or ``distributed``: one row for each family (the selected configuration), or
    for every configuration.

    The rows that carry the paper's numbers hold runs of the paper's protocol and inputs alone. Runs
    of another protocol, and runs that see differences on the edges where the paper's do not, have
    rows of their own, named by their recipe. ``metric`` prints another metric of the test split in
    place of the score; the paper's numbers are then left out. ``fresh`` gives, by run id, the score
    on graphs nobody had seen; each column that has such scores gets a second one beside it.
    ``excluded`` names files that could not be believed, and ``apart`` counts runs that stand in
    tables of their own, for the notes.
    """
    paper = paper_numbers(name)
    columns = paper["columns"]
    keys = [
        (column["task"], column["level"], options_text(column.get("options", {})))
        for column in columns
    ]
    forms = [_form(column, metric) for column in columns]
    usable = [_paper_seeds_only(summary) for summary in summaries if summary.column in keys]
    usable = [summary for summary in usable if summary.records and not _fine_tuned(summary)]
    lines = _full_lines(paper, usable) if full else _compact_lines(paper, usable)
    ours = [
        [select(summary for summary in line.members if summary.column == key) for key in keys]
        for line in lines
    ]
    cells = [
        [
            summary_cell(summary, form, metric, show_options=not full)
            for summary, form in zip(row, forms, strict=True)
        ]
        for row in ours
    ]
    paper_cells = [
        [
            _paper_cell(cell, form)
            for cell, form in zip(line.published or [None] * len(keys), forms, strict=True)
        ]
        for line in lines
    ]
    add_ranks(cells, forms)
    add_ranks([row for line, row in zip(lines, paper_cells, strict=True) if line.show_paper], forms)
    if metric is None:
        cells = [
            [judged(*pair) for pair in zip(row, reference, strict=True)]
            for row, reference in zip(cells, paper_cells, strict=True)
        ]
    places = _fresh_places(ours, fresh) if fresh and metric is None else []
    empty = [Cell(form=form, absent="") for form in forms]
    rows: list[Row] = []
    for line, chosen, row, reference in zip(lines, ours, cells, paper_cells, strict=True):
        if not line.show_paper:  # a row for what was run: nothing is missing from it
            row = [cell if cell.spread is not None else replace(cell, absent="") for cell in row]
        beside = [
            _fresh_cell(summary, form, fresh or {})
            for summary, form in zip(chosen, forms, strict=True)
        ]
        rows.append(Row(line.title, "ours", tuple(_interleaved(row, places, beside))))
        if metric is None and line.show_paper:
            rows.append(Row("", "paper", tuple(_interleaved(reference, places, empty))))
    if metric is None:
        constant = constant_row(usable, keys, forms)
        rows.append(replace(constant, cells=tuple(_interleaved(constant.cells, places, empty))))
    title = (
        paper["title"]
        if metric is None
        else (f"{paper['title'].split(':')[0]}: {metric} of the test split, median [min, max]")
    )
    titles = [_column_title(column, metric) for column in columns]
    table = Table(
        title,
        tuple(_interleaved(titles, places, [f"{name} fresh" for name in titles])),
        tuple(rows),
    )
    shown = [summary for row in ours for summary in row if summary is not None]
    notes = [*run_notes(shown, full), *_comparison_notes(table, summaries, usable, excluded)]
    notes += [
        f"{column['title']}: with {text}, our reading of the task."
        for column, (_, _, text) in zip(columns, keys, strict=True)
        if text
    ]
    if apart:
        notes.append(f"{apart} runs of the ablations stand in tables of their own (RESULTS.md).")
    return replace(table, notes=tuple(notes))


def judged(ours: Cell, paper: Cell) -> Cell:
    """Our cell with its verdict: the median inside, above or below the paper's range, at the
    printed precision."""
    if ours.spread is None or paper.spread is None:
        return ours
    middle, low, high = (
        float(format(value, ours.form)) for value in (ours.spread[0], *paper.spread[1:])
    )
    if middle < low:
        return replace(ours, verdict="below", gap=low - middle)
    return (
        replace(ours, verdict="above", gap=middle - high)
        if middle > high
        else replace(ours, verdict="inside")
    )


def _as_published(summary: Summary) -> bool:
    """Whether a run may stand in a row of the paper's."""
    return summary.protocol == "paper" and not summary.differences


def _full_lines(paper: Mapping[str, Any], usable: Sequence[Summary]) -> list[_Line]:
    lines: list[_Line] = []
    used: set[int] = set()
    for row in paper["full"]:
        members = tuple(
            summary
            for summary in usable
            if _as_published(summary) and _is_configuration(summary, row)
        )
        used.update(map(id, members))
        lines.append(_Line(row["title"], members, row["cells"], show_paper=True))

    def place(summary: Summary) -> tuple[Any, ...]:
        return (
            _grid_position(paper, summary),
            configuration_label(summary),
            row_protocol(summary),
            summary.differences,
        )

    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for summary in usable:
        if id(summary) not in used:
            groups.setdefault(place(summary), []).append(summary)
    for key, group in sorted(groups.items()):
        published = paper["full"][key[0]]["cells"] if key[0] < len(paper["full"]) else None
        lines.append(
            _Line(row_title(configuration_label(group[0]), group[0]), tuple(group), published)
        )
    return lines


def _compact_lines(paper: Mapping[str, Any], usable: Sequence[Summary]) -> list[_Line]:
    usable = sorted(usable, key=lambda summary: _grid_position(paper, summary))
    known = {row["family"]: row for row in paper["compact"]}
    lines: list[_Line] = []
    for family, row in known.items():
        members = tuple(
            summary for summary in usable if summary.family == family and _as_published(summary)
        )
        lines.append(_Line(row["title"], members, row["cells"], show_paper=True))
    groups: dict[tuple[str, str, bool], list[Summary]] = {}
    for summary in usable:
        if summary.family not in known or not _as_published(summary):
            groups.setdefault(
                (summary.family, row_protocol(summary), summary.differences), []
            ).append(summary)
    for (family, _, _), group in groups.items():
        title = known[family]["title"] if family in known else group[0].title
        lines.append(
            _Line(
                row_title(title, group[0]),
                tuple(group),
                known[family]["cells"] if family in known else None,
            )
        )
    return lines


def _fresh_places(
    ours: Sequence[Sequence[Summary | None]], fresh: Mapping[str, float]
) -> list[int]:
    """Columns in which some run has been judged on fresh graphs."""
    found = {
        place
        for row in ours
        for place, summary in enumerate(row)
        if summary is not None and any(record.id in fresh for record in summary.records)
    }
    return sorted(found)


def _interleaved(cells: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """``cells`` with ``others[place]`` behind each of the places."""
    return [
        item
        for place, cell in enumerate(cells)
        for item in ([cell, others[place]] if place in places else [cell])
    ]


def _fresh_cell(summary: Summary | None, form: str, fresh: Mapping[str, float]) -> Cell:
    known = (
        [record for record in summary.records if record.id in fresh] if summary is not None else []
    )
    if summary is None or not known:
        return Cell(form=form, absent="")
    values = [fresh[record.id] for record in known]
    return Cell(
        (median(values), min(values), max(values)),
        form,
        (len(known), len(summary.records)),
        runs=tuple(record.id for record in known),
    )


def _comparison_notes(
    table: Table, summaries: Sequence[Summary], usable: Sequence[Summary], excluded: Sequence[str]
) -> list[str]:
    """What the words in the cells mean, and what is not in the table or in rows of its own: named
    and counted."""
    cells = [cell for row in table.rows for cell in row.cells]
    notes = []
    if any(cell.verdict for cell in cells):
        notes.append(
            "inside, above, below: our median against the paper's range [min, max] at "
            "the printed precision, and how far outside."
        )
    if any(summary.differences for summary in usable):
        notes.append(
            f"{DIFFERENCES}: sees differences of raw node features on its edges, its own or the "
            "task's; the paper's models do not. On the "
            "community graphs they tell which edges were rewired."
        )
    if any(title.endswith(" fresh") for title in table.columns):
        notes.append(
            "fresh: ten graphs a level that no training and no choice has seen (sheafdeq "
            "evaluate RUN --fresh)."
        )
    others: dict[str, int] = {}
    for summary in usable:
        if summary.protocol != "paper":
            short = len(summary.protocol) <= LONGEST_NAME
            name = summary.protocol if short else "other settings"
            others[name] = others.get(name, 0) + len(summary.records)
    if others:
        named = "; ".join(f"{protocol}: {count}" for protocol, count in sorted(others.items()))
        notes.append(
            f"{sum(others.values())} runs of another protocol are not in the paper's "
            f"rows but in rows of their own ({named})."
        )
    tuned = sum(len(summary.records) for summary in summaries if _fine_tuned(summary))
    if tuned:
        notes.append(
            f"{tuned} runs that continue another run answer another question and are left out."
        )
    if excluded:
        notes.append(f"{len(excluded)} files excluded: {'; '.join(excluded)}.")
    return notes


def _form(column: Mapping[str, Any], metric: str | None) -> str:
    return f".{column['digits']}f" if metric is None else ".4g"


def _column_title(column: Mapping[str, Any], metric: str | None) -> str:
    return (
        f"{column['title']} ({column['unit']})"
        if metric is None and column["task"] != "community"
        else column["title"]
    )


def _paper_seeds_only(summary: Summary) -> Summary:
    kept = tuple(record for record in summary.records if record.seed in PAPER_SEEDS)
    return Summary(**{**vars(summary), "records": kept})


def _fine_tuned(summary: Summary) -> bool:
    """Runs that continue another one answer another question than the paper's tables."""
    return any(text.startswith("init_from=") for text in summary.deviations)


def _is_configuration(summary: Summary, line: Mapping[str, Any]) -> bool:
    """Whether a run has the options of a row, and names none besides that differ from it."""
    if summary.model != line["model"]:
        return False
    wanted = line["options"]
    return all(summary.all_options.get(key) == value for key, value in wanted.items()) and set(
        summary.options
    ) <= set(wanted)


def _grid_position(paper: Mapping[str, Any], summary: Summary) -> int:
    """The row of the paper's full table with this configuration; its length where there is none."""
    for number, line in enumerate(paper["full"]):
        if _is_configuration(summary, line):
            return number
    return len(paper["full"])


def _paper_cell(value: Any, form: str) -> Cell:
    if value is None:
        return Cell(form=form, absent="")
    if isinstance(value, dict):
        return Cell(form=form, absent="—†" if value["missing"] == "unconverged" else "—")
    return Cell((value[0], value[1], value[2]), form)
