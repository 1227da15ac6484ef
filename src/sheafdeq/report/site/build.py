"""Write the report: one folder, opened from disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from sheafdeq.errors import InputError
from sheafdeq.records import RunRecord, write_bytes
from sheafdeq.report.collection import Collection
from sheafdeq.report.site.environment import environment, page_name, script_json
from sheafdeq.report.site.run_page import (
    AboutRun,
    Configuration,
    RunPage,
    configuration_text,
    finite_number,
    known_by_run,
)
from sheafdeq.report.site.table_page import page_table, tables_of
from sheafdeq.report.site.words import clip, duration
from sheafdeq.report.summary import Summary
from sheafdeq.report.tables import Select, Table

__all__ = [
    "ASSETS",
    "FIRST_ROWS",
    "MARKER",
    "Site",
    "Summarise",
    "build_site",
    "prepare_folder",
]


ASSETS = ("site.css", "site.js", "chart.js", "compare.js", "run.js")

FIRST_ROWS = 200
"""Runs laid out when the overview opens; a script adds the others while the reader looks at the
tables."""

MARKER = ".sheafdeq-report"
"""A file that says: this folder was made by the report and may be made again."""

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
    about = known_by_run(collection)
    runs: list[RunPage] = []
    for record in collection.runs:
        try:
            (summary,) = summarise([record])
            explorer = folder / "explore" / f"{page_name(record.id)}.html"
            runs.append(
                RunPage(record, summary, about.get(record.id, AboutRun()), explorer.is_file())
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            text = (
                "the record is sealed but does not say what a run says "
                f"({type(error).__name__}: {error})"
            )
            excluded.append(f"run {clip(record.id, 16)}: {text}")
    summaries = summarise(run.record for run in runs)
    shown_tables = tables_of(summaries, select, collection, parameters)
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
        _write(folder / "configs" / f"{name}.toml", configuration_text(run.record, configuration))
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
        tables=[page_table(table, name, known) for name, table in shown_tables],
        models=sorted({run.record.model.title for run in runs}),
        levels=sorted({run.record.task.level for run in runs if run.record.task.level is not None}),
        explorers=[run for run in runs if run.explorer],
    )
    _write(folder / "index.html", overview)
    _write(
        folder / "compare.html", made.get_template("compare.html").render(root="", title="Compare")
    )
    return Site(folder, len(runs), files + 4 + len(ASSETS), tuple(excluded))


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


def _facts(runs: Sequence[RunPage]) -> list[tuple[str, str]]:
    """The first line of the overview."""
    verdicts = [run.verdict for run in runs]
    recurrent = [run for run in runs if run.record.solves is not None]
    seconds = sum(
        value
        for run in runs
        if (value := finite_number(run.record.timing.get("wall_seconds"))) is not None
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
