"""``sheafdeq sweep``: many runs, interrupted as often as you like."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sheafdeq.cli.arguments import (
    Parser,
    add_assignments,
    parse_assignments,
    present_folder,
    real_number,
    whole_number,
)
from sheafdeq.cli.data_options import add_data_options, data_choice
from sheafdeq.report.grid import fitted, terminal_width

HELP = "run a grid of trainings, or continue one"


def configure(parser: Parser) -> None:
    """Run a preset (or a TOML file of your own) over a run store. Running again continues; finished
    runs are never repeated."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    runner = actions.add_parser(
        "run",
        help="run or continue a sweep",
        description="Compute every run that is not finished; failed ones are tried again.",
    )
    _common(runner)
    runner.choice("--engine", ["local", "ray"], "worker processes here (default), or Ray", "local")
    runner.value("--jobs", whole_number(1, 1024), "runs at the same time", 1, metavar="N")
    runner.value(
        "--budget",
        str,
        "stop after so many epochs in all (500) or so much time (2h); run again to go on",
        metavar="EPOCHS|HOURS",
    )
    runner.value("--checkpoint-seconds", real_number(0), "how often a run's state is saved", 30.0)
    runner.ray_address()
    runner.set_defaults(run=run)
    status = actions.add_parser(
        "status",
        help="what is done and what is left",
        description="Count finished, running, failed and remaining runs.",
    )
    _common(status)
    status.flag("--missing", "also list every run that is not done")
    status.set_defaults(run=show_status)
    export = actions.add_parser(
        "export",
        help="copy the records of finished runs",
        description="Copy the records of a sweep's finished runs into a folder that tables read, "
        "under telling names.",
    )
    _common(export)
    export.folder("--results", "folder to copy into", "results")
    export.flag("--checkpoints", "copy whole run directories, with their checkpoints")
    export.set_defaults(run=copy_records)
    listing = actions.add_parser(
        "list", help="the presets", description="Presets that ship with the package."
    )
    listing.answers(show_list)


def _common(parser: Parser) -> None:
    parser.add_argument(
        "preset", metavar="PRESET", help="a preset (see `sheafdeq sweep list`) or a .toml file"
    )
    parser.folder("--out", "run store", "runs")
    parser.value(
        "--shard", str, "only the I-th of N parts, 1 <= I <= N (a SLURM array)", metavar="I/N"
    )
    parser.value(
        "--threads",
        whole_number(1, 1024),
        "threads of each run (default 1; part of the runs' identity)",
    )
    add_assignments(parser, "of every run")
    add_data_options(parser)
    parser.value(
        "--code-version",
        str,
        "name runs by this label instead of the digest of the sources",
        metavar="LABEL",
    )
    parser.repeated(
        "--recorded",
        words="count runs with a record below DIR as done, whichever version of the sources made "
        "it; may be repeated",
        type=present_folder,
        metavar="DIR",
    )
    parser.flag("--json", "print one JSON object")


def _sweep(options: argparse.Namespace) -> Any:
    import os

    from sheafdeq.report.collection import collect
    from sheafdeq.training.store import RunStore
    from sheafdeq.training.sweep import Sweep, parse_shard
    from sheafdeq.training.version import CODE_VERSION_VARIABLE

    if options.code_version:
        os.environ[CODE_VERSION_VARIABLE] = options.code_version
    overrides = parse_assignments(options.training_set)
    if options.threads is not None:
        overrides["threads"] = options.threads
    data = data_choice(options)
    sweep = Sweep.load(
        options.preset,
        overrides,
        model_options=parse_assignments(options.set),
        task_options={**parse_assignments(options.task_set), **data.options},
        task_fields=data.fields(),
    )
    _check_options_fit(sweep)
    store = RunStore(options.out)
    recorded = collect(options.recorded, studies=False)
    for problem in recorded.excluded:
        print(f"excluded {problem}", file=sys.stderr)
    return (
        sweep,
        store,
        sweep.plan(
            store,
            parse_shard(options.shard),
            recorded.runs,
            download=data.download,
        ),
    )


def _check_options_fit(sweep: Any) -> None:
    """An option of the command line that every model (or task) of the sweep refuses is a slip of
    the pen; one that some take fails the others' runs."""
    from sheafdeq.data.catalogue import entries
    from sheafdeq.errors import OptionError
    from sheafdeq.options import check_options
    from sheafdeq.registry import model_spec
    from sheafdeq.training.run_identity import OWN_TYPES

    tasks = {entry.name: entry.types for entry in entries()}
    configs = sweep.configs()
    models = {config.model.name for config in configs}
    named = {config.task.name: config.task.files is not None for config in configs}
    owners = (
        (sweep.model_options, [(f"model {name!r}", model_spec(name).types) for name in models]),
        (
            sweep.task_options,
            [
                (f"task {name!r}", OWN_TYPES if own else tasks[name])
                for name, own in named.items()
                if own or name in tasks
            ],
        ),
    )
    for given, known in owners:
        for key, value in given.items():
            refused: list[tuple[bool, OptionError]] = []
            for owner, types in sorted(known, key=lambda pair: pair[0]):
                try:
                    check_options({key: value}, types, owner)
                except OptionError as error:
                    refused.append((key not in types, error))
            if known and len(refused) == len(known):  # a wrong value says more than a wrong name
                raise min(refused, key=lambda pair: pair[0])[1]


