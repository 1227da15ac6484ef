"""Minimising many strongly convex energies at once, and solving with their Hessians.

A batch of graphs is one state with one energy for each graph. Every decision (step length, history,
stopping) is taken for each graph alone, so a batch gives each graph what it would get alone, while
each evaluation serves them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.solvers import Solution, Status
from sheafdeq.solvers.iterate import per_graph_max

__all__ = ["Blocks", "conjugate_gradients", "minimise"]

Energy = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Blocks:
    """Which row of a state belongs to which graph."""

    graph_of_node: Tensor | None
    count: int

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, c), (n, c) -> (count,) inner products."""
        # twice as fast as a sum over a short axis
        return self.sum((left * right) @ left.new_ones(left.shape[1]))

    def sum(self, rows: Tensor) -> Tensor:
        """(n,) -> (count,)."""
        if self.graph_of_node is None:
            return rows.sum().expand(1)
        return rows.new_zeros(self.count).index_add(0, self.graph_of_node, rows)

    def largest(self, rows: Tensor) -> Tensor:
        """(n, c) -> (count,) largest absolute entry; infinite where something is not finite."""
        size = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
        return per_graph_max(torch.nan_to_num(size, nan=torch.inf), self.graph_of_node, self.count)

    def spread(self, values: Tensor) -> Tensor:
        """(count,) -> (n, 1) or (1, 1), to multiply a state."""
        return (
            values.view(1, 1)
            if self.graph_of_node is None
            else values.index_select(0, self.graph_of_node).unsqueeze(1)
        )


