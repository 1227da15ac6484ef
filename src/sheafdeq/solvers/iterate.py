"""The only loop. Limits, non-finite checks, per-graph stopping and the residual trace live here,
where no method can forget them.

A *method* turns the state z_k and its image f(z_k) into the next state z_{k+1} (Picard takes the
image, Anderson mixes several). Everything else is the loop's:

* residual of step k: the distance between f(z_k) and z_k, one value for each node, the maximum for
  each graph;
* every status and every residual that is reported belongs to *the state that is returned*: it is
  measured there, which costs one evaluation where the step limit ends a run; a graph is CONVERGED
  only if that residual is within tolerance;
* a tolerance that the precision cannot resolve is not a promise that can be kept. The loop stops
  where it was asked to, and judges by what rounding leaves
  (:func:`~sheafdeq.distances.resolution`); the solution says so. A graph whose image moves by more
  than that when its state is rounded differently is not CONVERGED, whatever its residual;
* with ``stop_early`` a graph is frozen at that state while the others go on, so a batch gives each
  graph what it would get alone;
* a graph whose image is not finite is frozen at its last finite state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from sheafdeq.distances import resolution
from sheafdeq.errors import ExportError, InputError
from sheafdeq.solvers.partition import ONE_GRAPH, Partition
from sheafdeq.solvers.solution import Solution, Status
from sheafdeq.solvers.stopping import Stopping
from sheafdeq.tracing import cell, exporting

__all__ = ["Function", "Method", "Observer", "iterate"]

Function = Callable[[Tensor], Tensor]
Observer = Callable[[int, Tensor], None]


class Method(Protocol):
    """What a solver supplies to the loop."""

    def start(self, state: Tensor, partition: Partition) -> Any:
        """Memory before the first step."""

    def propose(self, state: Tensor, image: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """(z_k, f(z_k), memory) -> (z_{k+1}, memory)."""

    def halted(self, memory: Any) -> Tensor | None:
        """(graphs,) which graphs the last proposal could not move, and no later one will; None for
        methods that always move."""


@torch.no_grad()
def _measure(image: Tensor, state: Tensor, stopping: Stopping, partition: Partition) -> Tensor:
    """(graphs,) largest residual of every graph; infinite where the image is not finite."""
    residual = stopping.measure(image.detach(), state.detach())
    # An overflow can cancel in a maximum but not in a sum of absolute values that is itself finite.
    broken = _broken_rows(image)
    residual = torch.where(
        broken | residual.isnan(), torch.full_like(residual, torch.inf), residual
    )
    return partition.max(residual)


@torch.no_grad()
def _broken_rows(image: Tensor) -> Tensor:
    """(n,) bool: something in the row is not finite."""
    image = image.detach()
    if image.numel():
        low, high = torch.aminmax(image)  # NaN if anything is: one look is nearly always enough
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            return ~torch.isfinite(image).all(dim=1)
    return torch.zeros(len(image), dtype=torch.bool, device=image.device)


@torch.no_grad()
def _graphs_with_broken_rows(image: Tensor, partition: Partition) -> Tensor:
    return partition.any(_broken_rows(image))


def iterate(
    function: Function,
    initial: Tensor,
    method: Method,
    stopping: Stopping,
    *,
    partition: Partition = ONE_GRAPH,
    observe: Observer | None = None,
    tolerances: Tensor | None = None,
) -> Solution:
    """Run ``method`` on the map ``function`` from ``initial`` and say how it ended.

    ``observe(k, z_k)`` is called with every state, the initial one (k = 0) included.
    Gradients flow through the loop when grad mode is on; residuals are measured outside the graph.
    ``tolerances`` (graphs,) gives each graph its own, taken as it is, in place of
    ``stopping.tolerance``.
    """
    if initial.dim() != 2:
        raise InputError(f"a state has shape (nodes, channels), got {tuple(initial.shape)}")
    if exporting():
        return _written_out(function, initial, method, stopping, partition)
    plain, function = function, cell(function, initial)
    asked = stopping.tolerance if tolerances is None else tolerances
    state = initial
    memory = method.start(state, partition)
    device, count = initial.device, partition.count
    # Per-graph bookkeeping, all on the CPU side of small tensors.
    status: list[Status | None] = [None] * count
    active = torch.ones(count, dtype=torch.bool, device=device)
    last = torch.full((count,), torch.nan, dtype=initial.dtype, device=device)
    best = torch.full((count,), torch.inf, dtype=initial.dtype, device=device)
    best_step = torch.zeros(count, dtype=torch.int64, device=device)
    first: Tensor | None = None
    graph_steps = torch.zeros(count, dtype=torch.int64, device=device)
    residuals: list[float] = []
    evaluations = steps = 0
    image: Tensor | None = None
    stuck = torch.zeros_like(active)

    if observe is not None:
        observe(0, state)
    for k in range(stopping.steps):
        image = function(state)
        evaluations += 1
        final = k == stopping.steps - 1
        if stopping.trace or stopping.stop_early or final:
            residual = _measure(image, state, stopping, partition)
            last = torch.where(active, residual, last)
            residuals.append(float(residual[active].max()) if bool(active.any()) else 0.0)
            grounds = residual.clamp(min=stopping.tolerance or 1e-12)
            # a start may lie outside
            first = grounds if first is None else torch.where(torch.isinf(first), grounds, first)
            finished = torch.zeros_like(active)
            not_finite = torch.isinf(residual) & active
            # infinite residual: NaN in the image, or outside the metric's domain
            if bool(not_finite.any()):
                not_finite &= _graphs_with_broken_rows(image, partition)
                finished |= _finish(status, not_finite, Status.NON_FINITE)
            if stopping.stop_early:
                assert asked is not None
                finished |= _finish(status, active & (residual <= asked), Status.CONVERGED)
                grown = active & ~finished & (residual > stopping.divergence_factor * first)
                finished |= _finish(status, grown & torch.isfinite(residual), Status.DIVERGED)
                progress = residual < 0.99 * best
                best = torch.where(progress, residual, best)
                best_step = torch.where(progress, torch.full_like(best_step, k), best_step)
                newly = active & ~finished & (k - best_step >= stopping.stagnation_window)
                finished |= _finish(status, newly, Status.STAGNATED)
                stuck |= newly
            active = active & ~finished
            if not bool(active.any()):
                break
        proposal, memory = method.propose(state, image, memory)
        image = None
        halted = method.halted(memory)
        if halted is not None:
            active = active & ~_finish(status, active & halted, Status.STAGNATED)
        state = (
            proposal if bool(active.all()) else _keep_finished(proposal, state, active, partition)
        )
        graph_steps = graph_steps + active.to(torch.int64)
        steps = k + 1
        if observe is not None:
            observe(steps, state)
        if halted is not None and not bool(active.any()):
            break

    judge = _Judge(plain, stopping, partition, tolerances)
    if bool(active.any()) and stopping.steps:
        image = judge.measured_end(state, active, last, status)
    judge.settle_by_precision(state, image, last, status, stuck)
    graph_status = tuple(s if s is not None else Status.MAX_STEPS for s in status)
    return Solution(
        value=state,
        status=Status.worst(graph_status),
        steps=steps,
        evaluations=evaluations + judge.evaluations,
        residuals=residuals,
        distance=stopping.measure.name,
        tolerance=judge.tolerance,
        asked=stopping.tolerance,
        resolution=judge.resolution,
        graph_status=graph_status,
        graph_residual=last,
        graph_steps=graph_steps,
    )


def _written_out(
    function: Function, initial: Tensor, method: Method, stopping: Stopping, partition: Partition
) -> Solution:
    """A fixed number of steps without looking at a number: what ``torch.export`` can trace."""
    if stopping.stop_early or not getattr(method, "plain", False):
        raise ExportError(
            "torch.export writes a fixed number of Picard steps out, and this solver decides by "
            f"numbers ({type(method).__name__}): set model.solver = Picard(K) first"
        )
    state, memory = initial, method.start(initial, partition)
    for _ in range(stopping.steps):
        state, memory = method.propose(state, function(state), memory)
    unknown = initial.new_full((partition.count,), torch.nan)
    return Solution(
        value=state,
        status=Status.MAX_STEPS,
        steps=stopping.steps,
        evaluations=stopping.steps,
        residuals=[],
        distance=stopping.measure.name,
        tolerance=None,
        graph_status=(Status.MAX_STEPS,) * partition.count,
        graph_residual=unknown,
        graph_steps=unknown.long(),
    )


def _finish(status: list[Status | None], graphs: Tensor, verdict: Status) -> Tensor:
    for g in graphs.nonzero().flatten().tolist():
        status[g] = verdict
    return graphs


def _keep_finished(proposal: Tensor, state: Tensor, active: Tensor, partition: Partition) -> Tensor:
    if partition.graph_of_node is None:
        return proposal if bool(active[0]) else state
    return torch.where(partition.column(active), proposal, state)


PROBED_ROUNDINGS = 2.0**20
"""Where the tolerance is more than this many units in the last place, rounding cannot decide the
verdict and is not examined."""


class _Judge:
    """What is said of the returned state: its residual, the tolerance it is held against, and what
    rounding can hide."""

    def __init__(
        self,
        function: Function,
        stopping: Stopping,
        partition: Partition,
        tolerances: Tensor | None,
    ) -> None:
        self.function, self.stopping = function, stopping
        self.partition, self.given = partition, tolerances
        self.evaluations = 0
        self.tolerance = stopping.tolerance if tolerances is None else _largest(tolerances)
        self.resolution = 0.0

    @torch.no_grad()
    def measured_end(
        self, state: Tensor, active: Tensor, last: Tensor, status: list[Status | None]
    ) -> Tensor:
        """Measure and judge the graphs that were still running at the step limit; returns the image
        of the returned state."""
        image = self._evaluated(state)
        residual = _measure(image, state, self.stopping, self.partition)
        broken = active & _graphs_with_broken_rows(state, self.partition)
        last[active] = residual[active]
        within = torch.zeros_like(active)
        if self.tolerance is not None:
            within = active & ~broken & (residual <= self._tolerances(state))
        for graphs, verdict in (
            (within, Status.CONVERGED),
            (broken, Status.NON_FINITE),
            (active & ~within & ~broken, Status.MAX_STEPS),
        ):
            _finish(status, graphs, verdict)
        return image

    @torch.no_grad()
    def settle_by_precision(
        self,
        state: Tensor,
        image: Tensor | None,
        last: Tensor,
        status: list[Status | None],
        stuck: Tensor,
    ) -> None:
        """CONVERGED and STAGNATED in the light of what the precision resolves."""
        if self.tolerance is None:
            return
        bounds = self._tolerances(state)
        _finish(status, stuck & (last <= bounds), Status.CONVERGED)
        claims = torch.tensor(
            [s is Status.CONVERGED for s in status], dtype=torch.bool, device=last.device
        )
        if self.given is None:
            self.tolerance = max(self.tolerance, _largest(bounds))
        eps = torch.finfo(state.dtype).eps
        coarse = (
            not self.stopping.probe
            or self.given is not None
            or _largest(bounds) > PROBED_ROUNDINGS * eps
        )
        if coarse or image is None or not bool(claims.any()):
            return
        moved = self._evaluated(_rounded_otherwise(state))
        noise = _measure(moved, image, self.stopping, self.partition)
        self.resolution = max(self.resolution, _largest(noise[claims]))
        _finish(status, claims & ~(noise <= bounds), Status.STAGNATED)

    def _evaluated(self, state: Tensor) -> Tensor:
        """f(state); looking must not change what follows, so a map that draws at random leaves its
        generator as it was."""
        before = torch.get_rng_state()
        image = self.function(state)
        torch.set_rng_state(before)
        self.evaluations += 1
        return image

    def _tolerances(self, state: Tensor) -> Tensor:
        """(graphs,) what each graph is held against: what was asked for, or what its precision
        resolves."""
        if self.given is not None:
            return self.given
        assert self.stopping.tolerance is not None
        unit = torch.ones(self.partition.count, dtype=state.dtype, device=state.device)
        if not self.stopping.measure.relative:
            size = self.stopping.measure(state, torch.zeros_like(state))
            unit = torch.maximum(unit, self.partition.max(size))
        resolved = resolution(state.dtype) * unit
        self.resolution = _largest(resolved)
        return resolved.clamp(min=self.stopping.tolerance)


def _rounded_otherwise(state: Tensor) -> Tensor:
    """The state moved by two units in the last place, up and down in turn: the same numbers as far
    as the precision goes."""
    ulps = 2 * torch.finfo(state.dtype).eps
    count = torch.arange(state.numel(), device=state.device)
    # a fixed pattern without a period that a graph could share
    up = ((count * 2654435761) >> 16) & 1 == 0
    return torch.where(up.view_as(state), state * (1 + ulps), state * (1 - ulps))


def _largest(values: Tensor) -> float:
    finite = values[torch.isfinite(values)]
    return float(finite.max()) if finite.numel() else 0.0
