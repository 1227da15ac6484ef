"""The work that is timed: one SheafDEQ on one graph by each route, and its operations counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sheafdeq.data.community import community_graph
from sheafdeq.data.graph import Graph
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.ops.native_module import use_kernel
from sheafdeq.speed.message_passing import MessagePassingStep

__all__ = [
    "STEPS",
    "Work",
    "community_batch",
    "operation_count",
]


STEPS = 20


def community_batch(quick: bool = False) -> Graph:
    """The six training graphs of the community benchmark as one graph (one of them when quick)."""
    return Graph.union(
        [community_graph(seed, level=7)[0] for seed in range(42, 43 if quick else 48)]
    )


def operation_count(n: int, e: int, d: int, q: int, h: int, steps: int) -> dict[str, float]:
    """Floating point operations of forward and backward; a multiply-add counts two, comparisons and
    roots nothing.

    An edge: forward, sums of three hidden rows (2h), both second layers, two d x d products, one
    message. Backward: the hidden rows, second layers and map products again (recomputed, because
    nothing of the size of the edges is kept), then gradients of hidden rows, of second layers, of
    the maps, and of the values. A node: first layers, values, and twice as much backward, with the
    forward products again.
    """
    c, maps = d * q, d * d
    hidden, second, products, message = 4.0 * h, 4.0 * maps * h, 4.0 * d**3, 2.0 * maps * q
    edge_forward = hidden + second + products + message
    edge_again = hidden + second + products
    edge_backward = 2 * second + 2 * message + 4 * products + 4.0 * h
    node_forward = 2.0 * c * 4 * h + 2.0 * c * q + 2.0 * c * d
    node_again = node_forward
    node_backward = 2 * node_forward
    forward, again, backward = (
        steps * (e * edge + n * node)
        for edge, node in (
            (edge_forward, node_forward),
            (edge_again, node_again),
            (edge_backward, node_backward),
        )
    )
    return {
        "forward": forward,
        "recomputed": again,
        "backward": backward,
        "total": forward + again + backward,
    }


class Work:
    """One SheafDEQ on one graph, and its training pass by each route."""

    def __init__(self, graph: Graph) -> None:
        torch.manual_seed(0)
        self.graph, self.edges = graph, graph.edges
        self.model = SheafDEQ(graph.x.shape[1], 3)
        self.d, self.q = self.model.stalk_dim, self.model.channels
        self.h = self.d * self.q
        prepared = self.model.prepare(graph)
        self.drive = prepared.drive.detach()
        self.context = replace(prepared, drive=self.drive)
        self.state = self.model.initial_state(self.context).detach()
        self._steps: dict[str, Callable[..., Any]] = {}

    def step(self, name: str) -> Callable[..., Any]:
        """(state, drive) -> state by the route ``name``."""
        if name not in self._steps:
            self._steps[name] = self._make(name)
        return self._steps[name]

    def _make(self, name: str) -> Callable[..., Any]:
        if name in ("pyg", "compiled"):
            peer = MessagePassingStep(self.model)
            edge_index, edges = self.graph.edge_index, self.edges
            call = torch.compile(peer) if name == "compiled" else peer
            return lambda state, drive: call(state, drive, edge_index, edges.degree, edges.weight)

        def step(state: Any, drive: Any) -> Any:
            with use_kernel(name):
                return self.model.step(state, self.context)

        return step

    def training_pass(self, name: str, *, warm: bool = False) -> None:
        """Twenty steps forward, and backward to every parameter (two when only warming up)."""
        step, state = self.step(name), self.state
        for _ in range(2 if warm else STEPS):
            state = step(state, self.drive)
        self.model.zero_grad(set_to_none=True)
        state.sum().backward()
