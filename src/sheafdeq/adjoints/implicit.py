"""The gradient of the equilibrium itself, by the implicit function theorem.

At z* = f(z*, theta) a cotangent g of z* gives the parameters the cotangent of one attached step,
multiplied by the solution of

    u = g + J^T u,      J = df/dz at z*,

which is itself a fixed point and is solved by a solver of its own. Nothing of the forward iteration
is kept: memory does not grow with the number of iterations. The value is the state the solver
returned and judged, not the attached step's.

What is judged is the error of u, graph by graph (:mod:`~sheafdeq.adjoints.backward`). The end of
the backward solve is ``solution.backward`` and, when it failed, a
:class:`~sheafdeq.errors.BackwardWarning`: a gradient that could not be computed never looks like
one that could.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints.attachment import attach
from sheafdeq.adjoints.backward import OneProcess, solve_backward, unsolved
from sheafdeq.errors import BackwardWarning, InputError
from sheafdeq.solvers import ONE_GRAPH, Partition, Picard, Solution, Solver
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import Function
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["Implicit", "warn_unsolved"]


@dataclass(frozen=True)
class Implicit:
    """Implicit differentiation.

    Args:
        solver: solves the backward equation, ``Picard(...)`` or ``Anderson(...)``. Its tolerance is
            the estimated error of u relative to its largest entry, for each graph of a batch on its
            own: a graph gets the gradient it would get alone.
    """

    solver: FixedPointSolver = Picard(500, tolerance=1e-6, stop_early=True)

    def __post_init__(self) -> None:
        if not isinstance(self.solver, FixedPointSolver):
            raise InputError(
                f"the backward solver must be an object such as Picard(500, tolerance=1e-6, "
                f"stop_early=True) or Anderson(500), got {self.solver!r}"
            )
        if self.solver.tolerance is None:
            raise InputError("the backward solver needs a tolerance")
        if self.solver.distance is not None:
            raise InputError(
                "the backward solve is judged by its estimated error: leave the solver's "
                f"distance out, got {self.solver.distance.name!r}"
            )

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        """Solve without recording, then attach one step whose backward is the adjoint solve."""
        with torch.no_grad():
            solution = solver.solve(function, initial, **options)
        partition = options.get("partition", ONE_GRAPH)
        equilibrium = solution.value.detach()
        report = AdjointReport()
        solution.adjoint = report

        def solve_adjoint(cotangent: Tensor) -> Tensor:
            with torch.enable_grad():
                point = equilibrium.clone().requires_grad_()
                image = function(point)

            def pull(u: Tensor) -> Tensor:
                (pulled,) = torch.autograd.grad(
                    image, point, u, retain_graph=True, allow_unused=True
                )
                return torch.zeros_like(u) if pulled is None else pulled

            with torch.no_grad():
                backward = self._solved(
                    pull if image.requires_grad else torch.zeros_like, cotangent, partition
                )
            report.solution = backward
            warn_unsolved(backward)
            return backward.value

        with torch.enable_grad():
            attached = function(equilibrium)
            if attached.requires_grad:
                solution.value = attach(equilibrium, attached, solve_adjoint)
        return solution

    def _solved(self, pull: Function, cotangent: Tensor, partition: Partition) -> Solution:
        """u = cotangent + pull(u), every graph to its own scale."""
        scale = partition.largest(cotangent)
        if not bool(torch.isfinite(scale).all()):
            return unsolved(cotangent, scale)
        unit = cotangent / partition.column(torch.where(scale > 0, scale, torch.ones_like(scale)))
        solution = solve_backward(OneProcess(pull, unit, partition), self.solver)
        solution.value = solution.value * partition.column(scale)
        return solution


def warn_unsolved(backward: Solution) -> None:
    """A :class:`~sheafdeq.errors.BackwardWarning` unless the solve converged."""
    if not backward.converged:
        warnings.warn(
            f"the implicit gradient is not solved: {backward}", BackwardWarning, stacklevel=3
        )
