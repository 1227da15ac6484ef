"""The backward solve of an implicit gradient, judged by its error, wherever its vectors live.

    u = g + J^T u,      J = df/dz at z*.

**What is judged is the error.** A residual r of this linear equation leaves the error (I -
J^T)^{-1} r, which is r / (1 - rate) in the slowest direction: with 1 - rate = 1e-8 a residual of
1e-6 says nothing. So the rate of J^T is measured, for each graph, by power steps from a fixed
pseudo-random start and again from the residual that is left, and a graph is CONVERGED when residual
/ (1 - rate) is within tolerance of the largest entry of *its own* u. It is an estimate (in the
largest entry, with a measured rate), not a bound. A rate so close to one that the products spent on
it cannot tell is taken from the entry that shrinks most slowly.

All of this needs no more of a vector than the largest entry of each graph. One process has the
vectors itself (:class:`OneProcess`); many machines share them
(:class:`sheafdeq.distributed.adjoint.Parts`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sheafdeq.distances import Distance, resolution
from sheafdeq.solvers import Partition, Solution, Status
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import Function, iterate

__all__ = [
    "ERROR_DISTANCE",
    "AdjointSystem",
    "OneProcess",
    "Peaks",
    "estimated_error",
    "probe_pattern",
    "solve_backward",
    "unsolved",
]

ERROR_DISTANCE = "error-estimate"
"""Name of the distance of a backward solve: sup |f(u) - u| / (1 - rate), relative to the largest
entry of the graph's u."""
PROBE_STEPS = 16
"""Products with J^T spent on the rate before the solve; its later half is measured."""
CHECK_STEPS = 8
"""Products spent on the rate of the residual that is left after the solve."""
LONGEST_PROBE = 128
"""Products after which no more are spent. A rate that is still too close to one to be told is that
of the slowest entry over the last half (:class:`Peaks`), not of the largest."""
LEAST_SHARE = 1e-3
"""Entries below this share of the largest have no rate of their own: they may just cross zero."""
ROUNDS = 4
"""How often a solve is resumed when that rate turns out slower than the one it was judged by."""
LARGEST_RAISED_TOLERANCE = 1e-3
"""Rounding limits the error to about resolution / (1 - rate); the tolerance is raised to that, but
never beyond this."""


class AdjointSystem(Protocol):
    """u = g + J^T u for a g whose largest entry is one in every graph (or zero).

    It holds u, which starts at g, and a probe v. Sizes are the largest absolute entries of every
    graph, (graphs,).
    """

    dtype: torch.dtype

    def begin_probe(self, *, at_residual: bool) -> Tensor:
        """v = a fixed pattern with a share in every direction, or g + J^T u - u; its sizes."""

    def pull_probe(self, scale: Tensor, seen: tuple[int, Tensor] | None) -> Tensor:
        """v <- J^T (v / scale); its sizes. ``seen`` (window, weight): v / scale times the weight
        of its graph is one of the vectors of that window of :class:`Peaks`."""

    def lag(self) -> Tensor:
        """:meth:`Peaks.lag` of this probe."""

    def solve(self, solver: FixedPointSolver, rate: Tensor, tolerances: Tensor) -> Solution:
        """Iterate from u, judged by :func:`estimated_error` at this rate."""

    def defect(self) -> tuple[Tensor, Tensor]:
        """Sizes of g + J^T u - u and of g + J^T u."""


def estimated_error(residual: Tensor, size: Tensor, rate: Tensor) -> Tensor:
    """(graphs,) residual / (1 - rate), relative to ``size``, the largest entry of u, which is at
    least that of g: one."""
    gap = (1 - rate).clamp(min=torch.finfo(rate.dtype).eps)
    return residual / (gap * size.clamp(min=1.0))


