"""From a configuration to a finished run: identity, resuming, suspension, the record.

``train(config)`` trains and returns; ``train(config, out="runs")`` also files the run in a
:class:`~sheafdeq.training.store.RunStore`, returns at once if it is there already, and resumes what
an earlier attempt left.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import sheafdeq
from sheafdeq.data import Task, load_task
from sheafdeq.equilibrium import EQUILIBRIUM_STEPS, EquilibriumModel, GraphModel
from sheafdeq.errors import InputError, OptionError, RecordError, SheafDEQError
from sheafdeq.identity import SCHEME, CodeIdentity, code_identity, model_roles
from sheafdeq.records import (
    RECORD_FILE,
    Best,
    ModelFacts,
    RunRecord,
    SolveFacts,
    TaskFacts,
    digest_of,
    finite,
    read_sealed,
    write_sealed,
)
from sheafdeq.registry import ModelSpec, Shape, build_model, model_spec
from sheafdeq.threads import set_threads
from sheafdeq.training.checkpoint import (
    CHECKPOINT_FACTS,
    load_checkpoint,
    load_model,
    load_tensors,
    restore_parameters,
    save_checkpoint,
    save_tensors,
)
from sheafdeq.training.config import TaskConfig, TrainingConfig
from sheafdeq.training.loop import EpochMetrics, Evaluation, Trainer
from sheafdeq.training.penalty import Penalty
from sheafdeq.training.progress import Progress, progress_from
from sheafdeq.training.store import RunStore
from sheafdeq.training.version import code_version

__all__ = ["Busy", "Identity", "RunResult", "Suspended", "identify", "task_of", "train"]

STATE_FILE = "state.json"
CHECKPOINT_DIGEST = "sha256:"
"""How a record names the checkpoint a run started from: by content, since a path says nothing on
another machine."""


class Suspended(SheafDEQError):
    """The run stopped before its end with its state saved; the same call continues it."""

    def __init__(self, reason: str, epoch: int, path: Path | None) -> None:
        where = (
            f"the state is in {path}; do the same again to continue"
            if path
            else ("nothing was saved (no output folder)")
        )
        super().__init__(f"suspended at epoch {epoch} ({reason}); {where}")
        self.reason = reason
        self.epoch = epoch


class Busy(SheafDEQError):
    """Another process is computing this run."""


@dataclass(frozen=True)
class Identity:
    """What a run is named by. ``code_roles`` says which part of the code has which digest
    (:mod:`sheafdeq.identity`)."""

    id: str
    task_digest: str
    code_digest: str
    code_version: str
    code_roles: dict[str, str] = field(default_factory=dict)

    def code(self) -> dict[str, str]:
        """For the record: scheme, label, digest, and the digest of every role."""
        roles = {f"role:{role}": digest for role, digest in self.code_roles.items()}
        return {"scheme": SCHEME, "version": self.code_version, "digest": self.code_digest, **roles}


@dataclass(frozen=True)
class RunResult:
    """A finished run: its record, the model at the best-validation checkpoint (evaluation mode),
    its directory if stored."""

    record: RunRecord
    model: GraphModel
    path: Path | None = None
    reused: bool = False  # found in the store, nothing was computed


class StateWarning(UserWarning):
    """The saved state of a run in progress is damaged: the run starts over."""


@lru_cache(maxsize=2)
def _cached_task(key: str, download: bool) -> Task:
    config = TaskConfig.model_validate_json(key)
    options: dict[str, Any] = dict(config.options)
    for name, instead in (
        ("download", "--download, or train(..., download=True)"),
        ("root", "the variable SHEAFDEQ_DATA"),
    ):
        if name in options:
            raise OptionError(
                f"task {config.name!r}: {name!r} is not for a configuration to "
                f"decide; use {instead}"
            )
    for name in ("level", "split"):
        if getattr(config, name) is not None:
            options[name] = getattr(config, name)
    return load_task(config.name, download=download, **options)


# graphs may own native memory that must go before the interpreter does
atexit.register(_cached_task.cache_clear)


def task_of(config: TrainingConfig, *, download: bool = False) -> Task:
    """The task of a configuration; the last two are kept in memory for sweeps. Missing files are
    fetched only on ``download``."""
    return _cached_task(config.task.model_dump_json(), download)


_roles: dict[tuple[str, str], tuple[ModelSpec, dict[str, list[Any]]]] = {}


def code_of(config: TrainingConfig) -> CodeIdentity:
    """The code behind a configuration: its model with solver and gradient rule, its task, the
    training loop."""
    from sheafdeq.data.catalogue import entries

    spec = model_spec(config.model.name)
    key = (config.model.name, json.dumps(config.model.options, sort_keys=True))
    if key not in _roles or _roles[key][0] is not spec:
        with torch.random.fork_rng(devices=[]):
            model = build_model(
                config.model.name, Shape(2, 2, None, 2, 2, 2), **config.model.options
            )
        _roles[key] = (spec, model_roles(model, spec.build))
    # What a builder is given (addresses, checksums) shows in the digest of the data it makes.
    builders = [entry.build for entry in entries() if entry.name == config.task.name]
    data = [build.func if isinstance(build, partial) else build for build in builders]
    return code_identity({**_roles[key][1], "data": data, "training": [Trainer]})


def identify(
    config: TrainingConfig,
    task_digest: str | None = None,
    code: CodeIdentity | None = None,
    *,
    store: RunStore | None = None,
) -> Identity:
    """The identity of a run.

    ``task_digest`` saves loading the task when it is known, ``code`` reading the sources again;
    ``store`` is where ``init_from`` is looked up when it is not a path.
    """
    task_digest = task_digest if task_digest is not None else task_of(config).digest
    code = code if code is not None else code_of(config)
    version = code_version(code.digest)
    payload = config.payload()
    # The options are named in full, so that a changed default is another run.
    payload["model"]["options"] = {
        **model_spec(config.model.name).options,
        **payload["model"]["options"],
    }
    if config.init_from is not None:
        payload["init_from"] = load_checkpoint(start_of(config.init_from, store))[1]["tensors"]
    named = {"scheme": SCHEME, "config": payload, "task": task_digest, "code": version}
    return Identity(digest_of(named), task_digest, code.digest, version, dict(code.roles))


def start_of(init_from: str, store: RunStore | None) -> Path:
    """Where the checkpoint named by ``init_from`` is: a path, a run of the store, or the digest a
    record gives for it."""
    path = Path(init_from)
    if path.exists():
        return path
    if store is not None and init_from.startswith(CHECKPOINT_DIGEST):
        for folder in sorted(store.root.iterdir()) if store.root.is_dir() else ():
            if (
                store.finished(folder.name)
                and read_sealed(folder / CHECKPOINT_FACTS).get("tensors")
                == init_from[len(CHECKPOINT_DIGEST) :]
            ):
                return folder
    elif store is not None and init_from and set(init_from) <= set("0123456789abcdef"):
        return store.resolve(init_from)
    raise RecordError(
        f"init_from {init_from!r} is neither a run directory, a checkpoint, nor a run of this store"
    )


# ---------------------------------------------------------------------- suspension


class _Interrupt:
    """Turns SIGINT and SIGTERM into a request that the loop honours between epochs; a second signal
    is immediate."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        honoured = False
        try:
            yield
        except Suspended:
            honoured = True
            raise
        finally:
            for received, handler in self._previous.items():
                signal.signal(received, handler)
            # it came after the last epoch: whoever listened before gets it
            if self.reason is not None and not honoured:
                signal.raise_signal(signal.Signals[self.reason])

    def _note(self, number: int, frame: Any) -> None:
        received = signal.Signals(number)
        self.reason = received.name
        signal.signal(received, self._previous[received])


