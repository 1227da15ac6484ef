"""Real concurrency: one thread for each part of a graph, every part at its own pace, none far ahead
of its neighbours.

A part updates its own nodes round after round, from the newest states its neighbouring parts have
published. Before round r it waits until each neighbour has completed at least r - 1 - ``staleness``
rounds, so no message is more than ``staleness`` rounds late and the execution is partially
asynchronous in its own count of rounds. The slowest part never waits, so there is no deadlock.

Unlike the simulator this is not repeatable: the operating system decides the order. What can be
checked is that the bound was kept (it is measured) and that a contraction ends at its fixed point
all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.measure import evaluating
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.recurrence import restrict
from sheafdeq.solvers import Status

__all__ = ["ThreadedRun", "run_threads"]


@dataclass(frozen=True)
class ThreadedRun:
    """The end of a concurrent run. ``status`` judges the residual of the synchronous map at the
    final state."""

    state: Tensor  # (n, c)
    status: Status
    residual: float
    rounds: tuple[int, ...]  # completed by each part
    largest_lag: int  # most rounds any message that was read was behind its reader


class _Part:
    """The nodes of one thread, where their neighbours are published, and what this part has
    published itself."""

    def __init__(
        self,
        number: int,
        nodes: Tensor,
        part_of_node: Tensor,
        position: Tensor,
        context: Any,
        start: Tensor,
    ) -> None:
        self.number, self.nodes = number, nodes
        self.context, edges = restrict(context, nodes)
        source = context.edges.source[edges]
        owners = part_of_node[source]
        self.neighbours: list[int] = owners.unique().tolist()
        sizes = torch.bincount(part_of_node)
        offset = torch.zeros_like(sizes)
        offset[self.neighbours] = sizes[self.neighbours].cumsum(0) - sizes[self.neighbours]
        # rows of the neighbours' states, one below the other
        self.index = offset[owners] + position[source]
        self.round = 0
        self.published = (0, start[nodes])  # replaced as a whole, never changed in place


def run_threads(
    model: EquilibriumModel,
    graph: AnyGraph,
    parts: int | Tensor = 2,
    *,
    rounds: int = 100,
    staleness: int = 2,
    initial_state: Tensor | None = None,
    tolerance: float = 1e-6,
    pace: Callable[[int, int], None] | None = None,
) -> ThreadedRun:
    """Run every part for ``rounds`` rounds.

    ``parts``: a number (consecutive blocks of nodes) or the part of every node (n,). ``pace(part,
    round)`` is called before every round, to slow parts down. An exception in one thread stops all
    and is raised here; a part whose update is not finite stops all with status NON_FINITE and the
    last finite state.
    """
    if rounds < 1 or staleness < 0:
        raise InputError(
            f"rounds must be at least 1 and staleness at least 0, got {rounds!r} and {staleness!r}"
        )
    graph = Graph.of(graph)
    part_of_node = _assignment(parts, graph.num_nodes)
    with evaluating(model):
        context = model.prepare(graph)
        start = model.initial_state(context) if initial_state is None else initial_state
        position = torch.empty_like(part_of_node)
        members = [
            (part_of_node == p).nonzero().flatten() for p in range(int(part_of_node.max()) + 1)
        ]
        for nodes in members:
            position[nodes] = torch.arange(len(nodes))
        team = [
            _Part(p, nodes, part_of_node, position, context, start)
            for p, nodes in enumerate(members)
        ]
        shared = _Shared(model, team, rounds, staleness, pace)
        threads = [
            threading.Thread(target=shared.work, args=(part,), name=f"part-{part.number}")
            for part in team
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if shared.error is not None:
            raise shared.error
        state = torch.empty_like(start)
        for part in team:
            state[part.nodes] = part.published[1]
        residual = float(RELATIVE_SUP(model.step(state, context), state).max())
    status = (
        Status.NON_FINITE
        if shared.broken
        else Status.CONVERGED
        if residual <= tolerance
        else Status.MAX_STEPS
    )
    return ThreadedRun(
        state, status, residual, tuple(part.round for part in team), shared.largest_lag
    )


def _assignment(parts: int | Tensor, n: int) -> Tensor:
    """(n,) the part of every node; every part has a node."""
    if isinstance(parts, Tensor):
        if parts.shape != (n,) or parts.is_floating_point() or n == 0:
            raise InputError(
                f"parts must hold one integer for each of {n} nodes, got "
                f"{tuple(parts.shape)} {parts.dtype}"
            )
        assignment = parts.to(torch.int64)
        if not torch.equal(assignment.unique(), torch.arange(int(assignment.max()) + 1)):
            raise InputError(
                "parts must be numbered 0, 1, ... without gaps, each with at least one node"
            )
        return assignment
    if not 1 <= parts <= n:
        raise InputError(f"parts must be between 1 and the number of nodes {n}, got {parts!r}")
    return torch.arange(n) * parts // n


class _Shared:
    """What the threads have in common. ``changed`` guards the round counts; states are published by
    replacing a tuple."""

    def __init__(
        self,
        model: EquilibriumModel,
        team: list[_Part],
        rounds: int,
        staleness: int,
        pace: Callable[[int, int], None] | None,
    ) -> None:
        self.model, self.team, self.rounds, self.staleness, self.pace = (
            model,
            team,
            rounds,
            staleness,
            pace,
        )
        self.changed = threading.Condition()
        self.stop = False
        self.broken = False
        self.error: BaseException | None = None
        self.largest_lag = 0

    def work(self, part: _Part) -> None:
        try:
            with torch.no_grad():  # grad mode belongs to a thread
                for number in range(1, self.rounds + 1):
                    if self.pace is not None:
                        self.pace(part.number, number)
                    if not self._round(part, number):
                        return
        except BaseException as error:
            with self.changed:
                self.error, self.stop = error, True
                self.changed.notify_all()

    def _round(self, part: _Part, number: int) -> bool:
        least = number - 1 - self.staleness
        with self.changed:
            self.changed.wait_for(
                lambda: self.stop or all(self.team[q].round >= least for q in part.neighbours)
            )
            if self.stop:
                return False
        seen = [self.team[q].published for q in part.neighbours]
        own = part.published[1]
        table = torch.cat([state for _, state in seen]) if seen else own[:0]
        image = self.model.gathered_step(own, table, part.index, part.context)
        finite = bool(torch.isfinite(image).all())
        with self.changed:
            if finite:
                part.published, part.round = (number, image), number
                self.largest_lag = max(
                    [self.largest_lag, *(number - 1 - completed for completed, _ in seen)]
                )
            else:
                self.broken = self.stop = True
            self.changed.notify_all()
        return finite
