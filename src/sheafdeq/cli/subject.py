"""What ``diagnose`` and ``async`` examine: a trained model with its task, found by run directory or
chosen from a store."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import real_number
from sheafdeq.cli.choice import Choice, add_choice_options, choice_of
from sheafdeq.cli.data_options import PARTS, DataChoice, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs, run_name
from sheafdeq.errors import InputError, RecordError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from sheafdeq.data import Graph, Split, Task
    from sheafdeq.data.objective import Objective
    from sheafdeq.equilibrium import EquilibriumModel, GraphModel
    from sheafdeq.records import RunRecord

FINITE_HORIZON = {
    "loop-transformer": "approximate: stale attention within a fixed number of "
    "loops, no equilibrium"
}
"""Models that are not iterated to an equilibrium: judged by their outputs, at their own horizon."""


@dataclass(frozen=True)
class Examined:
    """One trained model, the graph it is looked at on, and where both came from."""

    path: Path
    record: RunRecord
    model: GraphModel
    graph: Graph
    graph_label: str  # test, test[0], or your own
    label: str | None = None  # legend text where the model's title does not say enough

    @property
    def name(self) -> str:
        """Registered name of the model."""
        return self.record.model.name

    @property
    def exposed(self) -> bool:
        """Whether the recurrent state is examined (else only the outputs)."""
        return self.name not in FINITE_HORIZON

    def task_facts(self) -> dict[str, Any]:
        """The task that was trained on."""
        task = self.record.task
        return {"name": task.name, "title": task.title, "level": task.level, "score": task.score}

    def facts(self) -> dict[str, Any]:
        """The head of every record."""
        from sheafdeq.report.selection import protocol

        label = {} if self.label is None else {"label": self.label}
        return {
            **label,
            "model": {
                "name": self.name,
                "title": self.record.model.title,
                "options": self.record.model.options,
            },
            "run": self.record.id,
            "seed": self.record.seed,
            "validation": self.record.scores.get("validation"),
            "protocol": protocol(self.record),
            "task": self.task_facts(),
            "graph": self.graph_label,
            "nodes": self.graph.num_nodes,
            "edges": self.graph.num_edges,
            "dtype": str(self.graph.x.dtype).removeprefix("torch."),
        }

    @property
    def file_name(self) -> str:
        """A file name that says what it is about."""
        task = self.task_facts()
        return run_name(task["name"], task["level"], self.name, self.record.seed, self.record.id)


@dataclass(frozen=True, kw_only=True)
class Subject(Examined):
    """A model on a part of a task, so that its outputs have a score."""

    task: Task
    split: Split
    factor: float = 1.0  # from the units the model was trained in to those of the task

    @property
    def score(self) -> Callable[[Tensor], float]:
        """Outputs (n, o) -> the task's score on the split."""
        return lambda outputs: self.task.score(
            self.task.metrics(outputs * self.factor if self.factor != 1.0 else outputs, self.split)
        )

    def task_facts(self) -> dict[str, Any]:
        """The task it is examined on."""
        task = self.task
        return {
            "name": task.name,
            "title": task.title,
            "level": task.level,
            "score": task.score_name,
        }


def add_subject_options(parser: Any, graph: str) -> None:
    """Options both commands share."""
    add_runs(
        parser,
        "runs",
        several=True,
        help="a run (its directory, or the beginning of its id); or a folder of runs, of which the "
        "paper's rule chooses one for each model: lowest seed whose validation score reaches "
        "--threshold",
    )
    parser.value("--threshold", real_number(), "validation score a chosen run must reach", 80.0)
    add_data_options(parser, parts=PARTS)
    parser.value("--graph", str, "number of one graph of the split, or 'all'", graph)
    words = "legend text of the (single) run, to tell it from others of the same model"
    parser.value("--label", str, words)
    parser.flag("--double", "convert model and data to float64 first")
    parser.threads()
    parser.folder("--out", "write one record a model into this folder")
    parser.flag("--json", "print one JSON object")
    add_choice_options(parser)