# ---------------------------------------------------------------------- train


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
    interrupt = _Interrupt()
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
            clock = _Clock()
            state = _saved_state(work) if work is not None and resume else None
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
                            _save(trainer, store, work, clock)
                        raise Suspended(reason, trainer.epoch, work)
                    if (
                        store is not None
                        and work is not None
                        and time.monotonic() - saved >= checkpoint_seconds
                    ):
                        _save(trainer, store, work, clock)
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
            record = _record(
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
                        task=config.task.model_dump(mode="json"),
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


class _Clock:
    """Wall and CPU seconds, over all attempts."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic(), time.process_time()
        self.spent = {"wall_seconds": 0.0, "cpu_seconds": 0.0}

    def total(self) -> dict[str, float]:
        return {
            "wall_seconds": round(self.spent["wall_seconds"] + time.monotonic() - self.wall, 3),
            "cpu_seconds": round(self.spent["cpu_seconds"] + time.process_time() - self.cpu, 3),
        }


def _save(trainer: Trainer, store: RunStore, work: Path, clock: _Clock) -> None:
    """Write the state so that a crash at any moment leaves the old or the new one complete."""
    store.folder(work.parent.name)
    tensors, values = trainer.state()
    name = f"state-{trainer.epoch}.safetensors"
    with store.guarded():
        work.mkdir(exist_ok=True)
        digest = save_tensors(work / name, tensors)
        write_sealed(
            work / STATE_FILE,
            {"tensors": name, "sha256": digest, "values": values, "spent": clock.total()},
        )
        for other in work.iterdir():
            if other.name not in (name, STATE_FILE):
                other.unlink(missing_ok=True)


def _saved_state(
    work: Path,
) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, float]] | None:
    """Tensors, values and seconds spent of the saved state; None without one, or (with a warning)
    with a damaged one.

    Starting over gives the same result, so a damaged state costs time alone.
    """
    if not (work / STATE_FILE).is_file():
        return None
    try:
        state = read_sealed(work / STATE_FILE)
        tensors = load_tensors(work / Path(state["tensors"]).name, state["sha256"])
        return tensors, state["values"], state["spent"]
    except (RecordError, KeyError, TypeError) as error:
        warnings.warn(
            f"the saved state of the run is damaged, so it starts over: {error}",
            StateWarning,
            stacklevel=2,
        )
        return None


def _recorded(config: TrainingConfig, start: str | None) -> dict[str, Any]:
    """The configuration as a record keeps it: the checkpoint it starts from is named by content,
    not by its place."""
    payload = config.payload()
    return payload if start is None else {**payload, "init_from": start}


def _record(
    config: TrainingConfig,
    task: Task,
    trainer: Trainer,
    evaluation: Evaluation,
    identity: Identity | None,
    clock: _Clock,
    began_at: int,
    engine: str,
    start: str | None,
) -> RunRecord:
    spec = model_spec(config.model.name)
    options = {**spec.options, **config.model.options}
    constant = task.score(task.constant_score)
    curves: dict[str, list[Any]] = {
        "loss": [finite(value, 5) for value in trainer.curves["loss"]],
        "validation": [finite(value, 6) for value in trainer.curves["validation"]],
        "test": [[epoch, finite(value, 6)] for epoch, value in trainer.curves["test"]],
    }
    return RunRecord(
        id=identity.id if identity else "",
        config=_recorded(config, start),
        task=TaskFacts(
            name=task.name,
            title=task.title,
            level=config.task.level,
            split=config.task.split,
            options=dict(task.options),
            digest=task.digest,
            score=task.score_name,
            constant_score=finite(constant),
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
            "peak_memory_megabytes": round(_peak_memory() / 2**20, 1),
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


def _peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sheafdeq": sheafdeq.__version__,
    }
