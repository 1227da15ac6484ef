"""Tables from records, with the paper's number beside ours.

A table is a list of rows of plain :class:`Cell` values and knows nothing of formats; :func:`render`
writes it as text, Markdown, LaTeX, CSV or HTML. Numbers come from two places only: run records and
the paper's figures in ``report/paper``.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.printable import csv_text, markdown_text, printable
from sheafdeq.records import Summary

__all__ = [
    "FORMATS",
    "PAPER_SEEDS",
    "Cell",
    "Row",
    "Table",
    "grid",
    "only_columns",
    "overview_table",
    "paper_numbers",
    "paper_table",
    "parameter_table",
    "rank",
    "render",
    "staleness_table",
]

FORMATS = ("text", "markdown", "latex", "csv", "html")
PAPER_SEEDS = (42, 43, 44, 45, 46)
CSV_HEADER = (
    "model",
    "source",
    "column",
    "median",
    "min",
    "max",
    "finished",
    "planned",
    "rank",
    "marks",
    "configuration",
    "verdict",
    "gap",
)
DIFFERENCES = "Δ"
"""In the title of a row: the model sees differences of raw node features on its edges."""
ASYNC_SCHEMA = "sheafdeq.async/1"
Select = Callable[[Iterable[Summary]], Summary | None]
Column = tuple[str, int | None, str]  # task, level, further task options


@cache
def paper_numbers(name: str) -> dict[str, Any]:
    """The paper's figures: ``community``, ``distributed``, ``parameters`` or ``staleness``."""
    path = resources.files("sheafdeq.report") / "paper" / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"the paper has no table {name!r}") from error


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

    def text(self) -> str:
        """``98.6 [96.9, 99.1] 5/5 above 0.2 (1st)``, or why there is nothing."""
        if self.spread is None:
            return self.absent
        middle, low, high = (format(value, self.form) for value in self.spread)
        words = [middle if middle == low == high else f"{middle} [{low}, {high}]"]
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


# ---------------------------------------------------------------------- the paper's two result
# tables


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
) -> Table:
    """``community`` or ``distributed``: one row for each family (the selected configuration), or
    for every configuration.

    The rows that carry the paper's numbers hold runs of the paper's protocol and inputs alone. Runs
    of another protocol, and runs that see differences on the edges where the paper's do not, have
    rows of their own, named by their recipe. ``metric`` prints another metric of the test split in
    place of the score; the paper's numbers are then left out. ``fresh`` gives, by run id, the score
    on graphs nobody had seen; each column that has such scores gets a second one beside it.
    ``excluded`` names files that could not be believed, for the notes.
    """
    paper = paper_numbers(name)
    columns = paper["columns"]
    keys = [(column["task"], column["level"], "") for column in columns]
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
            _summary_cell(summary, form, metric, show_options=not full)
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
    _add_ranks(cells, forms)
    _add_ranks(
        [row for line, row in zip(lines, paper_cells, strict=True) if line.show_paper], forms
    )
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
        constant = _constant_row(usable, keys, forms)
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
    return replace(
        table, notes=(*_notes(shown, full), *_comparison_notes(table, summaries, usable, excluded))
    )


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
            _label(summary),
            _row_protocol(summary),
            summary.differences,
        )

    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for summary in usable:
        if id(summary) not in used:
            groups.setdefault(place(summary), []).append(summary)
    for key, group in sorted(groups.items()):
        published = paper["full"][key[0]]["cells"] if key[0] < len(paper["full"]) else None
        lines.append(_Line(_row_title(_label(group[0]), group[0]), tuple(group), published))
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
                (summary.family, _row_protocol(summary), summary.differences), []
            ).append(summary)
    for (family, _, _), group in groups.items():
        title = known[family]["title"] if family in known else group[0].title
        lines.append(
            _Line(
                _row_title(title, group[0]),
                tuple(group),
                known[family]["cells"] if family in known else None,
            )
        )
    return lines


