"""A checkpoint on a task: metrics, how the solves ended, and the record of both.

A model whose equilibrium is guaranteed is solved until it is at rest; every other model is run as
it was trained (a fixed horizon, or its own solver and tolerance). Nothing is fitted here, and
nothing is chosen by what is seen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sheafdeq.data.objective import Regression
from sheafdeq.data.task import Task
from sheafdeq.equilibrium import (
    EQUILIBRIUM_STEPS,
    EQUILIBRIUM_TOLERANCE,
    EquilibriumModel,
    GraphModel,
)
from sheafdeq.errors import IncompatibleError, InputError
from sheafdeq.evaluation.rest import rest_of
from sheafdeq.records import EVALUATION_SCHEMA, RunRecord, finite, read_record
from sheafdeq.training.checkpoint import load_model
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.loop import evaluate
from sheafdeq.training.run_identity import task_of

__all__ = [
    "EVALUATION_FILE",
    "Checkpoint",
    "check_fit",
    "evaluate_checkpoint",
    "load",
    "output_factor",
    "trained_scale",
]

EVALUATION_FILE = ".eval.json"
"""How the name of an evaluation record ends."""


@dataclass(frozen=True)
class Checkpoint:
    """A finished run with its model, in evaluation mode."""

    path: Path
    record: RunRecord
    model: GraphModel

    @property
    def config(self) -> TrainingConfig:
        """What the run was trained by."""
        return TrainingConfig.of_record(self.record.config, self.record.id)

    @property
    def name(self) -> str:
        """For files: task, level, model, seed and the beginning of the id."""
        level = "" if self.record.task.level is None else f"-{self.record.task.level}"
        facts = self.record
        return f"{facts.task.name}{level}-{facts.model.name}-seed{facts.seed}-{facts.id[:8]}"


def load(path: str | Path) -> Checkpoint:
    """The run in a directory; :class:`RecordError` when a byte of it is not as it was written."""
    path = Path(path)
    return Checkpoint(path, read_record(path), load_model(path))


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    task: Task,
    splits: Sequence[str] = ("test",),
    *,
    command: str,
    label: str = "",
    rest: int | None = None,
) -> dict[str, Any]:
    """The payload of an evaluation record.

    ``rest`` also iterates the test graphs from six starts, for at most so many steps
    (:func:`~sheafdeq.evaluation.rest.rest_of`).

    Raises :class:`IncompatibleError` when the model does not fit the task: other widths of features
    or outputs, edge features that are missing or too many, or a score of another kind.
    """
    check_fit(checkpoint, task)
    record, model = checkpoint.record, checkpoint.model
    begun, spent = time.perf_counter(), time.process_time()
    dtype = next(model.parameters()).dtype
    result = evaluate(model, task.to(dtype), splits, scale=output_factor(checkpoint, task))
    solves = None
    if isinstance(model, EquilibriumModel):
        own = getattr(model, "tolerance", None)  # models with a minimiser of their own (EnergyGNN)
        to_tolerance = own is not None or bool(getattr(model.solver, "stop_early", False))
        at_equilibrium = model.guaranteed
        tolerance = own if own is not None else getattr(model.solver, "tolerance", None)
        solves = {
            "mode": "equilibrium"
            if at_equilibrium
            else "own tolerance"
            if to_tolerance
            else "trained horizon",
            "step_limit": EQUILIBRIUM_STEPS if at_equilibrium else model.solver.steps,
            "tolerance": EQUILIBRIUM_TOLERANCE if at_equilibrium else tolerance,
            "statuses": result.statuses,
            "residual": None if result.residual is None else finite(result.residual),
            "steps": result.steps,
        }
    return {
        "schema": EVALUATION_SCHEMA,
        "command": command,
        "label": label,
        "run": record.id,
        "model": {
            "name": record.model.name,
            "title": record.model.title,
            "options": record.model.options,
        },
        "seed": record.seed,
        "task": {
            "name": task.name,
            "title": task.title,
            "level": task.level,
            "options": dict(task.options),
            "digest": task.digest,
            "score": task.score_name,
            "trained_on": record.task.digest,
        },
        "splits": {
            name: {
                "score": finite(result.scores[name]),
                "metrics": {key: finite(value) for key, value in result.metrics[name].items()},
                "scored": task.splits[name].size,
                "graphs": task.splits[name].graph.num_graphs,
            }
            for name in splits
        },
        "solves": solves,
        "rest": None if rest is None else rest_of(model, task, iterations=rest).to_json(),
        "dtype": str(dtype).removeprefix("torch."),
        "timing": {
            "seconds": round(time.perf_counter() - begun, 2),
            "cpu_seconds": round(time.process_time() - spent, 2),
            "threads": torch.get_num_threads(),
        },
    }


def check_fit(checkpoint: Checkpoint, task: Task) -> None:
    """Raise :class:`IncompatibleError` unless the model can answer what the task asks."""
    record, model = checkpoint.record, checkpoint.model
    who = f"{record.model.title} (run {record.id[:8]}, trained on {record.task.title})"
    for what, wanted, given in (
        ("node features", model.in_channels, task.in_channels),
        ("outputs", model.out_channels, task.out_channels),
    ):
        if wanted != given:
            raise IncompatibleError(
                f"{who} has {wanted} {what}, {task.title} has {given}: choose "
                "a task of the same widths"
            )
    if _kind(record.task.score) != _kind(task.score_name):
        raise IncompatibleError(
            f"{who} was trained for {record.task.score}, {task.title} is judged by "
            f"{task.score_name}: choose a task of the same kind"
        )
    try:
        model.check(task.test.graph.to(next(model.parameters()).dtype))
    except InputError as error:
        raise IncompatibleError(f"{who} does not fit {task.title}: {error}") from error


def _kind(score: str) -> str:
    """Accuracy and ROC-AUC are both read from logits; every other score is a kind of its own."""
    return "classes" if score.endswith("(%)") else score


def output_factor(checkpoint: Checkpoint, task: Task) -> float:
    """From the units of the task that was trained on to those of this one; one except for
    regression."""
    if not isinstance(task.objective, Regression) or task.digest == checkpoint.record.task.digest:
        return 1.0
    return trained_scale(checkpoint.record) / task.output_scale


def trained_scale(record: RunRecord) -> float:
    """From a model's outputs to the units of the targets it was trained on; one except for
    regression."""
    if "scale" in record.task.options:  # of a user's own files, which may not be here
        return float(record.task.options["scale"])
    config = TrainingConfig.of_record(record.config, record.id)
    return 1.0 if config.task.files is not None else task_of(config).output_scale
