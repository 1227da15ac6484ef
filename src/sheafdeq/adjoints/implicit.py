"""The gradient of the equilibrium itself, by the implicit function theorem.

At z* = f(z*, theta) a cotangent g of z* gives the parameters the cotangent of one attached step,
multiplied by the solution of

    u = g + J^T u,      J = df/dz at z*,

which is itself a fixed point and is solved to a tolerance of its own. Nothing of the forward
iteration is kept: memory does not grow with the number of iterations. The value is the state the
solver returned and judged, not the attached step's.

**What is judged is the error.** A residual r of this linear equation leaves the error (I -
J^T)^{-1} r, which is r / (1 - rate) in the slowest direction: with 1 - rate = 1e-8 a residual of
1e-6 says nothing. So the rate of J^T is measured, for each graph, by power steps from a fixed
pseudo-random start and again from the residual that is left, and a graph is CONVERGED when residual
/ (1 - rate) is within tolerance of the largest entry of *its own* u. It is an estimate (in the
largest entry, with a measured rate), not a bound. The end of the backward solve is
``solution.backward`` and, when it failed, a
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
from sheafdeq.distances import Distance, resolution
from sheafdeq.errors import BackwardWarning
from sheafdeq.solvers import Anderson, Picard, Solution, Solver, Status
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import Function, iterate, per_graph_max
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["ERROR_DISTANCE", "Implicit"]

ERROR_DISTANCE = "error-estimate"
"""Name of the distance of a backward solve: sup |f(u) - u| / (1 - rate), relative to the largest
entry of the graph's u."""
PROBE_STEPS = 16
"""Products with J^T spent on the rate before the solve; its later half is measured."""
CHECK_STEPS = 8
"""Products spent on the rate of the residual that is left after the solve."""
LONGEST_PROBE = 128
"""Products after which a rate is taken as it is."""
ROUNDS = 4
"""How often a solve is resumed when that rate turns out slower than the one it was judged by."""
LARGEST_RAISED_TOLERANCE = 1e-3
"""Rounding limits the error to about resolution / (1 - rate); the tolerance is raised to that, but
never beyond this."""


@dataclass(frozen=True)
class Implicit:
    """Implicit differentiation; ``tolerance`` and ``max_steps`` belong to the backward solve.

    The tolerance is the estimated error of u relative to its largest entry, for each graph of a
    batch on its own: a graph gets the gradient it would get alone. ``method`` is ``picard`` or
    ``anderson``.
    """

    tolerance: float = 1e-6
    max_steps: int = 500
    method: str = "picard"

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        """Solve without recording, then attach one step whose backward is the adjoint solve."""
        with torch.no_grad():
            solution = solver.solve(function, initial, **options)
        graphs = _Graphs(options.get("graph_of_node"), options.get("num_graphs", 1))
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
                    pull if image.requires_grad else torch.zeros_like, cotangent, graphs
                )
            report.solution = backward
            if not backward.converged:
                warnings.warn(
                    f"the implicit gradient is not solved: {backward}",
                    BackwardWarning,
                    stacklevel=2,
                )
            return backward.value

        with torch.enable_grad():
            attached = function(equilibrium)
            if attached.requires_grad:
                solution.value = attach(equilibrium, attached, solve_adjoint)
        return solution

    def _solved(self, pull: Function, cotangent: Tensor, graphs: _Graphs) -> Solution:
        """u = cotangent + pull(u), every graph to its own scale."""
        scale = graphs.largest(cotangent)
        unit = cotangent / graphs.spread(torch.where(scale > 0, scale, torch.ones_like(scale)))
        if not bool(torch.isfinite(scale).all()):
            return _unsolved(cotangent, scale)
        rate, spent = _rate(pull, _pattern(unit), graphs, PROBE_STEPS)
        solution: Solution | None = None
        value, left = unit, self.max_steps
        for _ in range(ROUNDS):
            tolerances = self._tolerances(rate, unit.dtype)
            stopping = self._method(left).stopping_with(_error_distance(rate, graphs))
            part = iterate(
                lambda u: unit + pull(u),
                value,
                self._method(left),
                stopping,
                graph_of_node=graphs.of_node,
                num_graphs=graphs.count,
                tolerances=tolerances,
            )
            solution = part if solution is None else _continued(solution, part)
            value, left = part.value, left - part.steps
            # The rate as the residual shows it: a slow direction that the probe missed survives in
            # what is left.
            remaining = unit + pull(value) - value
            observed, products = _rate(pull, remaining, graphs, CHECK_STEPS)
            slower, spent = torch.maximum(rate, observed), spent + products + 1
            error = _error_distance(slower, graphs)(value + remaining, value)
            error = per_graph_max(error, graphs.of_node, graphs.count)
            missed = torch.tensor([s is Status.CONVERGED for s in part.graph_status]) & ~(
                error <= tolerances
            )
            rate = slower
            if not bool(missed.any()):
                break
            if left <= 0:
                solution = _missed(solution, missed, error)
                break
        else:
            assert solution is not None
            solution = _missed(solution, missed, error)
        assert solution is not None
        solution.value = solution.value * graphs.spread(scale)
        solution.evaluations += spent
        return solution

    def _tolerances(self, rate: Tensor, dtype: torch.dtype) -> Tensor:
        """(num_graphs,) what was asked for, or what rounding leaves of it at this rate."""
        floor = resolution(dtype) / (1 - rate).clamp(min=resolution(dtype))
        return floor.clamp(max=LARGEST_RAISED_TOLERANCE).clamp(min=self.tolerance)

    def _method(self, steps: int) -> FixedPointSolver:
        kind = Anderson if self.method == "anderson" else Picard
        return kind(steps=steps, tolerance=self.tolerance, stop_early=True)


