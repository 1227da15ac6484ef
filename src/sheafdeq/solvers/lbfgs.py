"""Minimising many strongly convex energies at once.

A batch of graphs is one state with one energy for each graph. The loop is
:func:`~sheafdeq.solvers.iterate.iterate`: its map is the gradient, its residual the gradient's
largest entry, and a step of the method is a line search along the L-BFGS direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.distances import Distance
from sheafdeq.solvers.iterate import iterate
from sheafdeq.solvers.partition import ONE_GRAPH, Partition
from sheafdeq.solvers.solution import Solution
from sheafdeq.solvers.stopping import Stopping

__all__ = ["LBFGS", "Energy"]

Energy = Callable[[Tensor], tuple[Tensor, Tensor]]
"""(n, c) state -> (graphs,) energies and the (n, c) gradient."""


def _largest_entry(gradient: Tensor, state: Tensor) -> Tensor:
    return gradient.abs().amax(1) if gradient.shape[1] else gradient.new_zeros(len(gradient))


GRADIENT_SUP = Distance("gradient-sup", _largest_entry, relative=False)
"""The largest entry of every row of the gradient, which stands where a map's image stands."""


@dataclass(frozen=True)
class LBFGS:
    r"""L-BFGS with backtracking.

    A step t p is accepted when the energy falls by at least :math:`10^{-4} t |g^\top p|` (Armijo),
    or, where the fall drowns in rounding, when the slope at the end satisfies :math:`g_+^\top p \le
    0.9 |g^\top p|` with the energy unchanged to rounding (Hager and Zhang's approximate condition).
    The curvature half of the Wolfe conditions need not be searched for: a strongly convex energy
    has :math:`s^\top y \ge \mu \|s\|^2` for every step, which keeps the inverse Hessian
    approximation positive definite and bounded; with that, backtracking L-BFGS converges linearly
    on smooth strongly convex energies. A graph is CONVERGED when the largest entry of its gradient
    is at most ``tolerance``, STAGNATED when no step length is acceptable (a kink, or the limit of
    the precision).
    """

    steps: int = 200
    tolerance: float = 1e-5
    history: int = 5
    halvings: int = 30

    @torch.no_grad()
    def minimise(
        self, energy: Energy, initial: Tensor, *, partition: Partition = ONE_GRAPH
    ) -> Solution:
        """Minimise ``energy`` from ``initial``, every graph on its own."""
        descent = _Descent(self, energy, initial, partition)
        # The gradient of a long valley falls in its own time: no progress is no stagnation here.
        stopping = Stopping(
            self.steps,
            self.tolerance,
            stop_early=True,
            distance=GRADIENT_SUP,
            stagnation_window=max(2, self.steps),
        )
        solution = iterate(
            descent.gradient_at,
            initial,
            descent,
            stopping,
            partition=partition,
            tolerances=descent.tolerances,
        )
        solution.evaluations = descent.evaluations
        return solution


class _Descent:
    """One run: the map and the method of the loop, which share the last evaluation."""

    def __init__(
        self, settings: LBFGS, energy: Energy, initial: Tensor, partition: Partition
    ) -> None:
        self.settings, self.energy, self.partition = settings, energy, partition
        self.state, self.evaluations = initial, 1
        self.value, self.gradient = energy(initial)
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # step, change of gradient, 1 / dot
        self.scale: Tensor | None = None
        self.stuck = torch.zeros_like(self.value, dtype=torch.bool)
        # taken as it is: the gradient's rounding is not that of the state
        self.tolerances = torch.full_like(self.value, settings.tolerance, dtype=torch.float64)

    def gradient_at(self, state: Tensor) -> Tensor:
        """(n, c); the line search has evaluated it already where the loop goes on."""
        if state is not self.state and not torch.equal(state, self.state):
            self.evaluations += 1
            return self.energy(state)[1]
        return self.gradient

    def start(self, state: Tensor, partition: Partition) -> None:
        """The memory is this object's."""

    def halted(self, memory: None) -> Tensor:
        """(graphs,) where no step length was acceptable."""
        return self.stuck

    def propose(self, state: Tensor, image: Tensor, memory: None) -> tuple[Tensor, None]:
        """The end of a line search of every graph that is neither at rest nor stuck."""
        residual = self.partition.largest(self.gradient)
        active = (residual > self.tolerances) & torch.isfinite(residual) & ~self.stuck
        direction, slope = self._direction(active)
        before, old = self.state, self.gradient
        searching = self._search(direction, slope, active)
        self.stuck = self.stuck | searching
        self._remember(self.state - before, self.gradient - old)
        return self.state, None

    def _direction(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """(n, c) -B g and (graphs,) its slope."""
        direction = self._two_loop()
        slope = self.partition.dot(self.gradient, direction)
        bad = slope >= 0  # rounding spoiled the history of this graph: steepest descent for once
        if bool((bad & active).any()):
            direction = torch.where(self.partition.column(bad), -self.gradient, direction)
            slope = self.partition.dot(self.gradient, direction)
        return direction, slope

    def _search(self, direction: Tensor, slope: Tensor, active: Tensor) -> Tensor:
        """Move to the first acceptable length, halved from one; (graphs,) those that found none."""
        partition, column = self.partition, self.partition.column
        state, value, gradient = self.state, self.value, self.gradient
        slack = 10 * torch.finfo(state.dtype).eps
        length = (
            torch.ones_like(slope)
            if self.pairs
            else (1 / partition.sum(gradient.abs().sum(1)).clamp(min=1e-30)).clamp(max=1.0)
        )
        searching = active.clone()
        for _ in range(self.settings.halvings):
            trial = torch.where(column(searching), state + column(length) * direction, self.state)
            trial_value, trial_gradient = self.energy(trial)
            self.evaluations += 1
            falls = trial_value <= value + 1e-4 * length * slope
            flat = (trial_value <= value + slack * value.abs()) & (
                partition.dot(trial_gradient, direction) <= 0.9 * slope.abs()
            )
            accepted = searching & (falls | flat)
            self.state = torch.where(column(accepted), trial, self.state)
            self.gradient = torch.where(column(accepted), trial_gradient, self.gradient)
            self.value = torch.where(accepted, trial_value, self.value)
            searching = searching & ~accepted
            if not bool(searching.any()):
                break
            length = torch.where(searching, length / 2, length)
        return searching

    def _remember(self, moved: Tensor, change: Tensor) -> None:
        curvature = self.partition.dot(moved, change)
        useful = curvature > 0
        inverse = torch.where(useful, 1 / curvature.clamp(min=1e-38), torch.zeros_like(curvature))
        self.pairs.append((moved, change, inverse))
        del self.pairs[: -self.settings.history]
        ratio = curvature / self.partition.dot(change, change).clamp(min=1e-38)
        last = torch.ones_like(ratio) if self.scale is None else self.scale
        self.scale = torch.where(useful, ratio, last)

    def _two_loop(self) -> Tensor:
        """The L-BFGS direction -B g, one inverse Hessian approximation B for each graph."""
        dot, column = self.partition.dot, self.partition.column
        result = -self.gradient
        weights = []
        for moved, change, inverse in reversed(self.pairs):
            weight = inverse * dot(moved, result)
            result = torch.addcmul(result, column(weight), change, value=-1)
            weights.append(weight)
        if self.scale is not None:
            result = result * column(self.scale)
        for (moved, change, inverse), weight in zip(self.pairs, reversed(weights), strict=True):
            result = torch.addcmul(result, column(weight - inverse * dot(change, result)), moved)
        return result
