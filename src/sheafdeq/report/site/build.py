"""Write the report: one folder, opened from disk."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.errors import InputError, UsageError
from sheafdeq.records import EvaluationRecord, RunRecord, verdict_of, write_bytes
from sheafdeq.report import tables
from sheafdeq.report.collection import Collection
from sheafdeq.report.site.charts import charts_of
from sheafdeq.report.site.words import (
    certificate_sentences,
    clip,
    duration,
    number,
    option_text,
    run_sentences,
    shown,
    toml_of,
)
from sheafdeq.report.style import look_of_model
from sheafdeq.report.summary import Summary
from sheafdeq.report.tables import Cell, Select, Table

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "ASSETS",
    "MARKER",
    "POLICY",
    "Site",
    "build_site",
    "environment",
    "page_name",
    "prepare_folder",
    "script_json",
]

ASSETS = ("site.css", "site.js", "chart.js", "compare.js", "run.js")
FIRST_ROWS = 200
"""Runs laid out when the overview opens; a script adds the others while the reader looks at the
tables."""

MARKER = ".sheafdeq-report"
"""A file that says: this folder was made by the report and may be made again."""

POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: "
    "data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Scripts and styles from this folder alone: markup that slipped through could neither run nor call
anyone."""

Configuration = Callable[[RunRecord], Mapping[str, Any]]
Summarise = Callable[[Iterable[RunRecord]], list[Summary]]


@dataclass(frozen=True)
class Site:
    """What was written."""

    out: Path
    runs: int
    files: int
    excluded: tuple[str, ...] = field(default=())  # file and reason

    @property
    def start(self) -> Path:
        """The page to open."""
        return self.out / "index.html"


