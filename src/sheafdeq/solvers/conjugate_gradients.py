"""Solving A v = b for symmetric positive definite A, given by its product.

The loop is :func:`~sheafdeq.solvers.iterate.iterate`: its map is the residual b - A v, which the
method carries along, and every graph of a batch has its own coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.distances import Distance
from sheafdeq.solvers.iterate import Function, iterate
from sheafdeq.solvers.partition import ONE_GRAPH, Partition
from sheafdeq.solvers.solution import Solution
from sheafdeq.solvers.stopping import Stopping

__all__ = ["ConjugateGradients"]


@dataclass(frozen=True)
class ConjugateGradients:
    """A graph is CONVERGED when its residual is at most ``tolerance`` times its right-hand side
    (Euclidean norms), STAGNATED when the matrix turns out not to be positive definite there."""

    steps: int = 500
    tolerance: float = 1e-6

    @torch.no_grad()
    def solve(
        self, product: Function, right: Tensor, *, partition: Partition = ONE_GRAPH
    ) -> Solution:
        """v with ``product(v) = right``, from zero."""
        course = _Course(self, product, right, partition)
        # Conjugate gradients may stand still for long before they fall.
        stopping = Stopping(
            self.steps,
            self.tolerance,
            stop_early=True,
            distance=Distance("relative-euclidean", course.measure),
            stagnation_window=max(2, self.steps),
        )
        solution = iterate(
            course.residual_at,
            torch.zeros_like(right),
            course,
            stopping,
            partition=partition,
            tolerances=course.tolerances,
        )
        solution.evaluations = solution.steps
        return solution


class _Course:
    """One run: map, distance and method of the loop, which share the residual that is carried
    along."""

    def __init__(
        self, settings: ConjugateGradients, product: Function, right: Tensor, partition: Partition
    ) -> None:
        self.product, self.partition = product, partition
        self.residual = self.direction = right
        self.squared = partition.dot(right, right)
        self.start_squared = self.squared.clamp(min=1e-38)
        self.tolerances = torch.full_like(self.squared, settings.tolerance, dtype=torch.float64)
        self.broken = torch.zeros_like(self.squared, dtype=torch.bool)

    def residual_at(self, state: Tensor) -> Tensor:
        """(n, c)."""
        return self.residual

    def measure(self, image: Tensor, state: Tensor) -> Tensor:
        """(n,) the norm of each graph's residual relative to its right-hand side."""
        return self.partition.spread(self._norms()).expand(len(state))

    def _norms(self) -> Tensor:
        return (self.squared / self.start_squared).sqrt()

    def start(self, state: Tensor, partition: Partition) -> None:
        """The memory is this object's."""

    def halted(self, memory: None) -> Tensor:
        """(graphs,) where a direction has no positive curvature."""
        return self.broken

    def propose(self, state: Tensor, image: Tensor, memory: None) -> tuple[Tensor, None]:
        """One step along the conjugate direction of every graph above its goal."""
        dot, column = self.partition.dot, self.partition.column
        squared = self.squared
        active = (self._norms() > self.tolerances) & ~self.broken & torch.isfinite(squared)
        image = self.product(self.direction)
        energy = dot(self.direction, image)
        self.broken = self.broken | (active & ~(energy > 0))
        active = active & ~self.broken
        length = torch.where(active, squared / energy, torch.zeros_like(energy))
        value = state + column(length) * self.direction
        self.residual = self.residual - column(length) * image
        self.squared = torch.where(active, dot(self.residual, self.residual), squared)
        ratio = self.squared / squared.clamp(min=1e-38)
        self.direction = self.residual + column(ratio) * self.direction
        return value, None
