"""Epochs on batches of small graphs: SheafDEQ as it is trained, beside message passing in PyG."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sheafdeq.data.chains import counting, sums
from sheafdeq.data.coordinates import coordinates
from sheafdeq.data.task import Task
from sheafdeq.data.terrain import mnist_terrain_standin
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Picard
from sheafdeq.speed.message_passing import MessagePassingStep

__all__ = ["SMALL_TASKS", "Epoch", "epoch_times", "small_graph_keys"]

SMALL_TASKS: dict[str, Callable[[], Task]] = {
    "coordinates": coordinates,
    "counting": counting,
    "sums": sums,
    "terrain": mnist_terrain_standin,
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
            solver=Picard(sizes.steps, trace=False),
        )
        self.peer = MessagePassingStep(self.model)
        self.steps = sizes.steps

    def ours(self) -> None:
        """A pass as ``sheafdeq train`` does it."""
        self.model.zero_grad(set_to_none=True)
        logits = self.model.run(self.split.graph).logits
        self.task.loss(logits, self.split).backward()  # type: ignore[no-untyped-call]

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
        self.task.loss(model.decode(state, context), self.split).backward()  # type: ignore[no-untyped-call]
