"""What the methods share: a stopping rule, and the way into the loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from sheafdeq.distances import Distance
from sheafdeq.errors import InputError
from sheafdeq.solvers.iterate import Function, Observer, iterate
from sheafdeq.solvers.partition import ONE_GRAPH, Partition
from sheafdeq.solvers.solution import Solution
from sheafdeq.solvers.stopping import Stopping

__all__ = ["FixedPointSolver"]

Kind = TypeVar("Kind", bound="FixedPointSolver")


@dataclass(frozen=True, init=False)
class FixedPointSolver:
    """A method with its stopping rule; subclasses supply the method.

    Args:
        steps: step limit.
        stopping: the whole rule, instead of ``steps`` and ``settings``.
        settings: fields of :class:`~sheafdeq.solvers.Stopping` (``tolerance``, ``stop_early``,
            ``distance``, ...).
    """

    stopping: Stopping

    def __init__(
        self, steps: int | None = None, *, stopping: Stopping | None = None, **settings: Any
    ) -> None:
        if stopping is None:
            stopping = Stopping(20 if steps is None else steps, **settings)
        elif steps is not None or settings:
            raise InputError(
                "give a Stopping or its fields, not both: "
                f"got stopping= and {', '.join(settings) or 'steps'}"
            )
        object.__setattr__(self, "stopping", stopping)

    @property
    def steps(self) -> int:
        """Step limit."""
        return self.stopping.steps

    @property
    def tolerance(self) -> float | None:
        """The residual that counts as converged."""
        return self.stopping.tolerance

    @property
    def stop_early(self) -> bool:
        """Whether a graph stops where its residual is within tolerance."""
        return self.stopping.stop_early

    @property
    def distance(self) -> Distance | None:
        """The solver's own distance; None leaves the choice to the model."""
        return self.stopping.distance

    def with_stopping(self: Kind, **changes: Any) -> Kind:
        """The same method, with some fields of its stopping rule replaced."""
        return replace(self, stopping=replace(self.stopping, **changes))

    def with_steps(self: Kind, steps: int) -> Kind:
        """The same solver with another step limit."""
        return self.with_stopping(steps=steps)

    def judged_by(self: Kind, distance: Distance) -> Kind:
        """The same solver with ``distance``, unless it has one of its own."""
        return self.with_stopping(distance=distance) if self.distance is None else self

    def start(self, state: Tensor, partition: Partition) -> Any:
        """Memory before the first step."""
        raise NotImplementedError("a method supplies start()")

    def propose(self, state: Tensor, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(z_k, f(z_k), memory) -> (z_{k+1}, memory)."""
        raise NotImplementedError("a method supplies propose()")

    def halted(self, memory: Any) -> Tensor | None:
        """A fixed-point method always moves."""
        return None

    def solve(
        self,
        function: Function,
        initial: Tensor,
        *,
        partition: Partition = ONE_GRAPH,
        observe: Observer | None = None,
    ) -> Solution:
        """Iterate ``function`` from ``initial``."""
        return iterate(function, initial, self, self.stopping, partition=partition, observe=observe)
