"""``sheafdeq evaluate``: a finished run on its own task, on another one, or on your own graph."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, model_name, parse_assignments, whole_number
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import RecordError, SheafDEQError, UsageError

if TYPE_CHECKING:
    from sheafdeq.data import Task
    from sheafdeq.evaluation import Checkpoint

GRAPHS = {"fresh": list(range(1000, 1010)), "validation_graphs": list(range(200, 206))}
"""Graph seeds of community tasks that no training and no choice has looked at: ten to judge by, six
to choose by."""


HELP = "judge finished runs on any task they fit"


def configure(parser: Parser) -> None:
    """Load the checkpoint of a run and judge it: on the task it was trained on, on that task with
    other options, on another task, or on your own graph. A model with a guarantee is solved until
    it is at rest, the others run as trained."""
    add_runs(
        parser,
        "runs",
        several=True,
        help="a run (its directory, or the beginning of its id), or a folder: every run below it",
    )
    parser.add_argument(
        "--models",
        "--model",
        type=model_name,
        metavar="NAME",
        nargs="+",
        dest="model",
        help="of a folder, only these models",
    )
    parser.value("--task", str, "another task (default: the run's own)", metavar="NAME")
    parser.value("--level", whole_number(0, 10), "another heterophily level")
    parser.repeated("--task-set", words="a task option (test_seeds=[7,8]); may be repeated")
    parser.flag("--fresh", "community: ten graphs nobody has seen, graph seeds 1000 to 1009")
    parser.flag("--validation-graphs", "community: six graphs to choose by, graph seeds 200 to 205")
    parser.value(
        "--rest",
        whole_number(1, 10**6),
        "also iterate the test graphs in double precision from six starts of scale 1e-3 to 1e3, at "
        "most N steps: does every graph come to rest, in one state?",
        metavar="N",
    )
    add_data_options(parser, parts=(*PARTS, "all"), mask_seed=["--seed"])
    parser.threads()
    parser.folder("--out", "write one record a run (*.eval.json); a record that is there is kept")
    parser.answers(run)


def run(options: argparse.Namespace) -> int:
    """Judge every run; exit code 1 when one could not be judged."""
    import torch

    _check_options(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    results: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    paths = [path for name in options.runs for path in _expand(Path(name), options)]
    single = len(paths) == 1
    for path in dict.fromkeys(paths):
        try:
            payload = _one(path, options)
        except SheafDEQError as error:
            if single:
                raise
            print(f"excluded {path}: {error}", file=sys.stderr)
            excluded.append({"run": str(path), "error": str(error)})
            continue
        results.append(payload)
        if not options.json:
            print(summary(payload))
    if options.json:
        print(json.dumps({"results": results, "excluded": excluded}))
    elif not single:
        print(f"{len(results)} runs evaluated, {len(excluded)} excluded")
    return 1 if excluded else 0


def _check_options(options: argparse.Namespace) -> None:
    named = options.task is not None or options.level is not None or bool(options.task_set)
    if options.fresh and options.validation_graphs:
        raise UsageError("--fresh and --validation-graphs are two sets of graphs: choose one")
    if data_choice(options).files and (named or options.fresh or options.validation_graphs):
        raise UsageError(
            "--task, --level, --task-set, --fresh and --validation-graphs are for "
            "named tasks, not for your own files"
        )


def _expand(path: Path, options: argparse.Namespace) -> list[Path]:
    """A run directory, or all of a folder that hold a checkpoint and fit --model."""
    from sheafdeq.records import RECORD_FILE, record_paths
    from sheafdeq.training.checkpoint import CHECKPOINT_FACTS

    if (path / RECORD_FILE).is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: neither a run directory nor a folder of runs")
    found = [
        file.parent for file in record_paths([path]) if (file.parent / CHECKPOINT_FACTS).is_file()
    ]
    found = [folder for folder in found if _wanted(folder, options)]
    if not found:
        raise UsageError(
            f"{path}: no run with a checkpoint below it"
            + (f" of {options.model}" if options.model else "")
        )
    return found


def _wanted(folder: Path, options: argparse.Namespace) -> bool:
    """Damaged records are kept here, so that they are named and counted where they are read."""
    from sheafdeq.records import read_record

    try:
        record = read_record(folder)
    except RecordError:
        return True
    if options.model and record.model.name not in options.model:
        return False
    return (
        record.task.name == "community"
        or not (options.fresh or options.validation_graphs)
        or options.task is not None
    )


def _one(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    from sheafdeq.evaluation import EVALUATION_FILE, evaluate_checkpoint, load
    from sheafdeq.records import EvaluationRecord, read_sealed, write_sealed

    checkpoint = load(path)
    task, label, words = _task(checkpoint, options)
    splits: Sequence[str] = list(task.splits) if options.split == "all" else [options.split]
    words += ["--split", options.split] if options.split != "test" else []
    file = None
    if options.out:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{checkpoint.name}-{label or task.digest[:8]}{EVALUATION_FILE}"
        if file.is_file():
            present = EvaluationRecord.parse(read_sealed(file), str(file))
            same = (present.run, present.task["digest"]) == (checkpoint.record.id, task.digest)
            asked = (present.rest or {}).get("iterations") == options.rest or options.rest is None
            if same and asked and set(splits) <= set(present.splits):
                print(f"found {file}", file=sys.stderr)
                return present.payload()
    words += ["--rest", str(options.rest)] if options.rest is not None else []
    command = " ".join(["sheafdeq", "evaluate", f"RUN-{checkpoint.record.id[:8]}", *words])
    payload = evaluate_checkpoint(
        checkpoint, task, splits, command=command, label=label, rest=options.rest
    )
    if file is not None:
        write_sealed(file, payload)
        print(f"wrote {file}", file=sys.stderr)
    return payload


def _task(checkpoint: Checkpoint, options: argparse.Namespace) -> tuple[Task, str, list[str]]:
    """The task to judge on, a label for it, and the words of the command that name it."""
    from sheafdeq.cli.subject import task_of_run

    data = data_choice(options)
    changed = options.task is not None or options.level is not None or bool(options.task_set)
    if not changed and not options.fresh and not options.validation_graphs:
        task = task_of_run(checkpoint.path, checkpoint.record, data)
        label = "" if data.fields() else "trained"
        if data.files:
            label = "trained" if task.digest == checkpoint.record.task.digest else "own"
        return task, label, data.words()
    words: list[str] = []
    trained = checkpoint.config.task
    same = options.task is None or options.task == trained.name
    settings: dict[str, Any] = dict(trained.options)
    name, level, split = trained.name, trained.level, trained.split
    if not same:
        name, level, split, settings = options.task, None, None, {}
    if options.task is not None:
        words += ["--task", options.task]
    if options.level is not None:
        level = options.level
        words += ["--level", str(options.level)]
    label = ""
    for key, seeds in GRAPHS.items():
        if getattr(options, key):
            if name != "community":
                raise UsageError(
                    f"--{key.replace('_', '-')} is for community tasks, {name} has no graph seeds"
                )
            settings["test_seeds"] = list(seeds)
            label = key.replace("_", "-")
            words.append(f"--{label}")
    assigned = parse_assignments(options.task_set)
    settings.update(assigned)
    words += [word for text in options.task_set for word in ("--task-set", text)]
    words += data.words()
    split = data.split if data.split is not None else split
    task = replace(data, split=split).task(name, level, settings)
    if label and (assigned or options.task is not None or options.level is not None or data.split):
        label = ""  # not the plain set of graphs any more
    return task, label, words


def summary(payload: dict[str, Any]) -> str:
    """What a person wants to know first."""
    model, task = payload["model"], payload["task"]
    lines = [
        f"{model['title']}, run {payload['run'][:8]}, seed {payload['seed']}, on "
        f"{task['title']}: {task['score']}"
    ]
    for name, part in payload["splits"].items():
        score = "not finite" if part["score"] is None else f"{part['score']:.4f}"
        others = ", ".join(
            f"{key} {'-' if value is None else format(value, '.4g')}"
            for key, value in part["metrics"].items()
        )
        lines.append(
            f"  {name:<11}{score:>10}   {part['scored']:,} scored, {part['graphs']:,} "
            f"graph(s); {others}"
        )
    solves = payload["solves"]
    if solves is None:
        lines.append("  feed-forward: nothing is solved")
    else:
        ended = ", ".join(f"{count} {label}" for label, count in sorted(solves["statuses"].items()))
        residual = "not finite" if solves["residual"] is None else f"{solves['residual']:.3g}"
        lines.append(
            f"  solves     {solves['mode']}: {ended}; largest residual {residual} after "
            f"at most {solves['steps']} steps"
        )
    rest = payload.get("rest")
    if rest is not None:
        lines.append(
            f"  rest       {rest['resting']} of {rest['graphs']} graph(s), from "
            f"{1 + len(rest['scales'])} starts: largest residual {_largest(rest['residual'])}, "
            f"ends {_largest(rest['apart'])} apart, after at most {max(rest['steps'])} steps"
        )
    return "\n".join(lines)


def _largest(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{max(numbers):.1e}" if len(numbers) == len(values) else "not finite"
