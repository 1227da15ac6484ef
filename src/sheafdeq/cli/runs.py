"""``sheafdeq runs``: the finished runs of a store, filtered, with names every command takes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import (
    Parser,
    model_name,
    present_folder,
    real_number,
    seed_number,
    whole_number,
)
from sheafdeq.cli.choice import PROTOCOL_WORDS
from sheafdeq.cli.models import model_names
from sheafdeq.cli.run_names import STORES, run_name, shortest
from sheafdeq.cli.tasks import task_names
from sheafdeq.errors import RecordError, UsageError
from sheafdeq.options import unknown_name
from sheafdeq.printable import printable
from sheafdeq.report.grid import fitted, terminal_width

if TYPE_CHECKING:
    from sheafdeq.records import RunRecord


HELP = "list finished runs, with names every command takes"


def configure(parser: Parser) -> None:
    """List the runs with a checkpoint below a folder (default: results/runs and runs). The
    beginning of an id, as far as it is unique, stands for the run in every command; so does the
    name that --wide prints."""
    parser.add_argument(
        "stores",
        metavar="STORE",
        nargs="*",
        type=present_folder,
        help=f"folders of runs (default {' and '.join(STORES)})",
    )
    parser.value("--task", str, "only runs of this task", metavar="NAME", known=task_names)
    parser.value("--level", whole_number(0, 10), "only runs of this level")
    parser.value(
        "--model", model_name, "only runs of this model", metavar="NAME", known=model_names
    )
    parser.value("--seed", seed_number, "only runs of this seed", metavar="N")
    parser.value("--protocol", str, PROTOCOL_WORDS, metavar="NAME")
    parser.value("--above", real_number(), "only validation scores of at least so", metavar="SCORE")
    parser.choice(
        "--sort",
        ["task", "validation", "test", "finished"],
        "by task, model and seed (default), by a score (best first), or newest first",
        "task",
    )
    parser.flag("--wide", "every column, however wide the terminal is")
    parser.answers(run)


def run(options: argparse.Namespace) -> int:
    """Print the runs; exit code 1 when one could not be read."""
    stores = options.stores or [name for name in STORES if Path(name).is_dir()]
    if not stores:
        raise UsageError(
            f"there is no folder {' or '.join(STORES)} here: name the folder of the runs"
        )
    found, unreadable = _read(stores)
    names = {record.task.name for _, record in found} | set(task_names())
    if options.task is not None and options.task not in names:
        raise unknown_name("there is no task", options.task, sorted(names))
    rows = [_row(path, record) for path, record in found if _wanted(record, options)]
    rows.sort(key=lambda row: _order(row, options.sort))
    for row in rows:
        del row["place"]
    if options.json:
        print(json.dumps({"runs": rows, "unreadable": unreadable}))
    else:
        _print(rows, len(found), stores, options)
    for problem in unreadable:
        print(f"unreadable {printable(problem)}", file=sys.stderr)
    return 1 if unreadable else 0


def _read(stores: list[str]) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    """Runs with a checkpoint below the folders, each id once, and what could not be read."""
    from sheafdeq.records import read_record, record_paths
    from sheafdeq.training.checkpoint import CHECKPOINT_FACTS

    found: dict[str, tuple[Path, RunRecord]] = {}
    unreadable: list[str] = []
    for path in record_paths(stores, lambda error: unreadable.append(str(error))):
        if not (path.parent / CHECKPOINT_FACTS).is_file():
            continue
        try:
            record = read_record(path)
        except RecordError as error:
            unreadable.append(str(error))
            continue
        found.setdefault(record.id, (path.parent, record))
    return list(found.values()), unreadable


def _wanted(record: RunRecord, options: argparse.Namespace) -> bool:
    from sheafdeq.report.selection import protocol

    return (
        (options.task is None or record.task.name == options.task)
        and (options.level is None or record.task.level == options.level)
        and (options.model is None or record.model.name == options.model)
        and (options.seed is None or record.seed == options.seed)
        and (options.above is None or record.scores["validation"] >= options.above)
        and (options.protocol is None or protocol(record) == options.protocol)
    )


def _row(path: Path, record: RunRecord) -> dict[str, Any]:
    from sheafdeq.registry import MODELS
    from sheafdeq.report.selection import protocol

    known = MODELS.get(record.model.name)
    defaults = known.options if known else {}
    files = record.config["task"].get("files") or {}
    return {
        "id": record.id,
        "name": run_name(
            record.task.name, record.task.level, record.model.name, record.seed, record.id
        ),
        "place": (record.task.name, record.task.level or 0, str(record.task.split or "")),
        "path": str(path),
        "task": record.task.title,
        "model": record.model.name,
        "options": {
            key: value
            for key, value in record.model.options.items()
            if key not in defaults or defaults[key] != value
        },
        "seed": record.seed,
        "protocol": protocol(record),
        "score": record.task.score,
        "validation": record.scores["validation"],
        "test": record.scores["test"],
        "epochs": record.epochs,
        "parameters": record.model.parameters,
        "solves": None if record.solves is None else dict(record.solves.final),
        "residual": None if record.solves is None else record.solves.residual,
        "finished": record.timing.get("finished", ""),
        "files": [file["name"] for file in files.values()],
    }


def _order(row: dict[str, Any], by: str) -> Any:
    if by in ("validation", "test"):
        return (-row[by], row["id"])
    usual = (*row["place"], row["model"], row["seed"], row["id"])
    if by == "finished":
        return tuple(-ord(letter) for letter in row["finished"]), usual
    return usual


def _print(
    rows: list[dict[str, Any]], total: int, stores: list[str], options: argparse.Namespace
) -> None:
    length = shortest([row["id"] for row in rows])
    # short words: the first seven columns fit a terminal of eighty
    head = ["run", "task", "model", "seed", "val", "test", "resid", "protocol", "options"]
    head += ["files", "name"] if options.wide else []
    lines = []
    for row in rows:
        given = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        line = [
            row["id"][:length],
            row["task"],
            row["model"],
            str(row["seed"]),
            f"{row['validation']:.2f}",
            f"{row['test']:.2f}",
            "-" if row["residual"] is None else f"{row['residual']:.1e}",
            row["protocol"],
            given,
        ]
        line += [", ".join(row["files"]), row["name"]] if options.wide else []
        lines.append(tuple(map(printable, line)))
    if lines:
        width = terminal_width(options.wide)
        print(fitted(head, lines, width, right=(3, 4, 5, 6), narrowest=20), end="")
    print(f"{len(rows)} of {total} runs in {', '.join(map(printable, stores))}")
