"""Epochs on batches of small graphs: SheafDEQ as it is trained, beside message passing in PyG."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from sheafdeq.data.chains import counting, sums
from sheafdeq.data.coordinates import coordinates
from sheafdeq.data.task import Task
from sheafdeq.data.terrain import mnist_terrain_standin
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.ops.native_calls import native
from sheafdeq.solvers import Picard
from sheafdeq.speed.message_passing import MessagePassingStep
from sheafdeq.speed.scales import clock

__all__ = ["SMALL_TASKS", "Epoch", "epoch_times", "small_graph_keys"]

SMALL_TASKS: dict[str, Callable[[], Task]] = {
    "coordinates": coordinates,
    "counting": counting,
    "sums": sums,
    "terrain": partial(mnist_terrain_standin, images=14_780),  # as many as MNIST has zeros and ones
}


@dataclass(frozen=True)
class Epoch:
    """One training pass over the training graphs of a task: forward, loss and backward."""

    task: str
    nodes: int
    edges: int
    graphs: int
    steps: int
    seconds: float  # SheafDEQ
    peer_seconds: float  # the same map in PyG
    kernel_seconds: float  # the native calls of the pass alone

    @property
    def speedup(self) -> float:
        """How many times the peer takes."""
        return self.peer_seconds / self.seconds

    @property
    def overhead(self) -> float:
        """Time outside the native calls over time inside them."""
        return self.seconds / self.kernel_seconds - 1.0

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "speedup": self.speedup, "overhead": self.overhead}


class SmallWork:
    """SheafDEQ at a task's sizes on its training graphs, and the same map as message passing."""

    def __init__(self, name: str) -> None:
        self.task = SMALL_TASKS[name]()
        self.split = self.task.train
        graph, sizes = self.split.graph, self.task.dimensions
        torch.manual_seed(0)
        self.model = SheafDEQ(
            graph.x.shape[1],
            self.task.out_channels,
            sizes.stalk,
            sizes.channels,
            steps=sizes.steps,
            edge_dim=graph.edge_dim or None,
            solver=Picard(sizes.steps, trace=False, probe=False),
        )
        self.peer = MessagePassingStep(self.model)
        self.steps = sizes.steps

    def ours(self) -> None:
        """A pass as ``sheafdeq train`` does it."""
        self.model.zero_grad(set_to_none=True)
        logits = self.model.run(self.split.graph).logits
        self.task.loss(logits, self.split).backward()

    def theirs(self) -> None:
        """The same number of steps through the peer, unjudged."""
        self.model.zero_grad(set_to_none=True)
        graph, model = self.split.graph, self.model
        context = model.prepare(graph)
        state, edges = model.initial_state(context), graph.edges
        for _ in range(self.steps):
            state = self.peer(
                state,
                context.drive,
                graph.edge_index,
                edges.degree,
                edges.weight,
                graph.edge_attr,
            )
        logits = model.readout(state, context)
        self.task.loss(logits, self.split).backward()


class NativeClock:
    """Seconds spent inside the native calls while it is entered."""

    NAMES = ("step_forward", "step_backward")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._kernel = native(torch.float32)
        self._calls = {name: getattr(self._kernel, name) for name in self.NAMES}

    def __enter__(self) -> NativeClock:
        for name, call in self._calls.items():
            setattr(self._kernel, name, self._timed(call))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._calls.items():
            setattr(self._kernel, name, call)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def epoch_times(name: str, *, rounds: int = 3, peer_rounds: int = 2) -> Epoch:
    """Time a pass of both on one thread, each the least of several, alternating."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work = SmallWork(name)
        work.ours()
        seconds, peer, inside = float("inf"), float("inf"), float("inf")
        for number in range(max(rounds, peer_rounds)):
            if number < rounds:
                seconds = min(seconds, clock(work.ours))
                with NativeClock() as native_clock:
                    work.ours()
                inside = min(inside, native_clock.seconds)
            if number < peer_rounds:
                peer = min(peer, clock(work.theirs))
    finally:
        torch.set_num_threads(before)
    graph = work.split.graph
    return Epoch(
        name, graph.num_nodes, graph.num_edges, graph.num_graphs, work.steps, seconds, peer, inside
    )


def small_graph_keys(*, quick: bool = False) -> dict[str, Any]:
    """``coordinates_speedup``, ``sums_speedup``, ``terrain_speedup`` and the rows behind them."""
    names = ("coordinates", "counting") if quick else tuple(SMALL_TASKS)
    rows = {name: epoch_times(name, rounds=2 if quick else 3) for name in names}
    keys: dict[str, Any] = {
        f"{name}_speedup": rows[name].speedup if name in rows else None
        for name in ("coordinates", "sums", "terrain")
    }
    return {**keys, "small_graphs": [row.row() for row in rows.values()]}
