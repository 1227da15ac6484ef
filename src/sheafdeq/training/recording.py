"""The record of a finished run."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import torch

import sheafdeq
from sheafdeq.data import Task
from sheafdeq.equilibrium import EQUILIBRIUM_STEPS, EquilibriumModel
from sheafdeq.machine import peak_memory, processor_name
from sheafdeq.records import Best, ModelFacts, RunRecord, SolveFacts, TaskFacts, finite
from sheafdeq.registry import model_spec
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.loop import Evaluation, Trainer
from sheafdeq.training.run_identity import Identity, by_content
from sheafdeq.training.saved_state import Clock

__all__ = ["record_of"]


def _recorded(config: TrainingConfig, task: Task, start: str | None) -> dict[str, Any]:
    """The configuration as a record keeps it: the checkpoint it starts from and the files of its
    task are named by content, not by their place."""
    read = {kind: task.options.get(f"{kind}_sha256", "") for kind in config.task.files or {}}
    payload = by_content(config, read)
    return payload if start is None else {**payload, "init_from": start}


def record_of(
    config: TrainingConfig,
    task: Task,
    trainer: Trainer,
    evaluation: Evaluation,
    identity: Identity | None,
    clock: Clock,
    began_at: int,
    engine: str,
    start: str | None,
) -> RunRecord:
    """What a run says about itself; the checkpoint's digests are added when it is filed."""
    spec = model_spec(config.model.name)
    options = {**spec.options, **config.model.options}
    curves: dict[str, list[Any]] = {
        "loss": [finite(value, 5) for value in trainer.curves["loss"]],
        "validation": [finite(value, 6) for value in trainer.curves["validation"]],
        "test": [[epoch, finite(value, 6)] for epoch, value in trainer.curves["test"]],
    }
    return RunRecord(
        id=identity.id if identity else "",
        config=_recorded(config, task, start),
        task=TaskFacts(
            name=task.name,
            title=task.title,
            level=config.task.level,
            split=config.task.split,
            options=dict(task.options),
            digest=task.digest,
            score=task.score_name,
            constant_score=finite(task.constant_score),
            kind=task.kind,
        ),
        model=ModelFacts(
            name=spec.name,
            title=spec.title,
            family=spec.family,
            options=options,
            parameters=trainer.model.num_parameters(),
        ),
        code=identity.code() if identity else {},
        epochs=trainer.epoch,
        stopped=trainer.stopped or "",
        best=Best(epoch=trainer.best_epoch, validation=trainer.best),
        scores=evaluation.scores,
        metrics={
            split: {name: finite(value) for name, value in values.items()}
            for split, values in evaluation.metrics.items()
        },
        solves=_solve_facts(trainer, evaluation),
        curves={name: values for name, values in curves.items() if values or name != "test"},
        checkpoint={},
        timing={
            **clock.total(),
            "epochs_in_this_attempt": trainer.epoch - began_at,
            "peak_memory_megabytes": round((peak_memory() or 0) / 2**20, 1),
            "threads": config.threads,
            "engine": engine,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": _machine(),
        },
    )


def _solve_facts(trainer: Trainer, evaluation: Evaluation) -> SolveFacts | None:
    if not isinstance(trainer.model, EquilibriumModel) or not evaluation.statuses:
        return None
    solver = trainer.model.solver
    if trainer.model.guaranteed:  # judged at the equilibrium, see training.loop.judged
        return SolveFacts(
            to_tolerance=True,
            steps=EQUILIBRIUM_STEPS,
            tolerance=evaluation.tolerance,
            training=trainer.statuses,
            final=evaluation.statuses,
            residual=_finite_or_none(evaluation.residual),
            at_equilibrium=True,
            distance=evaluation.distance,
        )
    # models with a minimiser of their own (EnergyGNN)
    own = getattr(trainer.model, "tolerance", None)
    return SolveFacts(
        to_tolerance=own is not None or bool(getattr(solver, "stop_early", False)),
        steps=solver.steps,
        tolerance=own if own is not None else evaluation.tolerance,
        training=trainer.statuses,
        final=evaluation.statuses,
        residual=_finite_or_none(evaluation.residual),
        distance=evaluation.distance,
    )


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None else finite(value)


def _machine() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sheafdeq": sheafdeq.__version__,
    }
