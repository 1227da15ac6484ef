"""The default engine: worker processes on this machine, no daemon, nothing to install.

Workers choose runs themselves by locking them, so the driver only keeps the right number alive. A
worker that is killed is replaced, and the run it held is resumed from its last saved state; workers
whose driver was killed stop at their next epoch, and the next driver removes the plan they worked
by. A store that cannot be written (full, gone, read-only) ends the sweep with its reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sheafdeq.errors import StoreError
from sheafdeq.training.engines.job_process import EXIT_STORE, EXIT_SUSPENDED, write_plan
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.store import RunStore, locks_wanted
from sheafdeq.training.sweep import Entry, Manner, deadline_of

__all__ = ["planned", "run_local", "unfinished"]

# a run whose worker dies this often under one driver is given up (out of memory, say)
CRASH_LIMIT = 10
ABANDONED_SECONDS = 7 * 86400.0


def run_local(entries: list[Entry], store: RunStore, manner: Manner | None = None) -> None:
    """Carry out the plan with worker processes; returns when nothing is left or the budget is
    spent."""
    manner = manner or Manner()
    with planned(store) as (invocation, plan, counter):
        with store.guarded():
            write_plan(
                plan,
                entries,
                store=str(store.root.resolve()),
                invocation=invocation,
                driver=os.getpid(),
                deadline=deadline_of(manner.budget),
                budget_epochs=manner.budget.epochs,
                counter=str(counter),
                checkpoint_seconds=manner.checkpoint_seconds,
            )
        crew = _Crew(plan, manner.jobs, manner.tell)
        try:
            with crew.forwarding_signals():
                crew.supervise(entries, store, invocation)
        finally:
            crew.stop()


@contextlib.contextmanager
def planned(store: RunStore) -> Iterator[tuple[str, Path, Path]]:
    """(name of this invocation, path of its plan, path of its epoch counter); both are removed at
    the end.

    The driver holds a lock beside them, so that what a killed one left is known and removed by the
    next.
    """
    folder = store.folder(".plans")
    for path in folder.glob("*.lock"):
        if locks_wanted() and not store.locked(path):
            _remove(folder, path.stem)
    for path in folder.glob("*.json"):  # left by versions that did not lock their plans
        if (
            not path.with_suffix(".lock").exists()
            and time.time() - path.stat().st_mtime > ABANDONED_SECONDS
        ):
            _remove(folder, path.stem)
    invocation = uuid.uuid4().hex
    claim = store.lock(folder / f"{invocation}.lock")
    assert claim is not None  # nobody else knows the name
    try:
        yield invocation, folder / f"{invocation}.json", folder / f"{invocation}.epochs"
    finally:
        claim.release()
        _remove(folder, invocation)


def unfinished(entries: list[Entry], store: RunStore) -> dict[str, Entry]:
    """Entries that are left, by id; what killed processes left of finished ones is removed."""
    left = {}
    for entry in entries:
        if entry.identity is None:
            continue
        if store.finished(entry.identity.id):
            store.tidy(entry.identity.id)
        else:
            left[entry.identity.id] = entry
    return left


def _remove(folder: Path, invocation: str) -> None:
    for suffix in ("json", "epochs", "stop", "lock"):
        with contextlib.suppress(OSError):
            (folder / f"{invocation}.{suffix}").unlink(missing_ok=True)


class _Crew:
    def __init__(self, plan: Path, jobs: int, tell: Callable[[str], None]) -> None:
        self.plan, self.jobs, self.tell = plan, jobs, tell
        self.workers: list[subprocess.Popen[bytes]] = []
        self.signal: int | None = None
        self.crashes: dict[str, int] = {}  # by run; those outside any run under ""

    def supervise(self, entries: list[Entry], store: RunStore, invocation: str) -> None:
        left = unfinished(entries, store)
        total, announced = len(entries), -1
        for _ in range(min(self.jobs, len(left))):
            self._start()
        while self.workers:
            time.sleep(0.1)
            for run_id in [
                run_id
                for run_id in left
                if store.finished(run_id) or self._given_up(store, run_id, invocation)
            ]:
                del left[run_id]
            if total - len(left) != announced:
                announced = total - len(left)
                self.tell(f"{announced}/{total} runs finished or failed")
            for worker in [worker for worker in self.workers if worker.poll() is not None]:
                self.workers.remove(worker)
                if worker.returncode not in (0, EXIT_SUSPENDED) and self.signal is None:
                    self._note_crash(worker, entries, store, invocation)
                    if left:
                        self._start()
        if self.signal is not None:
            raise Suspended(signal.Signals(self.signal).name, 0, store.root)

    def _start(self) -> None:
        if self.signal is not None:
            return
        # A session of its own: Ctrl-C reaches the driver alone, which passes it on once.
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        command = [sys.executable, "-m", "sheafdeq.training.engines.job_process", str(self.plan)]
        worker = subprocess.Popen(
            command, start_new_session=True, env=environment, stdin=subprocess.DEVNULL
        )
        self.workers.append(worker)
        # it came while the worker was being made, so it was not passed on to it
        if self.signal is not None:
            worker.send_signal(signal.SIGTERM)

    def _note_crash(
        self,
        worker: subprocess.Popen[bytes],
        entries: list[Entry],
        store: RunStore,
        invocation: str,
    ) -> None:
        if worker.returncode == EXIT_STORE:
            store.probe()
            if not self.plan.is_file():
                raise StoreError(
                    "the plan of this sweep has vanished from the run store "
                    f"{store.root}: start the sweep again"
                )
        self.tell(f"a worker ended with code {worker.returncode}; starting another")
        held = [
            entry
            for entry in entries
            if entry.identity is not None and store.holder(entry.identity.id) == worker.pid
        ]
        if not held:  # before it had a run, or after it had let go of one
            self.crashes[""] = self.crashes.get("", 0) + 1
            if self.crashes[""] >= CRASH_LIMIT:
                raise StoreError(
                    f"{CRASH_LIMIT} workers died outside any run (last code {worker.returncode}); "
                    "their messages are above. "
                    f"Nothing finished in {store.root} is lost: mend the cause and start the "
                    "sweep again"
                )
        for entry in held:
            assert entry.identity is not None
            run_id = entry.identity.id
            self.crashes[run_id] = self.crashes.get(run_id, 0) + 1
            if self.crashes[run_id] >= CRASH_LIMIT:
                store.fail(
                    run_id,
                    run=entry.config.title,
                    error=f"the worker process died {CRASH_LIMIT} times in this run (last code "
                    f"{worker.returncode})",
                    traceback="",
                    invocation=invocation,
                    time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                )

    @staticmethod
    def _given_up(store: RunStore, run_id: str, invocation: str) -> bool:
        failure = store.failure(run_id)
        return failure is not None and failure["invocation"] == invocation

    @contextlib.contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        def forward(number: int, frame: Any) -> None:
            self.signal = number
            for worker in self.workers:
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(signal.SIGTERM)

        previous = {}
        # not in the main thread: the caller deals with signals
        with contextlib.suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                previous[number] = signal.signal(number, forward)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(timeout=60)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
