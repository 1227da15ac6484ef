"""Backpropagation through the last k iterations only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.solvers import Picard, Solution, Solver, Stopping
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import Function

__all__ = ["Truncated"]


@dataclass(frozen=True)
class Truncated:
    """Run the first steps without recording, then record ``last`` plain steps.

    The value is that of the full iteration. The gradient is biased: it drops how the state before
    the last ``last`` steps depends on the parameters. With a solver that stops early, the recorded
    steps follow the converged state.
    """

    last: int = 5

    def __post_init__(self) -> None:
        if self.last < 1:
            raise InputError(
                f"truncated gradients need at least one recorded step, got {self.last!r}"
            )

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        """Solve, recording only the end."""
        before = solver.steps if solver.stop_early else max(solver.steps - self.last, 0)
        recorded = self.last if solver.stop_early else min(self.last, solver.steps)
        with torch.no_grad():
            silent = solver.with_steps(before).solve(function, initial, **options)
        observe = options.pop("observe", None)
        shifted = (
            None
            if observe is None
            else (lambda k, state: observe(silent.steps + k, state) if k else None)
        )
        rule = solver.stopping if isinstance(solver, FixedPointSolver) else Stopping(recorded)
        tail = Picard(stopping=replace(rule, steps=recorded, stop_early=False))
        end = tail.solve(function, silent.value.detach(), observe=shifted, **options)
        end.residuals = silent.residuals + end.residuals
        end.steps += silent.steps
        end.evaluations += silent.evaluations
        end.graph_steps = end.graph_steps + silent.graph_steps
        return end
