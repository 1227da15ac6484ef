"""The run store: one directory for each finished run, named by what was computed.

    <root>/<id>/             record.json, checkpoint.json, checkpoint.safetensors   (complete, or absent)
    <root>/.tmp-<id>-<...>/  being written; renamed when complete
    <root>/.work/<id>/       state of a run in progress, for resuming
    <root>/.locks/<id>       held (flock) by the process that computes the run; a killed process lets go of it
    <root>/.failed/<id>.json why the last attempt failed

A run becomes visible by one rename of a directory whose files have been synced, so a reader sees all of it or nothing, and of
two processes that compute the same run by accident one wins and the other's copy is dropped: at-least-once execution becomes
exactly-once results.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.records import RECORD_FILE, RunRecord, read_record, read_sealed, write_sealed

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: no advisory locks, the rename alone keeps results exact
    fcntl = None  # type: ignore[assignment]

__all__ = ["Claim", "RunStore"]


class Claim:
    """A held lock; release it with :meth:`release` or let the process end."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path

    def release(self) -> None:
        """Remove the lock file while it is still held, then let go."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


class RunStore:
    """Finished runs, runs in progress and failures below one root."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    # ------------------------------------------------------------------ finished runs

    def path(self, run_id: str) -> Path:
        """Directory of a finished run."""
        return self.root / run_id

    def finished(self, run_id: str) -> bool:
        """Whether the run is complete."""
        return (self.path(run_id) / RECORD_FILE).is_file()

    def record(self, run_id: str) -> RunRecord:
        """The record of a finished run, checked."""
        record = read_record(self.path(run_id))
        if record.id != run_id:
            raise RecordError(f"{self.path(run_id)}: holds the record of run {record.id}")
        return record

    @contextlib.contextmanager
    def writing(self, run_id: str) -> Iterator[Path]:
        """A directory to fill; it becomes the finished run when the block ends without an error."""
        self.root.mkdir(parents=True, exist_ok=True)
        aside = self.root / f".tmp-{run_id}-{uuid.uuid4().hex}"
        aside.mkdir()
        try:
            yield aside
            _sync(aside)
            try:
                os.rename(aside, self.path(run_id))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _sync(self.root)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    # ------------------------------------------------------------------ runs in progress

    def work(self, run_id: str) -> Path:
        """Directory for the state of a run in progress."""
        return self.root / ".work" / run_id

    def discard_work(self, run_id: str) -> None:
        """Remove what a run in progress left, its unfinished copies included."""
        shutil.rmtree(self.work(run_id), ignore_errors=True)
        for aside in self.root.glob(f".tmp-{run_id}-*"):
            shutil.rmtree(aside, ignore_errors=True)

    def claim(self, run_id: str) -> Claim | None:
        """Take the right to compute a run; None when another process has it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / run_id
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if fcntl is None:
                return Claim(descriptor, path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return None
            try:  # the previous holder may have removed the file between our open and our lock
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                    return Claim(descriptor, path)
            except FileNotFoundError:
                pass
            os.close(descriptor)

    def running(self, run_id: str) -> bool:
        """Whether a living process holds the run."""
        path = self.root / ".locks" / run_id
        if fcntl is None or not path.exists():
            return False
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holder(self, run_id: str) -> int | None:
        """Process id of the last holder that did not let go of the run by itself."""
        try:
            return int((self.root / ".locks" / run_id).read_text() or 0) or None
        except (FileNotFoundError, ValueError):
            return None

    # ------------------------------------------------------------------ failures

    def _failure_path(self, run_id: str) -> Path:
        return self.root / ".failed" / f"{run_id}.json"

    def fail(self, run_id: str, **facts: Any) -> None:
        """Record why an attempt failed."""
        path = self._failure_path(run_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, {"id": run_id, **facts})

    def failure(self, run_id: str) -> dict[str, Any] | None:
        """Why the last attempt failed; None if it did not."""
        path = self._failure_path(run_id)
        return read_sealed(path) if path.is_file() else None

    def forgive(self, run_id: str) -> None:
        """Forget a failure."""
        self._failure_path(run_id).unlink(missing_ok=True)

    def resolve(self, name: str) -> Path:
        """A finished run by id or by an unambiguous beginning of it."""
        matches = [path for path in self.root.glob(f"{name}*") if (path / RECORD_FILE).is_file()]
        if len(matches) != 1:
            raise RecordError(f"{len(matches)} runs in {self.root} match {name!r}, exactly one is needed")
        return matches[0]


def _sync(folder: Path) -> None:
    """Make a directory's entries durable (its files have been synced when they were written)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
