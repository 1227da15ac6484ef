"""``sheafdeq report``: everything the records say, as pages to look at."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, present_folder, schedule_words, whole_number
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import InputError, UsageError

if TYPE_CHECKING:
    from sheafdeq.report.collection import Collection


HELP = "make a folder of pages from the records: open its index.html"


def configure(parser: Parser) -> None:
    """Tables beside the paper's numbers, a page for each run, and a page to compare runs. The
    folder opens from disk and asks no other host for anything. A file that cannot be trusted is
    listed on the first page (exit code 1)."""
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        default=["results"],
        help="run directories or folders of runs (default results)",
    )
    parser.folder("--out", "folder to write", "site")
    parser.add_argument(
        "--results",
        type=present_folder,
        metavar="DIR",
        action="append",
        help="more folders with diagnostic, asynchronous and certificate records (default: "
        "results, if there is one)",
    )
    add_runs(
        parser,
        "explore",
        flag="--explore",
        action="append",
        default=[],
        help="also make the explorer page of this run directory (may be repeated; RUN,RUN puts "
        "two side by side)",
    )
    parser.value("--iterations", whole_number(1, 10**6), "of the explorer pages", 200)
    add_data_options(parser, parts=PARTS)
    parser.value("--schedule", schedule_words, "of the explorer pages", "5,2", metavar="S,TAU")
    parser.answers(run)


def run(options: Any) -> int:
    """Collect, build, say where."""
    from sheafdeq.cli.tables import parameter_counts
    from sheafdeq.report.selection import select, summarise
    from sheafdeq.report.site import build_site
    from sheafdeq.report.tables import parameter_table
    from sheafdeq.training.config import TrainingConfig

    start = time.monotonic()
    for name in options.runs:
        if not Path(name).is_dir():
            raise UsageError(f"{name}: no such folder; give run directories or folders of runs")
    studies = (
        options.results
        if options.results is not None
        else [name for name in ("results",) if Path(name).is_dir()]
    )
    collection = collect_both(options.runs, studies)
    if not collection.runs and not collection.excluded:
        raise InputError(
            f"no run records below {', '.join(options.runs)}: make one with "
            "`sheafdeq train --out runs`"
        )
    for names in options.explore:
        _explore(names, Path(options.out), options)
    parameters = parameter_table(parameter_counts())
    site = build_site(
        collection,
        options.out,
        summarise=summarise,
        select=select,
        configuration=lambda record: TrainingConfig.of_record(record.config, "record").payload(),
        parameters=parameters,
    )
    seconds = time.monotonic() - start
    if options.json:
        facts = {"start": str(site.start), "runs": site.runs, "seconds": round(seconds, 2)}
        print(json.dumps({**facts, "excluded": list(site.excluded)}))
    else:
        print(f"{site.runs} runs in {seconds:.1f} s: open {site.start}")
    for problem in site.excluded:
        print(f"excluded {problem}", file=sys.stderr)
    return 1 if site.excluded else 0


def collect_both(runs: Sequence[str], studies: Sequence[str]) -> Collection:
    """Everything below ``runs``, and what the records below ``studies`` say about those runs."""
    from sheafdeq.report.collection import collect

    found = collect(runs)
    known = {Path(name).resolve() for name in runs}
    more = collect([name for name in studies if Path(name).resolve() not in known])
    ids = {record.id for record in found.runs}

    def merged(kind: str) -> tuple[Any, ...]:
        first, second = getattr(found, kind), getattr(more, kind)
        about = [
            entry
            for entry in second
            if (entry.get("run") if isinstance(entry, dict) else entry.run) in ids
        ]
        return (*first, *(entry for entry in about if entry not in first))

    kinds = ("evaluations", "diagnostics", "studies", "certificates")
    return replace(found, **{kind: merged(kind) for kind in kinds})


def _explore(names: str, out: Path, options: Any) -> None:
    """The explorer page of a run (or of two on one graph), inside the report and filed under the
    first."""
    from sheafdeq.cli.explore import schedule_from, write_explorer
    from sheafdeq.cli.subject import load_subject
    from sheafdeq.report.site import prepare_folder
    from sheafdeq.report.site.environment import page_name

    data = data_choice(options)
    subjects = [
        load_subject(Path(name), options.split, "0", data=data) for name in names.split(",")
    ]
    name = page_name(subjects[0].record.id)
    prepare_folder(out)
    page = out / "explore" / f"{name}.html"
    schedule = schedule_from(options.schedule)
    write_explorer(
        subjects,
        page,
        iterations=options.iterations,
        schedule=schedule,
        back=f"../runs/{name}.html",
    )
