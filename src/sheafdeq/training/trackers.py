"""Trackers: the course of a run for TensorBoard or Weights & Biases, around another display.

A tracker is a :class:`~sheafdeq.training.progress.Progress`. It opens when a run begins to compute,
so a run that is found in the store logs nothing, and a resumed one goes on at the epoch it was
saved at: what an earlier attempt logged beyond it is not logged a second time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sheafdeq.errors import UsageError
from sheafdeq.records import RunRecord
from sheafdeq.training.loop import EpochMetrics
from sheafdeq.training.progress import Progress

__all__ = ["TensorBoardTracker", "Tracker", "WandbTracker"]

CURVES = ("loss", "validation", "best", "learning_rate")
"""What is logged of every epoch."""


class Tracker:
    """What both have in common. ``finish`` closes, unless ``held``: then :meth:`close` does, and
    the final scores can still be added by :meth:`summary`."""

    def __init__(self, inner: Progress, *, held: bool = False) -> None:
        self.inner, self.held = inner, held
        self.first = 0  # epochs before this one are logged already

    def start(self, title: str, epoch: int, max_epochs: int) -> None:
        """Open, and pass on."""
        self.open(title, epoch)
        self.inner.start(title, epoch, max_epochs)

    def update(self, metrics: EpochMetrics) -> None:
        """Log loss, validation score, best score and learning rate, and pass on."""
        if metrics.epoch >= self.first and metrics.scored:
            self.log({name: getattr(metrics, name) for name in CURVES}, metrics.epoch)
        self.inner.update(metrics)

    def finish(self, message: str) -> None:
        """Pass on, and close."""
        self.inner.finish(message)
        if not self.held:
            self.close()

    def open(self, title: str, epoch: int) -> None:
        """Begin, or go on at an epoch."""
        raise NotImplementedError("a tracker supplies open()")

    def log(self, values: dict[str, float], epoch: int) -> None:
        """Note the values of one epoch."""
        raise NotImplementedError("a tracker supplies log()")

    def summary(self, record: RunRecord) -> None:
        """Add what the finished run says: scores of the kept checkpoint, residual."""
        raise NotImplementedError("a tracker supplies summary()")

    def close(self) -> None:
        """Write everything out; a second time does nothing."""
        raise NotImplementedError("a tracker supplies close()")


class TensorBoardTracker(Tracker):
    """Curves for TensorBoard (extra ``sheafdeq[tensorboard]``) in ``folder``."""

    def __init__(self, folder: str | Path, inner: Progress, *, held: bool = False) -> None:
        super().__init__(inner, held=held)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "--tensorboard needs the package tensorboard (pip install "
                f"'sheafdeq[tensorboard]'): {error}"
            ) from error
        self.folder, self.make = str(folder), SummaryWriter
        self.writer: Any = None

    def open(self, title: str, epoch: int) -> None:
        """Curves of an earlier attempt end where this one goes on."""
        self.writer = self.make(self.folder, purge_step=epoch or None)
        if not epoch:
            self.writer.add_text("run", title)

    def log(self, values: dict[str, float], epoch: int) -> None:
        """One point of every curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)

    def summary(self, record: RunRecord) -> None:
        """The scores of the kept checkpoint, at its epoch."""
        if self.writer is None:
            return
        for split, score in record.scores.items():
            self.writer.add_scalar(f"kept/{split}", score, record.best.epoch)
        if record.solves is not None and record.solves.residual is not None:
            self.writer.add_scalar("kept/residual", record.solves.residual, record.best.epoch)

    def close(self) -> None:
        """Flush."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class WandbTracker(Tracker):
    """A run of Weights & Biases (extra ``sheafdeq[wandb]``); ``WANDB_MODE=offline`` keeps it here.

    ``project`` may be ``entity/project``. ``run_id`` is the id of a stored run: with it an
    interrupted run goes on in the same curve.
    """

    def __init__(
        self,
        project: str,
        inner: Progress,
        *,
        config: dict[str, Any] | None = None,
        run_id: str | None = None,
        held: bool = False,
    ) -> None:
        super().__init__(inner, held=held)
        try:
            import wandb
        except ImportError as error:
            raise UsageError(
                f"--wandb needs the package wandb (pip install 'sheafdeq[wandb]'): {error}"
            ) from error
        entity, slash, name = project.rpartition("/")
        if not name or (slash and not entity):
            raise UsageError(f"--wandb takes PROJECT or ENTITY/PROJECT, got {project!r}")
        self.wandb, self.entity, self.project = wandb, entity or None, name
        self.config, self.run_id = config or {}, run_id
        self.run: Any = None

    def open(self, title: str, epoch: int) -> None:
        """The run of this id, taken up where the service says it ended."""
        self.run = self.wandb.init(
            project=self.project,
            entity=self.entity,
            name=title,
            config=self.config,
            id=self.run_id,
            resume="allow" if self.run_id else None,
        )
        # values of one epoch are the same in every attempt, so those that are there can stay
        self.first = int(self.run.step) if getattr(self.run, "resumed", False) else 0

    def log(self, values: dict[str, float], epoch: int) -> None:
        """One step."""
        self.run.log(values, step=epoch)

    def summary(self, record: RunRecord) -> None:
        """The scores of the kept checkpoint."""
        if self.run is None:
            return
        for split, score in record.scores.items():
            self.run.summary[f"kept/{split}"] = score
        self.run.summary["kept/epoch"] = record.best.epoch
        if record.solves is not None and record.solves.residual is not None:
            self.run.summary["kept/residual"] = record.solves.residual

    def close(self) -> None:
        """Finish the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None
