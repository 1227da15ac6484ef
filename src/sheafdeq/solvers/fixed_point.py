"""What the methods share: settings of the loop, and the way into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from sheafdeq.distances import RELATIVE_ENTRY, Distance
from sheafdeq.solvers.iterate import Function, Observer, Stopping, iterate
from sheafdeq.solvers.solution import Solution

__all__ = ["FixedPointSolver"]

Kind = TypeVar("Kind", bound="FixedPointSolver")


@dataclass(frozen=True)
class FixedPointSolver:
    """A method with its stopping rule (see :class:`~sheafdeq.solvers.iterate.Stopping`); subclasses
    supply the method.

    ``distance=None`` leaves the choice to the model that is solved (Thompson's where states are
    positive); without a model it is ``relative-entry``.
    """

    steps: int = 20
    tolerance: float | None = 1e-6
    stop_early: bool = False
    distance: Distance | None = None
    stagnation_window: int = 200
    trace: bool = True

    def __post_init__(self) -> None:
        self.stopping  # noqa: B018 - checks the settings

    @property
    def stopping(self) -> Stopping:
        """The loop's settings."""
        return Stopping(
            max_steps=self.steps,
            tolerance=self.tolerance,
            stop_early=self.stop_early,
            distance=RELATIVE_ENTRY if self.distance is None else self.distance,
            stagnation_window=self.stagnation_window,
            trace=self.trace,
        )

    def with_steps(self: Kind, steps: int) -> Kind:
        """The same solver with another step limit."""
        return replace(self, steps=steps)

    def judged_by(self: Kind, distance: Distance) -> Kind:
        """The same solver with ``distance``, unless it has one of its own."""
        return replace(self, distance=distance) if self.distance is None else self

    def stopping_with(self, distance: Distance) -> Stopping:
        """The loop's settings with another distance."""
        return replace(self.stopping, distance=distance)

    def start(self, state: Tensor, graph_of_node: Tensor | None, num_graphs: int) -> Any:
        """Memory before the first step."""
        raise NotImplementedError("a method supplies start()")

    def propose(self, state: Tensor, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(z_k, f(z_k), memory) -> (z_{k+1}, memory)."""
        raise NotImplementedError("a method supplies propose()")

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