def subjects(options: Any) -> list[Subject]:
    """The subjects the command line names, in order, each run once."""
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    paths: list[Path] = []
    for name in options.runs:
        for path in _expand(Path(name), options.threshold, choice_of(options)):
            if path not in paths:
                paths.append(path)
    if options.label is not None and len(paths) != 1:
        raise UsageError(f"--label names one run, the command line names {len(paths)}")
    data = data_choice(options)
    found = [
        load_subject(
            path,
            options.split,
            options.graph,
            double=options.double,
            label=options.label,
            data=data,
        )
        for path in paths
    ]
    for subject in found:
        if subject.split.size == 0:
            raise UsageError(
                f"{subject.path}: {subject.graph_label} has no scored node, so there "
                "is no score: choose another --graph"
            )
    return found


def load_run(path: Path) -> tuple[RunRecord, EquilibriumModel]:
    """The record of a finished run and its model, in evaluation mode; a recurrence, or it is
    refused."""
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.records import read_record
    from sheafdeq.training.checkpoint import load_model

    record = read_record(path)
    model = load_model(path)
    if not isinstance(model, EquilibriumModel):
        raise InputError(
            f"{path}: {record.model.title} is feed-forward, there is no recurrence to examine"
        )
    return record, model


def task_of_run(path: Path, record: RunRecord, data: DataChoice) -> Task:
    """The task to look at a run on: its own, unless the command line says otherwise."""
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.run_identity import task_of

    config = TrainingConfig.of_record(record.config, record.id)
    wanted = config.model_copy(update={"task": data.of_run(record)})
    own = wanted.task.model_copy(update={"files": config.task.files}) == config.task
    try:
        task = task_of(wanted, download=data.download)
    except InputError as error:
        if not own:
            raise
        raise RecordError(  # the record, not the command line, asks for it
            f"{path}: the configuration of this run cannot be used here: {error}"
        ) from error
    if own and task.digest != record.task.digest:
        raise RecordError(
            f"{path}: the task's data are not those the run was trained on (digest differs)"
        )
    return task


def load_subject(
    path: Path,
    split: str = "test",
    graph: str = "all",
    *,
    double: bool = False,
    label: str | None = None,
    data: DataChoice | None = None,
) -> Subject:
    """A finished run with its model in evaluation mode and the chosen part of its task, or of the
    one that ``data`` names."""
    import torch

    from sheafdeq.evaluation.evaluate import Checkpoint, check_fit, output_factor

    record, model = load_run(path)
    task = task_of_run(path, record, data or DataChoice())
    checkpoint = Checkpoint(path, record, model)
    check_fit(checkpoint, task)
    factor = output_factor(checkpoint, task)
    dtype = torch.float64 if double else next(model.parameters()).dtype
    model, task = model.to(dtype), task.to(dtype)
    part, where = task.splits[split], split
    if graph != "all":
        part, where = one_graph(part, task.objective, graph), f"{split}[{graph}]"
    return Subject(
        path,
        record,
        model.eval(),
        part.graph,
        where,
        label,
        task=task,
        split=part,
        factor=factor,
    )


def load_examined(
    path: Path, split: str, graph: str, *, double: bool = False, data: DataChoice
) -> Examined:
    """As :func:`load_subject`; files the run was not trained on need no labels, and there is no
    score."""
    import torch

    from sheafdeq.records import read_record

    if not data.files or data.trained_on(read_record(path)):
        return load_subject(path, split, graph, double=double, data=data)
    record, model = load_run(path)
    dtype = torch.float64 if double else next(model.parameters()).dtype
    model = model.to(dtype)
    own = data.read(record.task.options.get("classes")).graph.to(dtype)
    model.check(own)
    return Examined(path, record, model.eval(), own, "your own")