def run(options: argparse.Namespace) -> int:
    """Run or continue a sweep; exit code 1 while runs have failed or are left."""
    from sheafdeq.training.sweep import Budget, Manner

    budget = Budget.parse(options.budget)
    sweep, store, everything = _sweep(options)
    entries = [entry for entry in everything if entry.recorded is None]

    def tell(line: str) -> None:
        print(f"{sweep.name}: {line}", file=sys.stderr, flush=True)

    manner = Manner(options.jobs, budget, options.checkpoint_seconds, tell)
    if options.engine == "ray":
        from sheafdeq.training.engines.ray import run_ray

        run_ray(entries, store, manner, options.ray_address)
    else:
        from sheafdeq.training.engines.local import run_local

        run_local(entries, store, manner)
    status = sweep.status(store, everything)
    _print_status(status, options.json)
    return (
        0 if status["done"] == status["total"] or (options.budget and not status["failed"]) else 1
    )


def show_status(options: argparse.Namespace) -> int:
    """Print the counts."""
    sweep, store, entries = _sweep(options)
    _print_status(sweep.status(store, entries), options.json, options.missing)
    return 0


def copy_records(options: argparse.Namespace) -> int:
    """Copy records, or whole runs, of a sweep; every file arrives whole, and none outside the
    folder."""
    from pathlib import Path

    from sheafdeq.errors import RecordError, UsageError
    from sheafdeq.records import RECORD_FILE, write_bytes
    from sheafdeq.regular_file import read_regular
    from sheafdeq.training.store import RUN_FILES, safe_name

    sweep, store, entries = _sweep(options)
    folder = Path(options.results) / safe_name(sweep.name)
    copied, damaged = 0, []
    for entry in entries:
        if entry.identity is None or not store.finished(entry.identity.id):
            continue
        try:
            record = store.record(entry.identity.id)
        except RecordError as error:
            damaged.append(str(error))
            continue
        level = "" if record.task.level is None else f"-{record.task.level}"
        level += "" if record.task.split is None else f"-split{record.task.split}"
        given = "".join(f"-{value}" for value in entry.config.model.options.values())
        name = safe_name(f"{record.task.name}{level}-{record.model.name}{given}-seed{record.seed}")
        target = folder / f"{name}-{record.id[:8]}"
        place = target if options.checkpoints else folder
        place.mkdir(parents=True, exist_ok=True)
        if not place.resolve().is_relative_to(Path(options.results).resolve()):
            raise UsageError(f"{place} leads out of {options.results} (a symbolic link): remove it")
        source = store.path(record.id)
        if options.checkpoints:
            for file in reversed(RUN_FILES):  # the record last: a folder with one is complete
                write_bytes(target / file, read_regular(source / file))
        else:
            write_bytes(folder / f"{target.name}.run.json", read_regular(source / RECORD_FILE))
        copied += 1
    missing = len(entries) - copied - len(damaged)
    facts = {"copied": copied, "missing": missing, "damaged": damaged, "folder": str(folder)}
    print(
        json.dumps(facts)
        if options.json
        else f"{copied} runs copied to {folder}, {missing} not finished"
    )
    for message in damaged:
        print(f"not copied: {message}", file=sys.stderr)
    return 1 if damaged else 0


def show_list(options: argparse.Namespace) -> int:
    """Print the presets."""
    from sheafdeq.training.sweep import Sweep, preset_names

    presets = {name: Sweep.load(name) for name in preset_names()}
    if options.json:
        facts = {
            name: {"description": sweep.file.description, "runs": len(sweep.configs())}
            for name, sweep in presets.items()
        }
        print(json.dumps(facts))
        return 0
    lines = [
        (name, str(len(sweep.configs())), sweep.file.description) for name, sweep in presets.items()
    ]
    width = terminal_width()
    print(fitted(("preset", "runs", "what"), lines, width, right=(1,), narrowest=30), end="")
    return 0


def _print_status(status: dict[str, Any], as_json: bool, missing: bool = False) -> None:
    if as_json:
        print(json.dumps(status, sort_keys=True))
        return
    left = status["seconds_left"]
    remaining = (
        "unknown"
        if left is None
        else f"{left / 3600:.1f} h"
        if left >= 3600
        else f"{left / 60:.1f} min"
    )
    print(
        f"{status['sweep']}: {status['done']} done, {status['running']} running, "
        f"{status['failed']} failed, "
        f"{status['left']} left, {status['total']} in all; time left {remaining}"
    )
    for group in status["groups"]:
        print(f"  {group['done']:>4} of {group['total']:<4} {group['title']}")
    if missing:
        for run in status["missing"]:
            print(
                f"  {run['state']:<8} {run['run']}" + (f" ({run['group']})" if run["group"] else "")
            )
    runs_of: dict[str, list[str]] = {}  # what is wrong with many runs is said once
    for failure in status["failures"]:
        runs_of.setdefault(failure["error"], []).append(failure["run"])
    for error, runs in runs_of.items():
        others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        print(f"  failed: {runs[0]}{others}: {error}")