def _row_title(title: str, summary: Summary) -> str:
    """The model, whether it sees differences, and how it was trained if not by the paper's
    protocol."""
    seen = f" {DIFFERENCES}" if summary.differences else ""
    protocol = _row_protocol(summary)
    return f"{title}{seen}" + ("" if protocol == "paper" else f" [{protocol}]")


def _row_protocol(summary: Summary) -> str:
    """Recipes that differ by their task alone (``cascade``, ``cascade-coordinates``) share a
    row."""
    name, _, task = summary.protocol.rpartition("-")
    return name if name.startswith("recipe ") and task in summary.column[0] else summary.protocol


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
            others[summary.protocol] = others.get(summary.protocol, 0) + len(summary.records)
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


def _label(summary: Summary) -> str:
    return ", ".join([summary.title, *(f"{key} {value}" for key, value in summary.options.items())])


def _grid_position(paper: Mapping[str, Any], summary: Summary) -> int:
    """The row of the paper's full table with this configuration; its length where there is none."""
    for number, line in enumerate(paper["full"]):
        if _is_configuration(summary, line):
            return number
    return len(paper["full"])


def _summary_cell(
    summary: Summary | None,
    form: str,
    metric: str | None,
    *,
    show_options: bool,
    planned: int = len(PAPER_SEEDS),
) -> Cell:
    if summary is None:
        return Cell(form=form)
    marks = ("†",) if summary.unconverged else ()
    note = (
        ", ".join(f"{key} {value}" for key, value in summary.options.items())
        if show_options
        else ""
    )
    runs = tuple(record.id for record in summary.records)
    return Cell(
        summary.spread(metric), form, (len(summary.records), planned), marks, None, note, runs=runs
    )


def _paper_cell(value: Any, form: str) -> Cell:
    if value is None:
        return Cell(form=form, absent="")
    if isinstance(value, dict):
        return Cell(form=form, absent="—†" if value["missing"] == "unconverged" else "—")
    return Cell((value[0], value[1], value[2]), form)


def _constant_row(
    summaries: Sequence[Summary], keys: Sequence[Column], forms: Sequence[str]
) -> Row:
    """Test score of the best predictor that ignores its input; every record carries it."""
    cells = []
    for key, form in zip(keys, forms, strict=True):
        values = [
            summary.records[0].task.constant_score for summary in summaries if summary.column == key
        ]
        value = values[0] if values else None
        cells.append(Cell(form=form) if value is None else Cell((value, value, value), form))
    return Row("constant predictor", "ours", tuple(cells))


def _add_ranks(lines: list[list[Cell]], forms: Sequence[str]) -> None:
    for column, form in enumerate(forms):
        medians = [spread[0] if (spread := line[column].spread) else None for line in lines]
        if sum(value is not None for value in medians) < 2:
            continue  # a row that stands alone is not first
        ranks = rank(medians, form)
        for line, place in zip(lines, ranks, strict=True):
            line[column] = Cell(**{**vars(line[column]), "rank": place})


def _notes(shown: Sequence[Summary], full: bool) -> tuple[str, ...]:
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