@torch.no_grad()
def minimise(
    energy: Energy,
    initial: Tensor,
    blocks: Blocks,
    *,
    steps: int,
    tolerance: float,
    history: int = 5,
    halvings: int = 30,
) -> Solution:
    r"""L-BFGS with backtracking; ``energy(state)`` returns (count,) energies and the (n, c)
    gradient.

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
    state = initial
    value, gradient = energy(state)
    evaluations, taken = 1, 0
    residual = blocks.largest(gradient)
    trace = [float(residual.max()) if len(residual) else 0.0]
    stuck = torch.zeros_like(residual, dtype=torch.bool)
    graph_steps = torch.zeros(blocks.count, dtype=torch.int64, device=state.device)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    scale: Tensor | None = None
    slack = 10 * torch.finfo(state.dtype).eps
    for _ in range(steps):
        active = (residual > tolerance) & torch.isfinite(residual) & ~stuck
        if not bool(active.any()):
            break
        direction = _two_loop(gradient, pairs, scale, blocks)
        slope = blocks.dot(gradient, direction)
        bad = slope >= 0  # rounding spoiled the history of this graph: steepest descent for once
        if bool((bad & active).any()):
            direction = torch.where(blocks.spread(bad), -gradient, direction)
            slope = blocks.dot(gradient, direction)
        length = (
            torch.ones_like(slope)
            if pairs
            else (1 / blocks.sum(gradient.abs().sum(1)).clamp(min=1e-30)).clamp(max=1.0)
        )
        searching = active.clone()
        new_state, new_value, new_gradient = state, value, gradient
        for _ in range(halvings):
            trial = torch.where(
                blocks.spread(searching), state + blocks.spread(length) * direction, new_state
            )
            trial_value, trial_gradient = energy(trial)
            evaluations += 1
            falls = trial_value <= value + 1e-4 * length * slope
            flat = (trial_value <= value + slack * value.abs()) & (
                blocks.dot(trial_gradient, direction) <= 0.9 * slope.abs()
            )
            accepted = searching & (falls | flat)
            new_state, new_gradient = (
                torch.where(blocks.spread(accepted), new, old)
                for new, old in ((trial, new_state), (trial_gradient, new_gradient))
            )
            new_value = torch.where(accepted, trial_value, new_value)
            searching = searching & ~accepted
            if not bool(searching.any()):
                break
            length = torch.where(searching, length / 2, length)
        stuck = stuck | searching
        moved = new_state - state
        change = new_gradient - gradient
        curvature = blocks.dot(moved, change)
        useful = curvature > 0
        inverse = torch.where(useful, 1 / curvature.clamp(min=1e-38), torch.zeros_like(curvature))
        pairs.append((moved, change, inverse))
        del pairs[:-history]
        ratio = curvature / blocks.dot(change, change).clamp(min=1e-38)
        scale = torch.where(useful, ratio, torch.ones_like(ratio) if scale is None else scale)
        state, value, gradient = new_state, new_value, new_gradient
        residual = blocks.largest(gradient)
        trace.append(float(residual.max()))
        graph_steps += active & ~searching
        taken += 1
    return _solution(
        state, residual, stuck, trace, tolerance, taken, evaluations, graph_steps, "gradient-sup"
    )


def _two_loop(
    gradient: Tensor,
    pairs: list[tuple[Tensor, Tensor, Tensor]],
    scale: Tensor | None,
    blocks: Blocks,
) -> Tensor:
    """The L-BFGS direction -B g, one inverse Hessian approximation B for each graph."""
    result = -gradient
    weights = []
    for moved, change, inverse in reversed(pairs):
        weight = inverse * blocks.dot(moved, result)
        result = torch.addcmul(result, blocks.spread(weight), change, value=-1)
        weights.append(weight)
    if scale is not None:
        result = result * blocks.spread(scale)
    for (moved, change, inverse), weight in zip(pairs, reversed(weights), strict=True):
        result = torch.addcmul(
            result, blocks.spread(weight - inverse * blocks.dot(change, result)), moved
        )
    return result


@torch.no_grad()
def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    right: Tensor,
    blocks: Blocks,
    *,
    steps: int,
    tolerance: float,
) -> Solution:
    """Solve A v = right for symmetric positive definite A given by its product, each graph with its
    own coefficients.

    A graph is CONVERGED when its residual is at most ``tolerance`` times its right-hand side
    (Euclidean norms).
    """
    value = torch.zeros_like(right)
    residual = right
    direction = right
    squared = blocks.dot(residual, residual)
    goal = squared * tolerance**2
    norms = (squared / squared.clamp(min=1e-38)).sqrt()
    trace = [float(norms.max()) if len(norms) else 0.0]
    graph_steps = torch.zeros(blocks.count, dtype=torch.int64, device=right.device)
    start = squared.clamp(min=1e-38)
    broken = torch.zeros_like(squared, dtype=torch.bool)
    taken = 0
    for _ in range(steps):
        active = (squared > goal) & ~broken & torch.isfinite(squared)
        if not bool(active.any()):
            break
        image = product(direction)
        energy = blocks.dot(direction, image)
        broken = broken | (active & ~(energy > 0))
        active = active & ~broken
        length = torch.where(active, squared / energy, torch.zeros_like(energy))
        value = value + blocks.spread(length) * direction
        residual = residual - blocks.spread(length) * image
        fresh = torch.where(active, blocks.dot(residual, residual), squared)
        direction = residual + blocks.spread(fresh / squared.clamp(min=1e-38)) * direction
        squared = fresh
        graph_steps += active
        norms = (squared / start).sqrt()
        trace.append(float(norms.max()))
        taken += 1
    return _solution(
        value,
        (squared / start).sqrt(),
        broken,
        trace,
        tolerance,
        taken,
        taken,
        graph_steps,
        "relative-euclidean",
    )


def _solution(
    value: Tensor,
    residual: Tensor,
    stuck: Tensor,
    trace: list[float],
    tolerance: float,
    steps: int,
    evaluations: int,
    graph_steps: Tensor,
    distance: str,
) -> Solution:
    status = []
    for size, halted in zip(residual.tolist(), stuck.tolist(), strict=True):
        if size <= tolerance:
            status.append(Status.CONVERGED)
        elif not size < float("inf"):
            status.append(Status.NON_FINITE)
        else:
            status.append(Status.STAGNATED if halted else Status.MAX_STEPS)
    return Solution(
        value=value,
        status=Status.worst(status),
        steps=steps,
        evaluations=evaluations,
        residuals=trace,
        distance=distance,
        tolerance=tolerance,
        graph_status=tuple(status),
        graph_residual=residual,
        graph_steps=graph_steps,
    )
