"""From a configuration to a finished run.

``train(config)`` trains and returns; ``train(config, out="runs")`` also files the run in a
:class:`~sheafdeq.training.store.RunStore`, returns at once if it is there already, and resumes what
an earlier attempt left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sheafdeq.data import Task
from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import InputError, RecordError, SheafDEQError
from sheafdeq.records import RECORD_FILE, RunRecord, write_sealed
from sheafdeq.tensor_files import restore_parameters
from sheafdeq.threads import set_threads
from sheafdeq.training.checkpoint import (
    load_checkpoint,
    load_model,
    save_checkpoint,
)
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.interrupt import Interrupt, Suspended
from sheafdeq.training.loop import EpochMetrics, Trainer
from sheafdeq.training.penalty import Penalty
from sheafdeq.training.progress import Progress, progress_from
from sheafdeq.training.recording import record_of
from sheafdeq.training.run_identity import CHECKPOINT_DIGEST, Identity, identify, start_of, task_of
from sheafdeq.training.saved_state import Clock, save_state, saved_state
from sheafdeq.training.store import RunStore

__all__ = ["Busy", "RunResult", "train"]


class Busy(SheafDEQError):
    """Another process is computing this run."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its record, the model at the best-validation checkpoint (evaluation mode),
    its directory if stored."""

    record: RunRecord
    model: GraphModel
    path: Path | None = None
    reused: bool = False  # found in the store, nothing was computed


def train(
    config: TrainingConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress | str | bool | None = None,
    stop_when: Callable[[EpochMetrics], bool] | None = None,
    suspend_when: Callable[[EpochMetrics], str | None] | None = None,
    penalty: Penalty | None = None,
    task: Task | None = None,
    checkpoint_seconds: float = 30.0,
    engine: str = "direct",
    expected: Identity | None = None,
    download: bool = False,
    attach: Callable[[GraphModel], None] | None = None,
) -> RunResult:
    """Train one configuration and return its record and its best-validation model.

    * ``out``: a run store. A finished run is returned from it; an unfinished one is resumed unless
      ``resume=False``.
    * ``stop_when(metrics)``: end the run early. Such a run is not the configuration's, so it cannot
      be stored (use ``stop_at_score`` in the configuration for that).
    * ``suspend_when(metrics)``: a reason to save the state and raise :class:`Suspended`, or None.
      Ctrl-C and SIGTERM do the same.
    * ``penalty``, ``task``: objects of your own instead of the configured ones; cannot be stored
      either.
    * ``attach(model)``: called with the fresh model, to have its solves run elsewhere (in parts);
      cannot be stored either, because sums in another order are other bits.
    * ``download``: consent to fetching missing data files; a configuration cannot give it.
    * ``expected``: the identity a sweep has computed; a different code digest (the sources were
      edited meanwhile) is refused.
    """
    if out is not None and any(value is not None for value in (stop_when, penalty, task, attach)):
        raise InputError(
            "stop_when, penalty, task and attach are not part of the configuration, "
            "so the run cannot be stored: omit out"
        )
    if out is None:
        return _train(
            config,
            task if task is not None else task_of(config, download=download),
            None,
            None,
            resume,
            progress_from(progress),
            stop_when,
            suspend_when,
            penalty,
            checkpoint_seconds,
            engine,
            attach,
        )
    store = RunStore(out)
    identity = expected
    if identity is not None and store.finished(identity.id):
        return _from_store(store, identity.id)
    # The digest of the data really in memory is part of the identity: a sweep's cached one is
    # checked here.
    task = task_of(config, download=download)
    found = identify(config, task.digest, store=store)
    if identity is not None and identity.id != found.id:
        part = "code" if identity.code_version != found.code_version else "task"
        raise RecordError(
            f"{config.title}: the {part} changed since the sweep was planned; start the sweep again"
        )
    identity = found
    if store.finished(identity.id):
        return _from_store(store, identity.id)
    claim = store.claim(identity.id)
    if claim is None:
        raise Busy(
            f"run {identity.id[:12]} is being computed by another process; wait for it or "
            "use another --out"
        )
    try:
        if store.finished(identity.id):
            store.discard_work(identity.id)
            return _from_store(store, identity.id)
        return _train(config, task, store, identity, resume, progress_from(progress),
                      None, suspend_when, None, checkpoint_seconds, engine)  # fmt: skip
    finally:
        claim.release()


def _from_store(store: RunStore, run_id: str) -> RunResult:
    store.tidy(run_id)
    return RunResult(
        store.record(run_id), load_model(store.path(run_id)), store.path(run_id), reused=True
    )


def _train(
    config: TrainingConfig,
    task: Task,
    store: RunStore | None,
    identity: Identity | None,
    resume: bool,
    progress: Progress,
    stop_when: Callable[[EpochMetrics], bool] | None,
    suspend_when: Callable[[EpochMetrics], str | None] | None,
    penalty: Penalty | None,
    checkpoint_seconds: float,
    engine: str,
    attach: Callable[[GraphModel], None] | None = None,
) -> RunResult:
    threads = torch.get_num_threads()
    set_threads(config.threads)
    interrupt = Interrupt()
    try:
        with torch.random.fork_rng(devices=[]), interrupt.listening():
            trainer = Trainer(config, task, penalty)
            if attach is not None:
                attach(trainer.model)
            start: str | None = None
            if config.init_from is not None:
                parameters, facts = load_checkpoint(start_of(config.init_from, store))
                restore_parameters(trainer.model, parameters, config.init_from)
                start = CHECKPOINT_DIGEST + facts["tensors"]
            work = store.work(identity.id) if store is not None and identity is not None else None
            clock = Clock()
            state = saved_state(work) if work is not None and resume else None
            if state is not None:
                tensors, values, clock.spent = state
                trainer.restore(tensors, values)
            began_at = trainer.epoch
            progress.start(config.title, began_at, config.max_epochs)
            message = "failed"
            saved = time.monotonic()
            try:
                while trainer.stopped is None:
                    metrics = trainer.advance()
                    progress.update(metrics)
                    if trainer.stopped is not None:
                        break
                    if stop_when is not None and stop_when(metrics):
                        trainer.stopped = "stop_when"
                        break
                    reason = interrupt.reason or (
                        suspend_when(metrics) if suspend_when is not None else None
                    )
                    if reason is not None:
                        if store is not None and work is not None:
                            save_state(trainer, store, work, clock)
                        raise Suspended(reason, trainer.epoch, work)
                    if (
                        store is not None
                        and work is not None
                        and time.monotonic() - saved >= checkpoint_seconds
                    ):
                        save_state(trainer, store, work, clock)
                        saved = time.monotonic()
                evaluation = trainer.finish()
                message = (
                    f"{config.title}: {trainer.stopped} after {trainer.epoch} epochs; best epoch "
                    f"{trainer.best_epoch}, "
                    f"validation {evaluation.scores['validation']:.3f}, test "
                    f"{evaluation.scores['test']:.3f} ({task.score_name})"
                )
            except Suspended as error:
                message = str(error)
                raise
            finally:
                progress.finish(message)
            record = record_of(
                config, task, trainer, evaluation, identity, clock, began_at, engine, start
            )
            path = None
            if store is not None and identity is not None:
                path = store.path(identity.id)
                with store.writing(identity.id) as aside:
                    files = save_checkpoint(
                        aside,
                        trainer.model.state_dict(),
                        config.model.name,
                        record.model.options,
                        trainer.shape,
                        task=record.config["task"],
                        run=identity.id,
                    )
                    record = record.model_copy(update={"checkpoint": files})
                    write_sealed(aside / RECORD_FILE, record.payload())
                record = store.record(identity.id)
                store.discard_work(identity.id)
                store.forgive(identity.id)
            return RunResult(record, trainer.model, path)
    finally:
        torch.set_num_threads(threads)