@torch.no_grad()
def solve_backward(system: AdjointSystem, solver: FixedPointSolver) -> Solution:
    """Solve with ``solver``'s method, tolerance and step limit, every graph to its own scale."""
    assert solver.tolerance is not None
    rate, spent = _rate(system, PROBE_STEPS, at_residual=False)
    solution: Solution | None = None
    left = solver.steps
    for turn in range(ROUNDS):
        tolerances = _tolerances(rate, system.dtype, solver.tolerance)
        part = system.solve(solver.with_steps(left), rate, tolerances)
        solution = part if solution is None else _continued(solution, part)
        left -= part.steps
        # The rate as the residual shows it: a slow direction that the probe missed survives in
        # what is left.
        residual, size = system.defect()
        observed, products = _rate(system, CHECK_STEPS, at_residual=True)
        rate, spent = torch.maximum(rate, observed), spent + products + 1
        error = estimated_error(residual, size, rate)
        claimed = torch.tensor([status.ok for status in part.graph_status])
        missed = claimed & ~(error <= tolerances)
        if not bool(missed.any()):
            break
        if left <= 0 or turn == ROUNDS - 1:
            _take_back(solution, missed, error)
            break
    assert solution is not None
    solution.evaluations += spent
    return solution


def _tolerances(rate: Tensor, dtype: torch.dtype, asked: float) -> Tensor:
    """(graphs,) what was asked for, or what rounding leaves of it at this rate."""
    floor = resolution(dtype) / (1 - rate).clamp(min=resolution(dtype))
    return floor.clamp(max=LARGEST_RAISED_TOLERANCE).clamp(min=asked)