@dataclass(frozen=True)
class _Graphs:
    """Which row belongs to which graph."""

    of_node: Tensor | None
    count: int

    def largest(self, rows: Tensor) -> Tensor:
        """(n, c) -> (count,) the largest absolute entry; infinite where something is not finite."""
        size = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
        return per_graph_max(torch.nan_to_num(size, nan=torch.inf), self.of_node, self.count)

    def spread(self, values: Tensor) -> Tensor:
        """(count,) -> (n, 1) or (1, 1), to multiply rows."""
        return (
            values.view(1, 1)
            if self.of_node is None
            else values.index_select(0, self.of_node).unsqueeze(1)
        )


def _error_distance(rate: Tensor, graphs: _Graphs) -> Distance:
    gap = (1 - rate).clamp(min=torch.finfo(rate.dtype).eps)

    def measure(new: Tensor, old: Tensor) -> Tensor:
        size = graphs.largest(new).clamp(min=1.0)  # the cotangent has largest entry one
        return (
            ((new - old).abs() / graphs.spread(gap * size)).amax(1)
            if new.shape[1]
            else new.new_zeros(len(new))
        )

    return Distance(ERROR_DISTANCE, measure)


def _pattern(like: Tensor) -> Tensor:
    """Fixed pseudo-random signs and sizes: a start with a share in every direction, the same in
    every run."""
    count = torch.arange(like.numel(), dtype=torch.int64, device=like.device)
    mixed = (count * 2654435761 + 12345) % 4294967296
    mixed = (mixed * 40503 + (mixed >> 16)) % 65536
    return (mixed.to(like.dtype) / 32768 - 1 + 2.0**-17).view_as(like)


def _rate(pull: Function, start: Tensor, graphs: _Graphs, steps: int) -> tuple[Tensor, int]:
    """(num_graphs,) by which factor ``pull`` shrinks each graph's largest entry a step, and how
    many products that took.

    Measured over the later half of ``steps`` products, and twice as many as long as a graph looks
    so slow (or, for a while, so expanding) that this many could not tell.
    """
    vector = start
    dead = torch.zeros(graphs.count, dtype=torch.bool, device=start.device)
    logs: list[Tensor] = []  # logarithm of the size after every product
    taken = 0
    while True:
        while len(logs) <= steps:
            size = graphs.largest(vector)
            dead = dead | ~(size > 0)
            total = logs[-1] if logs else torch.zeros_like(size)
            logs.append(total + torch.where(dead, torch.zeros_like(size), size.log()))
            vector = pull(vector / graphs.spread(torch.where(dead, torch.ones_like(size), size)))
            taken += 1
        half = steps // 2
        rate = torch.nan_to_num(((logs[steps] - logs[half]) / (steps - half)).exp(), nan=torch.inf)
        rate = torch.where(dead, torch.zeros_like(rate), rate)
        if steps >= LONGEST_PROBE or not bool((rate > 1 - 2 / steps).any()):
            return rate, taken
        steps *= 2


def _continued(first: Solution, second: Solution) -> Solution:
    second.residuals = first.residuals + second.residuals
    second.steps += first.steps
    second.evaluations += first.evaluations
    second.graph_steps = second.graph_steps + first.graph_steps
    return second


def _missed(solution: Solution, missed: Tensor, error: Tensor) -> Solution:
    """Graphs whose error turned out larger than what they were judged by did not converge."""
    solution.graph_status = tuple(
        Status.MAX_STEPS if wrong else status
        for status, wrong in zip(solution.graph_status, missed.tolist(), strict=True)
    )
    solution.status = Status.worst(solution.graph_status)
    solution.graph_residual = torch.where(missed, error, solution.graph_residual)
    return solution


def _unsolved(cotangent: Tensor, scale: Tensor) -> Solution:
    """The report for an incoming gradient that is not finite: it is passed on as it is."""
    status = tuple(
        Status.MAX_STEPS if ok else Status.NON_FINITE for ok in torch.isfinite(scale).tolist()
    )
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    unknown = torch.full_like(scale, torch.inf)
    return Solution(
        cotangent,
        Status.NON_FINITE,
        0,
        0,
        [],
        ERROR_DISTANCE,
        None,
        graph_status=status,
        graph_residual=unknown,
        graph_steps=zeros,
    )