def one_graph(split: Split, objective: Objective, number: str) -> Split:
    """One graph of a split; targets and masks are cut along with it."""
    from sheafdeq.training.parts import cut

    count = split.graph.num_graphs
    if not number.isdecimal() or len(number) > 9 or int(number) >= count:
        raise UsageError(f"--graph must be 'all' or a number from 0 to {count - 1}, got {number!r}")
    return split if count == 1 else cut(split, objective, (int(number), int(number) + 1))[0]


def _expand(path: Path, threshold: float, choice: Choice) -> list[Path]:
    """A run directory itself, or the runs the paper's rule chooses from a folder of runs."""
    from sheafdeq.records import RECORD_FILE, read_record, refuse_unreadable
    from sheafdeq.regular_file import files_below

    if (path / RECORD_FILE).is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: neither a run directory nor a folder of runs")
    candidates = [
        (found.parent, read_record(found.parent))
        for found in files_below(path, RECORD_FILE, refuse_unreadable)
        if found.name == RECORD_FILE
    ]
    chosen = choose(candidates, threshold, choice)
    if not chosen:
        asked = "" if choice.empty else f" and {' '.join(choice.words())}"
        raise InputError(
            f"{path}: none of {len(candidates)} runs is a recurrence with a validation score of "
            f"at least {threshold:g}{asked}"
        )
    present = {(record.model.name, record.seed) for place, record in candidates if place in chosen}
    absent = [
        f"{model}:{seed}" for model, seed in choice.checkpoints if (model, seed) not in present
    ]
    if absent:
        raise InputError(
            f"{path}: no run of {', '.join(absent)} among those asked for; train it first"
        )
    return chosen


def choose(
    candidates: Sequence[tuple[Path, RunRecord]], threshold: float, choice: Choice
) -> list[Path]:
    """For each model and task: the lowest seed that reaches the threshold; of equal seeds the
    higher validation score.

    A checkpoint the choice names is taken whatever its score.
    """
    best: dict[tuple[str, str], tuple[tuple[float, float], Path]] = {}
    for path, record in candidates:
        validation = record.scores.get("validation", float("-inf"))
        if (
            record.solves is None
            or not choice.accepts(record)
            or (validation < threshold and not choice.checkpoints)
        ):
            continue
        key, rank = (record.task.title, record.model.name), (float(record.seed), -validation)
        if key not in best or rank < best[key][0]:
            best[key] = (rank, path)
    return [path for _, (_, path) in sorted(best.items())]


def write_record(folder: str | os.PathLike[str], name: str, payload: dict[str, Any]) -> Path:
    """Seal a payload into ``folder/name.json``."""
    from sheafdeq.records import write_sealed

    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{name}.json"
    write_sealed(path, payload)
    return path


def study_subjects(
    options: Any,
    study: Callable[[Subject], tuple[str, dict[str, Any]]],
    summary: Callable[[dict[str, Any]], str],
) -> int:
    """``study`` every subject into (file name, payload), print, and write the records."""
    results = []
    for subject in subjects(options):
        name, payload = study(subject)
        if options.out:
            print(f"wrote {write_record(options.out, name, payload)}", file=sys.stderr)
        if not options.json:
            print(summary(payload))
        results.append(payload)
    if options.json:
        print(json.dumps({"results": results}))
    return 0


def chosen_by(options: Any) -> dict[str, Any]:
    """The words of :func:`command_line` that every study of a subject has."""
    return {key: getattr(options, key) for key in ("seed", "split", "graph", "double")}


def given(options: Any, names: str) -> dict[str, Any]:
    """The values of options, by name."""
    return {name: getattr(options, name) for name in names.split()}


def command_line(
    command: str, subject: Examined, data: DataChoice | None = None, **options: Any
) -> str:
    """The command that makes this record again, without the names of local folders."""
    words = ["sheafdeq", command, f"RUN-{subject.record.id[:8]}"]
    words += data.words() if data is not None else []
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)] if value else []
        elif value not in (None, False):
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    return " ".join(words)
