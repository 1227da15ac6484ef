"""A worker process: takes runs nobody holds, computes them, and leaves when nothing is left.

Started by the local engine as ``python -m sheafdeq.training.engines.job_process PLAN``. The plan is
a sealed JSON file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError, StoreError
from sheafdeq.records import read_sealed, write_sealed
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.kept_memory import keep_freed_memory
from sheafdeq.training.loop import EpochMetrics
from sheafdeq.training.run import Busy, train
from sheafdeq.training.run_identity import Identity
from sheafdeq.training.store import RunStore
from sheafdeq.training.sweep import Budget, Entry

__all__ = ["RunLimits", "attempt", "main", "read_plan", "write_plan"]

EXIT_SUSPENDED = 3
EXIT_STORE = 4  # the run store cannot be used; the reason is on standard error


class RunLimits:
    """When a worker must stop between two epochs: the budget is spent, somebody said so, or the
    driver is gone.

    Epochs are counted over all workers as the size of one file that each appends a byte to.
    ``deadline`` is a moment of ``time.monotonic`` on this machine; a driver elsewhere makes the
    file ``stop`` when the time is up.
    """

    def __init__(
        self,
        budget: Budget,
        deadline: float | None,
        counter: Path | None,
        parent: int | None,
        stop: Path | None = None,
    ) -> None:
        self.epochs = budget.epochs
        self.deadline = deadline
        self.parent = parent
        self.stop = stop
        self.signal: str | None = None
        self._counter = (
            os.open(counter, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if counter is not None
            else None
        )

    def listen(self) -> None:
        """From now on SIGTERM ends the work between two epochs, also between two runs."""

        def note(number: int, frame: Any) -> None:
            self.signal = signal.Signals(number).name

        signal.signal(signal.SIGTERM, note)

    def reason(self) -> str | None:
        """Why to stop now, or None."""
        if self.signal is not None:
            return self.signal
        if self.parent is not None and os.getppid() != self.parent:
            return "the sweep's driver is gone"
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return "the time budget is spent"
        if self.stop is not None and self.stop.exists():
            return "the time budget is spent"
        if (
            self.epochs is not None
            and self._counter is not None
            and os.fstat(self._counter).st_size >= self.epochs
        ):
            return "the epoch budget is spent"
        return None

    def __call__(self, metrics: EpochMetrics) -> str | None:
        """Count one epoch, then as :meth:`reason`."""
        if self._counter is not None:
            os.write(self._counter, b".")
        return self.reason()


def attempt(
    entry: Entry,
    store: RunStore,
    invocation: str,
    limits: Callable[[EpochMetrics], str | None] | None,
    engine: str,
    checkpoint_seconds: float,
) -> str:
    """Try to finish one run: ``done``, ``busy`` (another process has it), ``failed`` (recorded) or
    ``suspended``.

    :class:`StoreError` passes through: a full disk is no property of the run.
    """
    assert entry.identity is not None
    keep_freed_memory()
    try:
        train(
            entry.config,
            out=store.root,
            suspend_when=limits,
            engine=engine,
            expected=entry.identity,
            checkpoint_seconds=checkpoint_seconds,
        )
        return "done"
    except Busy:
        return "busy"
    except Suspended:
        return "suspended"
    except StoreError:  # not this run's fault, and its failure could not be recorded either
        raise
    except Exception as error:
        # One failed run never stops the sweep; the text is kept and the run retried next time.
        store.fail(
            entry.identity.id,
            run=entry.config.title,
            error=f"{type(error).__name__}: {error}",
            traceback=traceback.format_exc(),
            invocation=invocation,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        return "failed"


def write_plan(path: Path, entries: list[Entry], **settings: Any) -> None:
    """What the workers read."""
    runs = [
        {"config": entry.config.payload(), "identity": vars(entry.identity)}
        for entry in entries
        if entry.identity is not None
    ]
    write_sealed(path, {"runs": runs, **settings})


def read_plan(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Entries and settings of a plan."""
    plan = read_sealed(path)
    entries = [
        Entry(TrainingConfig.parse(run["config"]), Identity(**run["identity"]))
        for run in plan.pop("runs")
    ]
    return entries, plan


def main(path: str) -> int:
    """Work until every run of the plan is finished, has failed, or the limits end the work."""
    try:
        return _work(path)
    except (StoreError, RecordError) as error:  # RecordError: the plan itself cannot be read
        print(f"worker: {error}", file=sys.stderr, flush=True)
        return EXIT_STORE


def _work(path: str) -> int:
    entries, plan = read_plan(Path(path))
    store = RunStore(plan["store"])
    budget = Budget(plan["budget_epochs"])
    counter = Path(plan["counter"]) if budget.epochs else None
    limits = RunLimits(budget, plan["deadline"], counter, plan["driver"])
    if threading.current_thread() is threading.main_thread():
        limits.listen()
    while True:
        waiting = False
        for entry in entries:
            assert entry.identity is not None
            run_id = entry.identity.id
            if store.finished(run_id) or _failed_here(store, run_id, plan["invocation"]):
                continue
            if limits.reason() is not None:
                return EXIT_SUSPENDED
            result = attempt(
                entry, store, plan["invocation"], limits, "local", plan["checkpoint_seconds"]
            )
            if result == "suspended":
                return EXIT_SUSPENDED
            waiting = waiting or result == "busy"
        if not waiting:
            return 0
        if limits.reason() is not None:
            return EXIT_SUSPENDED
        time.sleep(0.2)  # the rest is in other workers' hands; one of them may yet die


def _failed_here(store: RunStore, run_id: str, invocation: str) -> bool:
    failure = store.failure(run_id)
    return failure is not None and failure["invocation"] == invocation


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
