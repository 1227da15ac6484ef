"""The gradient of the equilibrium itself, by the implicit function theorem.

At z* = f(z*, theta) a cotangent g of z* gives the parameters the cotangent of one attached step, multiplied by the solution of

    u = g + J^T u,      J = df/dz at z*,

which is itself a fixed point and is solved to a tolerance of its own. Nothing of the forward iteration is kept: memory does not
grow with the number of iterations. The end of the backward solve is reported as ``solution.backward`` and, when it failed, by a
:class:`~sheafdeq.errors.BackwardWarning`: a gradient that could not be computed never looks like one that could.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.distances import SUP
from sheafdeq.errors import BackwardWarning
from sheafdeq.solvers import Anderson, Picard, Solution, Solver
from sheafdeq.solvers.iterate import Function
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["Implicit"]


class _ReplaceCotangent(torch.autograd.Function):
    """Identity forward; backward hands on the solution of the adjoint system instead of the cotangent."""

    @staticmethod
    def forward(ctx: Any, attached: Tensor, solve_adjoint: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve_adjoint = solve_adjoint
        return attached.view_as(attached)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return ctx.solve_adjoint(cotangent), None


@dataclass(frozen=True)
class Implicit:
    """Implicit differentiation; ``tolerance`` and ``max_steps`` belong to the backward solve.

    The tolerance is relative to the largest entry of each incoming cotangent. ``method`` is ``picard`` or ``anderson``.
    """

    tolerance: float = 1e-6
    max_steps: int = 500
    method: str = "picard"

    def solve(self, function: Function, initial: Tensor, solver: Solver, **options: Any) -> Solution:
        """Solve without recording, then attach one step whose backward is the adjoint solve."""
        with torch.no_grad():
            solution = solver.solve(function, initial, **options)
        graph_of_node, num_graphs = options.get("graph_of_node"), options.get("num_graphs", 1)
        equilibrium = solution.value.detach()
        report = AdjointReport()
        solution.adjoint = report

        def solve_adjoint(cotangent: Tensor) -> Tensor:
            with torch.enable_grad():
                point = equilibrium.clone().requires_grad_()
                image = function(point)
            scale = cotangent.abs().max()
            if not bool(torch.isfinite(scale)):
                warnings.warn("the incoming gradient is not finite; it is passed on unsolved", BackwardWarning, stacklevel=2)
                return cotangent
            if float(scale) == 0.0:
                return cotangent
            unit = cotangent / scale

            def adjoint_step(u: Tensor) -> Tensor:
                (pulled,) = torch.autograd.grad(image, point, u, retain_graph=True, allow_unused=True)
                return unit if pulled is None else unit + pulled

            with torch.no_grad():
                backward = self._solver().solve(adjoint_step, unit, graph_of_node=graph_of_node, num_graphs=num_graphs)
            report.solution = backward
            if not backward.converged:
                warnings.warn(f"the implicit gradient is not solved: {backward}", BackwardWarning, stacklevel=2)
            return backward.value * scale

        with torch.enable_grad():
            attached = function(equilibrium)
            solution.value = _ReplaceCotangent.apply(attached, solve_adjoint)
        return solution

    def _solver(self) -> Solver:
        kind = Anderson if self.method == "anderson" else Picard
        return kind(steps=self.max_steps, tolerance=self.tolerance, stop_early=True, distance=SUP)

