"""The only loop. Limits, non-finite checks, per-graph stopping and the residual trace live here,
where no method can forget them.

A *method* turns the state z_k and its image f(z_k) into the next state z_{k+1} (Picard takes the image, Anderson
mixes several). Everything else is the loop's:

* residual of step k: the distance between f(z_k) and z_k, one value for each node, the maximum for each graph;
* a graph is CONVERGED only if the residual *at the state that is returned* was measured to be within tolerance;
* with ``stop_early`` a graph is frozen at that state while the others go on, so a batch gives each graph what it
  would get alone;
* a graph whose image is not finite is frozen at its last finite state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sheafdeq.distances import RELATIVE_SUP, Distance, distance_by_name
from sheafdeq.errors import InputError
from sheafdeq.solvers.solution import Solution, Status

__all__ = ["Method", "Stopping", "iterate", "per_graph_max"]

Function = Callable[[Tensor], Tensor]
Observer = Callable[[int, Tensor], None]


class Method(Protocol):
    """What a solver supplies to the loop."""

    def start(self, state: Tensor, graph_of_node: Tensor | None, num_graphs: int) -> Any:
        """Memory before the first step."""

    def propose(self, state: Tensor, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(z_k, f(z_k), memory) -> (z_{k+1}, memory)."""


@dataclass(frozen=True)
class Stopping:
    """When to stop, and what to call it.

    ``tolerance=None`` never reports convergence. ``stop_early=False`` runs exactly ``max_steps`` (the paper's finite
    horizon) and judges only the end. ``stagnation_window`` steps without one per cent of progress end a graph when
    stopping early. ``trace=False`` measures only the last step (training speed).
    """

    max_steps: int
    tolerance: float | None = 1e-6
    stop_early: bool = False
    distance: Distance = RELATIVE_SUP
    stagnation_window: int = 200
    divergence_factor: float = 1e8
    trace: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "distance", distance_by_name(self.distance))
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 0:
            raise InputError(f"max_steps must be a non-negative integer, got {self.max_steps!r}")
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"tolerance must be positive or None, got {self.tolerance!r}")
        if self.stop_early and self.tolerance is None:
            raise InputError("stopping early needs a tolerance; give one, or run a fixed number of steps")
        if self.stagnation_window < 2:
            raise InputError(f"stagnation_window must be at least 2, got {self.stagnation_window!r}")


def per_graph_max(values: Tensor, graph_of_node: Tensor | None, num_graphs: int) -> Tensor:
    """(n,) -> (num_graphs,): the maximum over each graph's nodes, 0 for a graph without nodes."""
    result = values.new_zeros(num_graphs)
    if values.numel() == 0:
        return result
    if graph_of_node is None:
        result[0] = values.max()
        return result
    return result.scatter_reduce_(0, graph_of_node, values, "amax", include_self=True)


@torch.no_grad()
def _measure(
    image: Tensor, state: Tensor, stopping: Stopping, graph_of_node: Tensor | None, num_graphs: int
) -> Tensor:
    """(num_graphs,) largest residual of every graph; infinite where the image is not finite."""
    residual = stopping.distance(image.detach(), state.detach())
    # An overflow can cancel in a maximum but not in a sum of absolute values that is itself finite.
    broken = ~torch.isfinite(image.detach()).all(dim=1) if image.shape[1] else torch.zeros_like(residual).bool()
    residual = torch.where(broken | residual.isnan(), torch.full_like(residual, torch.inf), residual)
    return per_graph_max(residual, graph_of_node, num_graphs)


@torch.no_grad()
def _graphs_with_broken_rows(image: Tensor, graph_of_node: Tensor | None, num_graphs: int) -> Tensor:
    broken = (~torch.isfinite(image.detach())).any(dim=1)
    return per_graph_max(broken.to(torch.float32), graph_of_node, num_graphs) > 0


