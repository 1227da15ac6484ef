"""How a run shows itself: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

from sheafdeq.errors import InputError
from sheafdeq.training.loop import EpochMetrics

__all__ = [
    "BarProgress",
    "LineProgress",
    "Progress",
    "SilentProgress",
    "progress_from",
]


class Progress(Protocol):
    """Told about every epoch."""

    def start(self, title: str, epoch: int, max_epochs: int) -> None:
        """Before the first epoch; ``epoch`` > 0 when resumed."""

    def update(self, metrics: EpochMetrics) -> None:
        """After every epoch."""

    def finish(self, message: str) -> None:
        """At the end, however it came."""


class SilentProgress:
    """Says nothing."""

    def start(self, title: str, epoch: int, max_epochs: int) -> None:
        """Nothing."""

    def update(self, metrics: EpochMetrics) -> None:
        """Nothing."""

    def finish(self, message: str) -> None:
        """Nothing."""


class LineProgress:
    """A line every ``seconds``, and one at either end."""

    def __init__(self, stream: TextIO | None = None, seconds: float = 10.0) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.seconds = seconds

    def start(self, title: str, epoch: int, max_epochs: int) -> None:
        """Title, and where a resumed run continues."""
        self.first, self.max_epochs = epoch, max_epochs
        self.began = self.last = time.monotonic()
        self._say(title + (f" (resumed at epoch {epoch})" if epoch else ""))

    def update(self, metrics: EpochMetrics) -> None:
        """Loss, validation score, best so far, epochs per second and time left."""
        now = time.monotonic()
        if now - self.last >= self.seconds:
            self.last = now
            speed = (metrics.epoch - self.first + 1) / max(now - self.began, 1e-9)
            left = (self.max_epochs - metrics.epoch) / max(speed, 1e-9)
            self._say(
                f"epoch {metrics.epoch}/{self.max_epochs}  loss {metrics.loss:.4f}  validation "
                f"{metrics.validation:.3f}  "
                f"best {metrics.best:.3f} (epoch {metrics.best_epoch})  {speed:.2f} epochs/s  at "
                f"most {_clock(left)} left"
            )

    def finish(self, message: str) -> None:
        """How it ended."""
        self._say(message)

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class BarProgress:
    """A bar on a terminal (rich), at least ten columns wide; narrow terminals are told less."""

    def __init__(self, console: Any = None) -> None:
        self.console = console

    def start(self, title: str, epoch: int, max_epochs: int) -> None:
        """Draw the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.began, self.first = time.monotonic(), epoch
        console = self.console if self.console is not None else Console(stderr=True)
        # on a line of its own: the bar keeps its width
        console.print(title, markup=False, highlight=False)
        self.bar: Any = RichProgress(
            BarColumn(bar_width=max(10, min(40, console.width - 66))),
            TextColumn("{task.completed}/{task.total}  {task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.bar.start()
        self.line = self.bar.add_task(title, total=max_epochs, completed=epoch, text="")

    def update(self, metrics: EpochMetrics) -> None:
        """Move the bar."""
        speed = (metrics.epoch - self.first + 1) / max(time.monotonic() - self.began, 1e-9)
        text = f"val {metrics.validation:.2f}  best {metrics.best:.2f}"
        if self.bar.console.width >= 76:  # else the bar would be left no width
            text = f"loss {metrics.loss:.3g}  {text}  {speed:.1f}/s"
        self.bar.update(self.line, completed=metrics.epoch, text=text)

    def finish(self, message: str) -> None:
        """Remove the bar, leave the message."""
        self.bar.stop()
        print(message, file=sys.stderr)


def progress_from(choice: Progress | str | bool | None) -> Progress:
    """``"auto"`` or True: a bar on a terminal, else lines; ``"lines"``, ``"bar"``; None or False:
    silence; or your own object."""
    if choice is None or choice is False:
        return SilentProgress()
    if choice is True or choice == "auto":
        return BarProgress() if sys.stderr.isatty() else LineProgress()
    if choice == "lines":
        return LineProgress()
    if choice == "bar":
        return BarProgress()
    if isinstance(choice, str):
        raise InputError(
            f"progress must be 'auto', 'lines', 'bar', None or an object, got {choice!r}"
        )
    return choice


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
