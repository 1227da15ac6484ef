"""Backpropagation through every iteration: the paper's gradient. Memory grows with the number of
steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sheafdeq.solvers import Solution, Solver
from sheafdeq.solvers.iterate import Function

__all__ = ["Unrolled"]


@dataclass(frozen=True)
class Unrolled:
    """The exact gradient of the finite iteration that was run."""

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        """Solve with gradients recorded through the whole loop."""
        return solver.solve(function, initial, **options)
