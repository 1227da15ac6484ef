"""Ctrl-C and SIGTERM as a request that the loop honours between epochs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sheafdeq.errors import SheafDEQError

__all__ = ["Interrupt", "Suspended"]


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


class Interrupt:
    """Turns SIGINT and SIGTERM into a request that the loop honours between epochs; a second signal
    is immediate."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take both signals while the block runs; one that came too late is passed on."""
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
