"""The run store: one directory for each finished run, named by what was computed.

    <root>/<id>/             record.json, checkpoint.json, checkpoint.safetensors (complete, or
                             absent)
    <root>/.tmp-<id>-<...>/  being written; renamed when complete
    <root>/.work/<id>/       state of a run in progress, for resuming
    <root>/.locks/<id>       held (flock) by the process that computes the run, until it ends
    <root>/.failed/<id>.json why the last attempt failed
    <root>/.damaged/         run directories that were not complete when the run was computed again

A run becomes visible by one rename of a directory whose files have been synced, so a reader sees
all of it or nothing, and of two processes that compute the same run by accident one wins and the
other's copy is dropped: at-least-once execution becomes exactly-once results. A directory that is
not a complete run (a file was deleted, as the error about a damaged file advises) is put into
``.damaged`` and replaced.

**Locks.** Two processes never compute the same run because the first holds a lock on it. A file
system without locks is noticed and named. ``SHEAFDEQ_STORE_LOCKS=off`` works without them: results
stay exact (the rename decides), but nothing keeps two processes from computing the same run, so
give each its own ``--shard``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError, StoreError, UsageError
from sheafdeq.records import RECORD_FILE, RunRecord, read_record, read_sealed, write_sealed
from sheafdeq.training.checkpoint import CHECKPOINT_FACTS, CHECKPOINT_TENSORS

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: as SHEAFDEQ_STORE_LOCKS=off
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCKS_VARIABLE", "Claim", "RunStore", "locks_wanted", "safe_name"]

LOCKS_VARIABLE = "SHEAFDEQ_STORE_LOCKS"
LOCK_PATIENCE = 20.0
"""Seconds a lock may take to answer; a file system whose lock service is gone never does."""

RUN_FILES = (RECORD_FILE, CHECKPOINT_FACTS, CHECKPOINT_TENSORS)
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})


def locks_wanted() -> bool:
    """Whether runs are locked: yes unless SHEAFDEQ_STORE_LOCKS=off, or the system has no
    ``flock``."""
    choice = os.environ.get(LOCKS_VARIABLE) or "on"
    if choice not in ("on", "off"):
        raise UsageError(f"{LOCKS_VARIABLE} must be 'on' or 'off', got {choice!r}")
    return choice == "on" and fcntl is not None


def safe_name(text: str, limit: int = 150) -> str:
    """A file name made of a text: no separators, no leading dot, nothing a shell or terminal acts
    on."""
    name = re.sub(r"[^A-Za-z0-9._=+,-]+", "_", text)[:limit]
    return f"_{name.lstrip('.')}" if name.startswith(".") or not name else name


class Claim:
    """A held lock; release it with :meth:`release` or let the process end."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path

    def release(self) -> None:
        """Remove the lock file while it is still held, then let go."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # the disk may be gone or read-only by now
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class RunStore:
    """Finished runs, runs in progress and failures below one root."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._opened = False

    # ------------------------------------------------------------------ the folder itself

    def open(self) -> None:
        """Make the root if need be, once: a store that vanishes later is not made anew in its
        place."""
        if not self._opened:
            with self.guarded():
                self.root.mkdir(parents=True, exist_ok=True)
            self._opened = True

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Name what the file system refuses."""
        try:
            yield
        except OSError as error:
            gone = " (it has vanished)" if self._opened and not self.root.is_dir() else ""
            raise StoreError(
                f"the run store {self.root} cannot be written{gone}: {error.strerror or error}; "
                "free or restore the disk and do the same again, nothing finished is lost"
            ) from error

    def folder(self, name: str) -> Path:
        """An inner folder, made if need be; never through a symbolic link, never without the
        root."""
        self.open()
        path = self.root / name
        with self.guarded():
            path.mkdir(exist_ok=True)
        if path.is_symlink():
            raise StoreError(f"{path} is a symbolic link: it could lead anywhere; remove it")
        return path

    def probe(self) -> None:
        """Write and remove a small file; :class:`StoreError` says why that fails."""
        with self.guarded():
            aside = self.root / f".tmp-probe-{uuid.uuid4().hex}"
            try:
                with open(aside, "xb") as stream:
                    stream.write(b"0" * 65536)
                    stream.flush()
                    os.fsync(stream.fileno())
            finally:
                aside.unlink(missing_ok=True)

    # ------------------------------------------------------------------ finished runs

    def path(self, run_id: str) -> Path:
        """Directory of a finished run."""
        return self.root / run_id

    def finished(self, run_id: str) -> bool:
        """Whether the run is complete: all of its files are there."""
        return all(os.path.isfile(f"{self.root}/{run_id}/{name}") for name in RUN_FILES)

    def record(self, run_id: str) -> RunRecord:
        """The record of a finished run, checked."""
        record = read_record(self.path(run_id))
        if record.id != run_id:
            raise RecordError(f"{self.path(run_id)}: holds the record of run {record.id}")
        return record

    @contextlib.contextmanager
    def writing(self, run_id: str) -> Iterator[Path]:
        """A directory to fill; it becomes the finished run when the block ends without an error."""
        self.open()
        aside = self.root / f".tmp-{run_id}-{uuid.uuid4().hex}"
        with self.guarded():
            aside.mkdir()
            try:
                yield aside
                _sync(aside)
                self._publish(aside, run_id)
                _sync(self.root)
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def _publish(self, aside: Path, run_id: str) -> None:
        """Give a complete directory its name. Another writer's complete run wins; anything else
        there is put away."""
        while True:
            try:
                os.rename(aside, self.path(run_id))
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if self.finished(run_id):
                return
            # another writer may have put it away first
            with contextlib.suppress(FileNotFoundError):
                os.rename(
                    self.path(run_id), self.folder(".damaged") / f"{run_id}-{uuid.uuid4().hex}"
                )

    # ------------------------------------------------------------------ runs in progress

    def work(self, run_id: str) -> Path:
        """Directory for the state of a run in progress."""
        return self.root / ".work" / run_id

    def discard_work(self, run_id: str) -> None:
        """Remove what a run in progress left, its unfinished copies included."""
        shutil.rmtree(self.work(run_id), ignore_errors=True)
        for aside in self.root.glob(f".tmp-{run_id}-*"):
            shutil.rmtree(aside, ignore_errors=True)

    def tidy(self, run_id: str) -> None:
        """Remove what a process killed after its run was complete left behind, if nobody holds the
        run."""
        lock = self.root / ".locks" / run_id
        if not self.work(run_id).exists() and not os.path.lexists(lock):
            return
        with contextlib.suppress(StoreError):  # a store that is read-only is as good
            claim = self.claim(run_id)
            if claim is not None:
                self.discard_work(run_id)
                claim.release()

    def claim(self, run_id: str) -> Claim | None:
        """Take the right to compute a run; None when another process has it."""
        return self.lock(self.folder(".locks") / run_id)

    def lock(self, path: Path) -> Claim | None:
        """Lock a file of the store, made if need be; None when another process holds it."""
        while True:
            descriptor = self._lock_file(path, os.O_RDWR | os.O_CREAT)
            if not locks_wanted():
                return Claim(descriptor, path)
            try:
                held = not _flock(descriptor, path)
                # The previous holder may have removed the file between our open and our lock.
                current = not held and os.stat(path).st_ino == os.fstat(descriptor).st_ino
            except FileNotFoundError:
                held = current = False
            except BaseException:
                os.close(descriptor)
                raise
            if current:
                with self.guarded():
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return Claim(descriptor, path)
            os.close(descriptor)
            if held:
                return None

    def _lock_file(self, path: Path, flags: int) -> int:
        try:
            descriptor = os.open(
                path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), 0o644
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise StoreError(f"{path} is a symbolic link, not a lock: remove it") from error
            if error.errno == errno.ENOENT and not flags & os.O_CREAT:
                raise
            raise StoreError(
                f"{path}: cannot be locked ({error.strerror}); the store must be writable"
            ) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreError(f"{path} is not a regular file, so not a lock: remove it")
        return descriptor

    def running(self, run_id: str) -> bool:
        """Whether a living process holds the run."""
        return locks_wanted() and self.locked(self.root / ".locks" / run_id)

    def locked(self, path: Path) -> bool:
        """Whether a living process holds a lock of this store."""
        try:
            descriptor = self._lock_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _flock(descriptor, path, shared=True)
        finally:
            os.close(descriptor)

    def holder(self, run_id: str) -> int | None:
        """Process id of the last holder that did not let go of the run by itself."""
        path = self.root / ".locks" / run_id
        try:
            return None if path.is_symlink() else int(path.read_text() or 0) or None
        except (OSError, ValueError):
            return None

    # ------------------------------------------------------------------ failures

    def _failure_path(self, run_id: str) -> Path:
        return self.root / ".failed" / f"{run_id}.json"

    def fail(self, run_id: str, **facts: Any) -> None:
        """Record why an attempt failed."""
        folder = self.folder(".failed")
        with self.guarded():
            write_sealed(folder / f"{run_id}.json", {"id": run_id, **facts})

    def failure(self, run_id: str) -> dict[str, Any] | None:
        """Why the last attempt failed; None if it did not."""
        path = self._failure_path(run_id)
        if not os.path.isfile(path):
            return None
        try:
            found = read_sealed(path)
        except RecordError as error:
            found = {"error": str(error)}
        return {"error": "unknown", "invocation": "", **(found if isinstance(found, dict) else {})}

    def forgive(self, run_id: str) -> None:
        """Forget a failure."""
        with self.guarded():
            self._failure_path(run_id).unlink(missing_ok=True)

    def resolve(self, name: str) -> Path:
        """A finished run by id or by an unambiguous beginning of it."""
        known = self.root.iterdir() if self.root.is_dir() else ()
        matches = [
            path for path in known if path.name.startswith(name) and self.finished(path.name)
        ]
        if len(matches) != 1:
            raise RecordError(
                f"{len(matches)} runs in {self.root} match {name!r}, exactly one is needed"
            )
        return matches[0]


def _flock(descriptor: int, path: Path, *, shared: bool = False) -> bool:
    """Lock a file without waiting: True when it is ours, False when another process has it.

    The call is made in a thread of its own, because a network file system whose lock service does
    not answer holds it for ever.
    """
    outcome: list[OSError | None] = []

    def attempt() -> None:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            outcome.append(None)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(LOCK_PATIENCE)
    if not outcome:
        raise StoreError(_no_locks(path, f"no answer within {LOCK_PATIENCE:g} s"))
    error = outcome[0]
    if error is not None and error.errno not in _HELD:
        raise StoreError(_no_locks(path, error.strerror or str(error))) from error
    return error is None


def _no_locks(path: Path, reason: str) -> str:
    return (
        f"{path}: the file system does not lock files ({reason}): put the store on a disk that "
        "does, or set "
        f"{LOCKS_VARIABLE}=off and give every process its own --shard"
    )


def _sync(folder: Path) -> None:
    """Make a directory's entries durable (its files have been synced when they were written)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