def _rate(system: AdjointSystem, steps: int, *, at_residual: bool) -> tuple[Tensor, int]:
    """(graphs,) by which factor J^T shrinks each graph's largest entry a step, and how many
    products that took.

    Measured over the later half of ``steps`` products, and twice as many as long as a graph looks
    so slow (or, for a while, so expanding) that this many could not tell.
    """
    size = system.begin_probe(at_residual=at_residual)
    dead = ~(size > 0)
    logs = [torch.where(dead, torch.zeros_like(size), size.log())]  # after every product
    last_half = LONGEST_PROBE // 2
    while True:
        while len(logs) <= steps:
            seen = None
            if (past := len(logs) - 1 - last_half) >= 0:
                seen = (2 * past // last_half, (logs[-1] - logs[last_half]).exp())
            size = system.pull_probe(torch.where(dead, torch.ones_like(size), size), seen)
            dead = dead | ~(size > 0)
            logs.append(logs[-1] + torch.where(dead, torch.zeros_like(size), size.log()))
        half = steps // 2
        rate = torch.nan_to_num(((logs[steps] - logs[half]) / (steps - half)).exp(), nan=torch.inf)
        rate = torch.where(dead, torch.zeros_like(rate), rate)
        slow = rate > 1 - 2 / steps
        if not bool(slow.any()):
            return rate, len(logs) - 1
        if steps >= LONGEST_PROBE:
            slowest = torch.maximum(rate, system.lag() ** (2 / last_half))
            return torch.where(slow, slowest, rate), len(logs) - 1
        steps *= 2


class Peaks:
    """The largest values of every entry of a vector over two windows of equal length.

    What shrinks a vector's *largest* entry may be faster than what shrinks another: with rates 1 -
    1e-3 and 1 - 1e-9 the largest entry tells the faster one for thousands of products. From one
    window to the next each entry tells its own; windows, because entries turn and cross zero.
    """

    def __init__(self) -> None:
        self.windows: list[Tensor | None] = [None, None]

    def see(self, window: int, vector: Tensor) -> None:
        """One more vector of a window."""
        size, largest = vector.abs(), self.windows[window]
        self.windows[window] = size if largest is None else torch.maximum(largest, size)

    def lag(self, partition: Partition) -> Tensor:
        """(graphs,) the largest quotient of the second window's peaks by the first's."""
        first, second = self.windows
        assert first is not None
        assert second is not None
        quotient = torch.where(first >= LEAST_SHARE, second / first, torch.zeros_like(first))
        return partition.largest(quotient)


def probe_pattern(nodes: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(len(nodes), width) fixed pseudo-random signs and sizes: a start with a share in every
    direction, the same in every run and in every division of the nodes."""
    count = nodes.unsqueeze(1) * width + torch.arange(width, device=nodes.device)
    mixed = (count * 2654435761 + 12345) % 4294967296
    mixed = (mixed * 40503 + (mixed >> 16)) % 65536
    return mixed.to(dtype) / 32768 - 1 + 2.0**-17


def _continued(first: Solution, second: Solution) -> Solution:
    second.residuals = first.residuals + second.residuals
    second.steps += first.steps
    second.evaluations += first.evaluations
    second.graph_steps = second.graph_steps + first.graph_steps
    return second


def _take_back(solution: Solution, missed: Tensor, error: Tensor) -> None:
    """Graphs whose error turned out larger than what they were judged by did not converge."""
    solution.graph_status = tuple(
        Status.MAX_STEPS if wrong else status
        for status, wrong in zip(solution.graph_status, missed.tolist(), strict=True)
    )
    solution.status = Status.worst(solution.graph_status)
    solution.graph_residual = torch.where(missed, error, solution.graph_residual)


def unsolved(cotangent: Tensor, scale: Tensor) -> Solution:
    """The report for an incoming gradient that is not finite: it is passed on as it is."""
    status = tuple(
        Status.MAX_STEPS if ok else Status.NON_FINITE for ok in torch.isfinite(scale).tolist()
    )
    return Solution(
        cotangent,
        Status.NON_FINITE,
        0,
        0,
        [],
        ERROR_DISTANCE,
        None,
        graph_status=status,
        graph_residual=torch.full_like(scale, torch.inf),
        graph_steps=torch.zeros(len(scale), dtype=torch.int64),
    )


class OneProcess:
    """The system of one process: ``pull`` is u -> J^T u, ``unit`` (n, c) the scaled cotangent."""

    def __init__(self, pull: Function, unit: Tensor, partition: Partition) -> None:
        self.pull, self.unit, self.partition = pull, unit, partition
        self.dtype = unit.dtype
        self.value = self.probe = unit
        self.peaks = Peaks()

    def begin_probe(self, *, at_residual: bool) -> Tensor:
        """The residual is the one of the last :meth:`defect`."""
        if not at_residual:
            nodes = torch.arange(len(self.unit), device=self.unit.device)
            self.probe = probe_pattern(nodes, self.unit.shape[1], self.dtype)
        self.peaks = Peaks()
        return self.partition.largest(self.probe)

    def pull_probe(self, scale: Tensor, seen: tuple[int, Tensor] | None) -> Tensor:
        """One product."""
        unit = self.probe / self.partition.column(scale)
        if seen is not None:
            self.peaks.see(seen[0], unit * self.partition.column(seen[1]))
        self.probe = self.pull(unit)
        return self.partition.largest(self.probe)

    def lag(self) -> Tensor:
        """Of the slowest entry."""
        return self.peaks.lag(self.partition)

    def solve(self, solver: FixedPointSolver, rate: Tensor, tolerances: Tensor) -> Solution:
        """By the loop; the value is kept for the next round."""

        def measure(new: Tensor, old: Tensor) -> Tensor:
            rows = (new - old).abs().amax(1) if new.shape[1] else new.new_zeros(len(new))
            partition = self.partition
            return estimated_error(
                rows, partition.spread(partition.largest(new)), partition.spread(rate)
            )

        judged = solver.with_stopping(distance=Distance(ERROR_DISTANCE, measure))
        solution = iterate(
            lambda u: self.unit + self.pull(u),
            self.value,
            judged,
            judged.stopping,
            partition=self.partition,
            tolerances=tolerances,
        )
        self.value = solution.value
        return solution

    def defect(self) -> tuple[Tensor, Tensor]:
        """One product; the residual becomes the probe."""
        self.probe = self.unit + self.pull(self.value) - self.value
        return self.partition.largest(self.probe), self.partition.largest(self.value + self.probe)