def only_columns(table: Table, titles: Sequence[str]) -> Table:
    """Some columns of a table. Rows of ours that have nothing in them go, with the paper's row
    below."""
    unknown = [title for title in titles if title not in table.columns]
    if unknown:
        raise InputError(
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


# ---------------------------------------------------------------------- other tables


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
        key=lambda summary: (summary.model, _label(summary), summary.protocol, summary.differences),
    )

    def row_of(summary: Summary) -> str:
        return _row_title(_label(summary) if full else summary.title, summary)

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
                _summary_cell(summary, form, metric, show_options=not full, planned=planned)
                for summary, form in zip(picked, forms, strict=True)
            ]
        )
    _add_ranks(lines, forms)
    rows = [Row(title, "ours", tuple(line)) for title, line in zip(titles, lines, strict=True)]
    if metric is None:
        rows.append(_constant_row(summaries, keys, forms))
    titles = [
        _key_title(key) + f": {_score_name(summaries, key) if metric is None else metric}"
        for key in keys
    ]
    notes = tuple(
        note.replace("/5: seeds finished of 42 to 46", f"/{planned}: seeds finished")
        for note in _notes(chosen, full)
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


def parameter_table(counts: Mapping[int, Sequence[tuple[str, Mapping[str, Any], int]]]) -> Table:
    """Trainable parameters by input width f: ``counts[f]`` lists (model, options, number)."""
    paper = paper_numbers("parameters")
    widths = sorted(counts)
    rows = []
    for line in paper["rows"]:
        cells = []
        for width in widths:
            wanted = (line["model"], line["options"])
            number = next(
                (count for model, options, count in counts[width] if (model, options) == wanted),
                None,
            )
            cells.append(_count_cell(number))
        cells.append(_count_cell(line["count"]))
        rows.append(Row(line["title"], "", tuple(cells)))
    notes = (
        "The task has two input features; every count the paper prints that can be matched needs "
        "three.",
        "The text of the paper gives 10,798 for SheafDEQ with three features; no reading of it "
        "gives the printed 11,045.",
    )
    return Table(
        paper["title"], (*(f"ours, f = {width}" for width in widths), "paper"), tuple(rows), notes
    )


def _count_cell(number: int | None) -> Cell:
    return Cell() if number is None else Cell((number, number, number), ",.0f")


def staleness_table(payloads: Sequence[Mapping[str, Any]], *, full: bool = False) -> Table:
    """d_out under bounded staleness; ``payloads`` are what ``sheafdeq async`` writes (schema
    ``sheafdeq.async/1``).

    Every level-7 run with a study of the schedules has a row of its own beside the paper's; runs of
    models the paper did not measure follow. Studies of faults and of long delays are other
    experiments and are left out.
    """
    paper = paper_numbers("staleness")
    lines = [line for line in paper["rows"] if full or line["compact"]]
    studies = [
        p
        for p in payloads
        if p["study"] == "schedules" and (p["task"] or {}).get("level") in (7, None)
    ]
    rows, notes = [], []

    def add(study: Mapping[str, Any], title: str, condition: tuple[int, int]) -> bool:
        cell = _staleness_cell(study, condition)
        if cell is None:
            return False
        run = (study.get("run") or "")[:8]
        rows.append(Row(title, f"ours {run}".strip(), (cell,)))
        reference = study["reference"]
        notes.append(
            f"{study['model']['title']} {run}: reference {reference['kind']}, "
            f"{reference['steps']} iterations, {reference['status']}; "
            f"simulation {study['simulation']}"
        )
        return True

    for line in lines:
        condition = (line["update_window"], line["max_delay"])
        title = f"{line['title']} {condition}"
        found = [
            study
            for study in studies
            if study["model"]["name"] == line["model"] and add(study, title, condition)
        ]
        if not found:
            rows.append(Row(title, "ours", (Cell(form=".2e"),)))
        rows.append(Row("", "paper", (Cell(tuple(line["d_out"]), ".2e"),)))
    known = {line["model"] for line in paper["rows"]}
    for study in studies:
        if study["model"]["name"] not in known:
            for condition in dict.fromkeys(
                (line["update_window"], line["max_delay"]) for line in lines
            ):
                add(study, f"{study['model']['title']} {condition}", condition)
    if any(cell.marks for row in rows for cell in row.cells):
        notes.append(
            "† the synchronous reference itself did not settle: d_out compares two "
            "moments of something that moves"
        )
    return Table(paper["title"], ("d_out",), tuple(rows), tuple(dict.fromkeys(notes)))


def _staleness_cell(study: Mapping[str, Any], condition: tuple[int, int]) -> Cell | None:
    for found in study["conditions"]:
        if (found["update_window"], found["max_delay"]) == condition:
            spread = found["d_out"]
            values = None if spread is None else (spread["median"], spread["min"], spread["max"])
            marks = () if study["reference"]["status"] == "converged" else ("†",)
            runs = (study["run"],) if study.get("run") else ()
            return Cell(values, ".2e", (found["counted"], found["samples"]), marks, runs=runs)
    return None


# ---------------------------------------------------------------------- formats


def render(table: Table, form: str = "text") -> str:
    """The table as text, Markdown, LaTeX, CSV (one line for each number) or HTML."""
    writers = {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv, "html": _html}
    if form not in writers:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    return writers[form](table)


def grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text, control characters escaped."""
    with_source = any(row.source for row in table.rows)
    header = ["Model", *([""] if with_source else []), *table.columns]
    body = [
        [row.title, *([row.source] if with_source else []), *(cell.text() for cell in row.cells)]
        for row in table.rows
    ]
    return [printable(word) for word in header], [
        [printable(word) for word in line] for line in body
    ]


def _text(table: Table) -> str:
    header, body = grid(table)
    widths = [max(len(line[index]) for line in [header, *body]) for index in range(len(header))]

    def line(words: Sequence[str]) -> str:
        return "  ".join(
            word.ljust(width) for word, width in zip(words, widths, strict=True)
        ).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    around = [printable(text) for text in (table.title, *table.notes)]
    return (
        "\n".join([around[0], rule, line(header), rule, *map(line, body), rule, *around[1:]]) + "\n"
    )


def _markdown(table: Table) -> str:
    header, body = grid(table)

    def line(words: Sequence[str]) -> str:
        return "| " + " | ".join(map(markdown_text, words)) + " |"

    rule = "|" + "|".join(" --- " for _ in header) + "|"
    notes = [f"\n{markdown_text(note)}" for note in table.notes]
    return (
        "\n".join(
            [f"**{markdown_text(table.title)}**", "", line(header), rule, *map(line, body), *notes]
        )
        + "\n"
    )


_TEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "†": r"$^\dagger$",
    "—": "---",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in printable(text))


def _latex(table: Table) -> str:
    header, body = grid(table)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(header)}}}",
        r"\toprule",
        " & ".join(map(_tex, header)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, line)) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_tex(note)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    title = ""
    for row in table.rows:
        title = row.title or title  # the paper's line belongs to the model above it
        for column, cell in zip(table.columns, row.cells, strict=True):
            spread: tuple[Any, ...] = cell.spread if cell.spread is not None else ("", "", "")
            seeds: tuple[Any, ...] = cell.seeds if cell.seeds is not None else ("", "")
            place = "" if cell.rank is None else cell.rank
            absent = cell.absent if cell.spread is None else ""
            verdict = (cell.verdict, format(cell.gap, cell.form) if cell.verdict else "")
            words = (title, row.source, column, " ".join(cell.marks) or absent, cell.note)
            model, source, heading, marks, note = map(csv_text, words)
            writer.writerow([model, source, heading, *spread, *seeds, place, marks, note, *verdict])
    return stream.getvalue()


def _html(table: Table) -> str:
    header, body = grid(table)
    lines = [
        "<table>",
        f"<caption>{html.escape(printable(table.title))}</caption>",
        "<thead><tr>"
        + "".join(f'<th scope="col">{html.escape(word)}</th>' for word in header)
        + "</tr></thead>",
        "<tbody>",
    ]
    for line in body:
        first, *rest = map(html.escape, line)
        lines.append(
            f'<tr><th scope="row">{first}</th>'
            + "".join(f"<td>{word}</td>" for word in rest)
            + "</tr>"
        )
    lines += [
        "</tbody>",
        "</table>",
        *(f"<p>{html.escape(printable(note))}</p>" for note in table.notes),
    ]
    return "\n".join(lines) + "\n"