def environment() -> Environment:
    """Jinja2 with autoescaping; an undefined name is an error."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:  # pragma: no cover - torch brings Jinja2 along
        raise UsageError("the report needs Jinja2: pip install 'sheafdeq[report]'") from error
    made = Environment(
        loader=PackageLoader("sheafdeq.report.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, duration=duration, shown=shown, clip=clip)
    made.globals["policy"] = POLICY
    return made


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element or file: no character of it can end the element
    or the line."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_name(run: str) -> str:
    """A file name for a run: its own id where that is a digest, else the digest of it."""
    return (
        run
        if re.fullmatch(r"[0-9a-f]{16,64}", run)
        else hashlib.sha256(run.encode("utf-8", "replace")).hexdigest()
    )


def build_site(
    collection: Collection,
    out: str | Path,
    *,
    summarise: Summarise,
    select: Select,
    configuration: Configuration,
    parameters: Table | None = None,
) -> Site:
    """Overview, a page for each run, compare, and the data they share.

    ``summarise`` and ``select`` are the rules of the terminal tables
    (:mod:`sheafdeq.report.selection`), so that both show the same numbers. ``configuration``
    gives a record's configuration as today's ``sheafdeq train`` reads it. Explorer pages that stand
    in ``out/explore`` are linked.
    """
    folder = prepare_folder(out)
    made = environment()
    excluded = list(collection.excluded)
    about = _by_run(collection)
    runs: list[_Run] = []
    for record in collection.runs:
        try:
            (summary,) = summarise([record])
            explorer = folder / "explore" / f"{page_name(record.id)}.html"
            runs.append(_Run(record, summary, about.get(record.id, _About()), explorer.is_file()))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            text = (
                "the record is sealed but does not say what a run says "
                f"({type(error).__name__}: {error})"
            )
            excluded.append(f"run {clip(record.id, 16)}: {text}")
    summaries = summarise(run.record for run in runs)
    shown_tables = _tables(summaries, select, collection, parameters)
    known = {run.record.id for run in runs}
    files = 0
    for asset in ASSETS:
        source = resources.files("sheafdeq.report.site") / "assets" / asset
        _write(folder / asset, source.read_text(encoding="utf-8"))
    page = made.get_template("run.html")
    for run in runs:
        name = run.name
        data = {"id": run.record.id, "title": run.label, "charts": run.charts}
        _write(folder / "data" / f"{name}.js", f"sheafdeqReceive({script_json(data)});\n")
        _write(folder / "configs" / f"{name}.toml", _toml(run.record, configuration))
        _write(folder / "runs" / f"{name}.html", page.render(run=run, root="../", title=run.label))
        files += 3
    facts = _facts(runs)
    _write(
        folder / "data" / "index.js",
        f"sheafdeqIndex({script_json([run.index for run in runs])});\n",
    )
    overview = made.get_template("overview.html").render(
        root="",
        title="Overview",
        runs=runs[:FIRST_ROWS],
        later=runs[FIRST_ROWS:],
        facts=facts,
        excluded=excluded,
        tables=[_page_table(table, name, known) for name, table in shown_tables],
        models=sorted({run.record.model.title for run in runs}),
        levels=sorted({run.record.task.level for run in runs if run.record.task.level is not None}),
        explorers=[run for run in runs if run.explorer],
    )
    _write(folder / "index.html", overview)
    _write(
        folder / "compare.html", made.get_template("compare.html").render(root="", title="Compare")
    )
    return Site(folder, len(runs), files + 4 + len(ASSETS), tuple(excluded))


def _toml(record: RunRecord, configuration: Configuration) -> str:
    """The configuration file that repeats a run, or why there is none."""
    try:
        return toml_of(configuration(record))
    except (InputError, KeyError, TypeError, ValueError) as error:
        lines = clip(f"This version cannot repeat the run: {error}", 500).splitlines()
        return "".join(f"# {line}\n" for line in lines) + toml_of(record.config)


def prepare_folder(out: str | Path) -> Path:
    """An empty folder marked as ours, or one of ours with the pages of last time removed; anything
    else is refused."""
    folder = Path(out)
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"{folder}: a file of this name exists; give another folder by --out")
        if any(folder.iterdir()) and not (folder / MARKER).is_file():
            raise InputError(
                f"{folder}: not empty and not made by `sheafdeq report`; give "
                "another folder by --out"
            )
        for name in ("runs", "data", "configs"):
            shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    # first: a killed report may be made again, too
    _write(folder / MARKER, "made by `sheafdeq report`; may be made again\n")
    for name in ("runs", "data", "configs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "replace"))


# ---------------------------------------------------------------------- one run


@dataclass
class _About:
    """What other records say about one run."""

    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    studies: list[dict[str, Any]] = field(default_factory=list)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)


def _by_run(collection: Collection) -> dict[str, _About]:
    """Studies, certificates and evaluations by the run they are about."""
    found: dict[str, _About] = {}
    for kind in ("diagnostics", "studies", "certificates"):
        for payload in getattr(collection, kind):
            if isinstance(payload, dict) and isinstance(payload.get("run"), str):
                getattr(found.setdefault(payload["run"], _About()), kind).append(payload)
    for evaluation in collection.evaluations:
        found.setdefault(evaluation.run, _About()).evaluations.append(evaluation)
    return found


class _Run:
    """Everything the pages say about one run."""

    def __init__(self, record: RunRecord, summary: Summary, about: _About, explorer: bool) -> None:
        self.record = record
        self.explorer = explorer
        self.name = page_name(record.id)
        self.short = clip(record.id, 8).split("…")[0]
        self.options = option_text(summary.options)
        self.deviations = [clip(text) for text in summary.deviations]
        self.label = clip(f"{record.model.title}, {record.task.title}, seed {record.seed}", 160)
        self.diagnostics, self.staleness = about.diagnostics, about.studies
        self.evaluations = about.evaluations
        self.certificates = [
            {
                **certificate,
                "part": payload.get("part"),
                "effort": payload.get("effort"),
                "words": certificate_sentences(certificate),
            }
            for payload in about.certificates
            for certificate in (
                {**payload["certificate"], "verdict": verdict_of(payload["certificate"])},
            )
        ]
        self.sentences = run_sentences(record, self.diagnostics)
        self.charts = charts_of(record, self.diagnostics, self.staleness)
        self.starts = [_starts(payload) for payload in self.diagnostics]
        self.settled = _settled(record)

    @property
    def verdict(self) -> str:
        """The strongest thing that is proved: refuted before certified before nothing."""
        verdicts = [str(certificate["verdict"]) for certificate in self.certificates]
        return next(
            (
                verdict
                for verdict in ("refuted", "certified", "two candidates", "not certified")
                if verdict in verdicts
            ),
            "",
        )

    @property
    def trust(self) -> dict[str, Any] | None:
        """Residual and score at the end of continued iteration from the default start, if that was
        recorded."""
        for payload in self.diagnostics:
            trajectory = payload["continued"]["trajectories"][0]
            update, score = trajectory.get("update") or [None], trajectory.get("score") or [None]
            if isinstance(update[-1], int | float) and isinstance(score[-1], int | float):
                return {
                    "residual": update[-1],
                    "score": score[-1],
                    "iterations": payload["continued"]["iterations"],
                }
        return None

    @property
    def index(self) -> dict[str, Any]:
        """What compare needs to know of every run."""
        record = self.record
        return {
            "id": record.id,
            "page": self.name,
            "label": self.label,
            "model": clip(record.model.title, 80),
            "options": self.options,
            "task": clip(record.task.title, 80),
            "seed": record.seed,
            "score": clip(record.task.score, 60),
            "scores": {key: _finite(value) for key, value in record.scores.items()},
            "parameters": record.model.parameters,
            "epochs": record.epochs,
            "best": record.best.epoch,
            "protocol": ", ".join(self.deviations) or "the paper's",
            "settled": self.settled,
            "residual": None if record.solves is None else _finite(record.solves.residual),
            "verdict": self.verdict,
            "seconds": _finite(record.timing.get("wall_seconds")),
            "trust": self.trust,
            "colour": look_of_model(record.model.name).colour,
        }


def _finite(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _settled(record: RunRecord) -> str:
    """How the solves of the final evaluation ended, in one or two words."""
    if record.solves is None:
        return "feed-forward"
    if set(record.solves.final) == {"converged"}:
        return "converged"
    return "unconverged †" if record.solves.unconverged else "not at rest"


def _starts(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A table of the starts of one diagnose record."""
    continued = payload["continued"]
    agreement = continued["agreement"]
    group_of = {
        start: place for place, group in enumerate(agreement["groups"], 1) for start in group
    }
    same = dict(zip(agreement["starts"], agreement["same_prediction"] or [], strict=False))
    rows = []
    for trajectory in continued["trajectories"]:
        settling = trajectory["settling"]
        nodes = sum(settling["counts"]) + settling["unsettled"]
        rows.append(
            {
                "start": trajectory["start"],
                "status": trajectory["status"],
                "residual": (trajectory["update"] or [None])[-1],
                "score": (trajectory["score"] or [None])[-1],
                "median": settling["median"],
                "moving": settling["unsettled"] / nodes if nodes else None,
                "group": group_of.get(trajectory["start"]),
                "same": same.get(trajectory["start"]),
            }
        )
    return {
        "label": payload.get("label"),
        "graph": payload["graph"],
        "iterations": continued["iterations"],
        "tolerance": continued["trajectories"][0]["settling"]["tolerance"],
        "groups": len(agreement["groups"]),
        "rows": rows,
        "spectrum": payload.get("spectrum"),
        "command": payload.get("command"),
    }


# ---------------------------------------------------------------------- tables


def _facts(runs: Sequence[_Run]) -> list[tuple[str, str]]:
    """The first line of the overview."""
    verdicts = [run.verdict for run in runs]
    recurrent = [run for run in runs if run.record.solves is not None]
    seconds = sum(
        value
        for run in runs
        if (value := _finite(run.record.timing.get("wall_seconds"))) is not None
    )
    return [
        ("runs", f"{len(runs):,}"),
        ("models", str(len({run.record.model.name for run in runs}))),
        ("tasks", str(len({run.record.task.title for run in runs}))),
        (
            "at rest when read out",
            f"{sum(run.settled == 'converged' for run in recurrent)} of {len(recurrent)}",
        ),
        ("certified", str(verdicts.count("certified"))),
        (
            "refuted, two candidates",
            f"{verdicts.count('refuted')}, {verdicts.count('two candidates')}",
        ),
        ("training time", duration(seconds)),
    ]


def _tables(
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


def _page_table(table: Table, name: str, known: set[str]) -> dict[str, Any]:
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
