"""Picard iteration, plain or damped: z_{k+1} = (1 - a) z_k + a f(z_k)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sheafdeq.distances import RELATIVE_SUP, Distance
from sheafdeq.errors import InputError
from sheafdeq.solvers.iterate import Function, Observer, Stopping, iterate
from sheafdeq.solvers.solution import Solution

__all__ = ["Picard"]


@dataclass(frozen=True)
class Picard:
    """Picard iteration for a fixed number of steps, or to a tolerance.

    * ``Picard(steps=20)`` runs exactly 20 steps (the paper's training horizon) and judges the end by ``tolerance``.
    * ``Picard(steps=1000, tolerance=1e-6, stop_early=True)`` stops each graph where its residual is within tolerance.
    * ``damping=a`` in (0, 1] takes the share ``a`` of every step; 1 is the plain iteration. Fixed points are the same;
      cycles of the plain iteration often settle.
    """

    steps: int = 20
    tolerance: float | None = 1e-6
    stop_early: bool = False
    damping: float = 1.0
    distance: Distance = RELATIVE_SUP
    stagnation_window: int = 200
    trace: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise InputError(f"damping must be in (0, 1] (1 = undamped), got {self.damping!r}")
        self.stopping  # noqa: B018 - validates the rest

    @property
    def stopping(self) -> Stopping:
        """The loop's settings."""
        return Stopping(
            max_steps=self.steps,
            tolerance=self.tolerance,
            stop_early=self.stop_early,
            distance=self.distance,
            stagnation_window=self.stagnation_window,
            trace=self.trace,
        )

    def with_steps(self, steps: int) -> Picard:
        """The same solver with another step limit."""
        return replace(self, steps=steps)

    def start(self, state: Tensor, graph_of_node: Tensor | None, num_graphs: int) -> None:
        """Picard remembers nothing."""
        return None

    def propose(self, state: Tensor, image: Tensor, memory: None) -> tuple[Tensor, None]:
        """The image, or the damped mean of state and image."""
        return (image if self.damping == 1.0 else state + self.damping * (image - state)), None

    def solve(
        self,
        function: Function,
        initial: Tensor,
        *,
        graph_of_node: Tensor | None = None,
        num_graphs: int = 1,
        observe: Observer | None = None,
    ) -> Solution:
        """Iterate ``function`` from ``initial``."""
        return iterate(
            function,
            initial,
            self,
            self.stopping,
            graph_of_node=graph_of_node,
            num_graphs=num_graphs,
            observe=observe,
        )
