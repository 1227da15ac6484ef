"""Picard iteration, plain or damped: z_{k+1} = (1 - a) z_k + a f(z_k)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.partition import Partition

__all__ = ["Picard"]


@dataclass(frozen=True, init=False)
class Picard(FixedPointSolver):
    """Picard iteration for a fixed number of steps, or to a tolerance.

    * ``Picard(steps=20)`` runs exactly 20 steps (the paper's training horizon) and judges the end
      by ``tolerance``.
    * ``Picard(steps=1000, tolerance=1e-6, stop_early=True)`` stops each graph where its residual is
      within tolerance.
    * ``damping=a`` in (0, 1] takes the share ``a`` of every step; 1 is the plain iteration. Fixed
      points are the same; cycles of the plain iteration often settle. ``undamped=m`` leaves the
      first m steps plain: a start far from the solutions is forgotten at once by a bounded map, but
      lingers for many damped steps.
    """

    damping: float
    undamped: int
    plain: ClassVar[bool] = True  # a step decides nothing by numbers, so that it can be exported

    def __init__(
        self, steps: int | None = None, *, damping: float = 1.0, undamped: int = 0, **stopping: Any
    ) -> None:
        if not 0 < damping <= 1:
            raise InputError(f"damping must be in (0, 1] (1 = undamped), got {damping!r}")
        if undamped < 0:
            raise InputError(f"undamped must be a number of steps, 0 or more, got {undamped!r}")
        super().__init__(steps, **stopping)
        object.__setattr__(self, "damping", damping)
        object.__setattr__(self, "undamped", undamped)

    def start(self, state: Tensor, partition: Partition) -> int:
        """Picard remembers the number of steps taken."""
        return 0

    def propose(self, state: Tensor, image: Tensor, memory: int) -> tuple[Tensor, int]:
        """The image, or the damped mean of state and image."""
        plain = self.damping == 1.0 or memory < self.undamped
        return (image if plain else state + self.damping * (image - state)), memory + 1
