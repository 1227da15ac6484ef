"""Learning-rate schedules, as a factor of the base rate with a state that fits in JSON.

* ``wsd`` (warm-up, stable, decay; the paper's protocol and the default): rises linearly over the
  first share ``warmup`` of ``max_epochs``, stays at 1, and falls linearly to ``floor`` over the
  last share ``decay``. A function of the epoch alone.
* ``constant``: 1.
* ``plateau``: multiplied by ``factor`` after ``patience`` epochs without a better validation score,
  never below ``floor``.
"""

from __future__ import annotations

from typing import Any

from sheafdeq.training.config import ScheduleConfig

__all__ = ["RateSchedule"]


class RateSchedule:
    """Call :meth:`rate` once for each epoch, in order, with the validation score of that epoch's
    parameters."""

    def __init__(self, config: ScheduleConfig, max_epochs: int) -> None:
        self.config = config
        self.max_epochs = max_epochs
        self.factor = 1.0  # plateau
        self.best: float | None = None
        self.waited = 0

    def rate(self, epoch: int, score: float) -> float:
        """The factor for the update that follows epoch ``epoch`` (0 = before the first update)."""
        if self.config.kind == "wsd":
            return self._wsd(epoch)
        if self.config.kind == "plateau":
            return self._plateau(score)
        return 1.0

    def _wsd(self, epoch: int) -> float:
        warmup = min(1.0, (epoch + 1) / (self.config.warmup * self.max_epochs + 1))
        falling = self.config.decay * self.max_epochs
        left = self.max_epochs - epoch
        fall = 1.0 if falling <= 0 or left >= falling else left / falling
        return warmup * (self.config.floor + (1 - self.config.floor) * fall)

    def _plateau(self, score: float) -> float:
        if self.best is None or score > self.best:
            self.best, self.waited = score, 0
        else:
            self.waited += 1
            if self.waited > self.config.patience:
                self.factor, self.waited = (
                    max(self.config.floor, self.factor * self.config.factor),
                    0,
                )
        return self.factor

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON values."""
        return {"factor": self.factor, "best": self.best, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self.factor, self.best, self.waited = state["factor"], state["best"], state["waited"]