def iterate(
    function: Function,
    initial: Tensor,
    method: Method,
    stopping: Stopping,
    *,
    graph_of_node: Tensor | None = None,
    num_graphs: int = 1,
    observe: Observer | None = None,
) -> Solution:
    """Run ``method`` on the map ``function`` from ``initial`` and say how it ended.

    ``observe(k, z_k)`` is called with every state, the initial one (k = 0) included.
    Gradients flow through the loop when grad mode is on; residuals are measured outside the graph.
    """
    if initial.dim() != 2:
        raise InputError(f"a state has shape (nodes, channels), got {tuple(initial.shape)}")
    tolerance = stopping.tolerance
    state = initial
    memory = method.start(state, graph_of_node, num_graphs)
    device = initial.device
    # Per-graph bookkeeping, all on the CPU side of small tensors.
    status: list[Status | None] = [None] * num_graphs
    active = torch.ones(num_graphs, dtype=torch.bool, device=device)
    last = torch.full((num_graphs,), torch.nan, dtype=initial.dtype, device=device)
    best = torch.full((num_graphs,), torch.inf, dtype=initial.dtype, device=device)
    best_step = torch.zeros(num_graphs, dtype=torch.int64, device=device)
    first: Tensor | None = None
    graph_steps = torch.zeros(num_graphs, dtype=torch.int64, device=device)
    residuals: list[float] = []
    evaluations = steps = 0

    if observe is not None:
        observe(0, state)
    for k in range(stopping.max_steps):
        image = function(state)
        evaluations += 1
        final = k == stopping.max_steps - 1
        if stopping.trace or stopping.stop_early or final:
            residual = _measure(image, state, stopping, graph_of_node, num_graphs)
            last = torch.where(active, residual, last)
            residuals.append(float(residual[active].max()) if bool(active.any()) else 0.0)
            first = residual.clamp(min=tolerance or 1e-12) if first is None else first
            finished = torch.zeros_like(active)
            not_finite = torch.isinf(residual) & active
            if bool(not_finite.any()):  # infinite residual: NaN in the image, or outside the metric's domain
                not_finite &= _graphs_with_broken_rows(image, graph_of_node, num_graphs)
                finished |= _finish(status, not_finite, Status.NON_FINITE)
            if stopping.stop_early:
                assert tolerance is not None
                finished |= _finish(status, active & (residual <= tolerance), Status.CONVERGED)
                grown = active & ~finished & (residual > stopping.divergence_factor * first)
                finished |= _finish(status, grown & torch.isfinite(residual), Status.DIVERGED)
                progress = residual < 0.99 * best
                best = torch.where(progress, residual, best)
                best_step = torch.where(progress, torch.full_like(best_step, k), best_step)
                stuck = active & ~finished & (k - best_step >= stopping.stagnation_window)
                finished |= _finish(status, stuck, Status.STAGNATED)
            active = active & ~finished
            if not bool(active.any()):
                break
        proposal, memory = method.propose(state, image, memory)
        state = proposal if bool(active.all()) else _keep_finished(proposal, state, active, graph_of_node)
        graph_steps = graph_steps + active.to(torch.int64)
        steps = k + 1
        if observe is not None:
            observe(steps, state)

    evaluations += _judge_the_end(function, state, stopping, graph_of_node, num_graphs, active, last, status)
    graph_status = tuple(s if s is not None else Status.MAX_STEPS for s in status)
    return Solution(
        value=state,
        status=Status.worst(graph_status),
        steps=steps,
        evaluations=evaluations,
        residuals=residuals,
        distance=stopping.distance.name,
        tolerance=tolerance,
        graph_status=graph_status,
        graph_residual=last,
        graph_steps=graph_steps,
    )


def _finish(status: list[Status | None], graphs: Tensor, verdict: Status) -> Tensor:
    for g in graphs.nonzero().flatten().tolist():
        status[g] = verdict
    return graphs


def _keep_finished(proposal: Tensor, state: Tensor, active: Tensor, graph_of_node: Tensor | None) -> Tensor:
    if graph_of_node is None:
        return proposal if bool(active[0]) else state
    return torch.where(active[graph_of_node].unsqueeze(1), proposal, state)


def _judge_the_end(
    function: Function,
    state: Tensor,
    stopping: Stopping,
    graph_of_node: Tensor | None,
    num_graphs: int,
    active: Tensor,
    last: Tensor,
    status: list[Status | None],
) -> int:
    """Judge the graphs that are still running at the step limit; returns the number of evaluations spent.

    The residual of the returned state itself has not been measured yet. If the last step was already within tolerance,
    one more evaluation settles it; if not, the verdict is MAX_STEPS and costs nothing.
    """
    tolerance = stopping.tolerance
    spent = 0
    promising = active & (last <= tolerance) if tolerance is not None else torch.zeros_like(active)
    if tolerance is not None and bool(promising.any()):
        with torch.no_grad():
            residual = _measure(function(state), state, stopping, graph_of_node, num_graphs)
        spent = 1
        last[promising] = residual[promising]
        within = promising & (residual <= tolerance)
        _finish(status, within, Status.CONVERGED)
        active = active & ~within
    if bool(active.any()):
        broken = active & _graphs_with_broken_rows(state, graph_of_node, num_graphs)
        _finish(status, broken, Status.NON_FINITE)
        _finish(status, active & ~broken, Status.MAX_STEPS)
    return spent
