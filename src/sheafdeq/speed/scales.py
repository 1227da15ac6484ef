"""Time per edge by the size of the graph, and by the order in which its nodes are numbered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy
import torch

from sheafdeq.data.community import community_graph
from sheafdeq.data.graph import Graph
from sheafdeq.ops.node_order import node_order
from sheafdeq.speed.memory import high_water
from sheafdeq.speed.work import STEPS, Work

__all__ = ["ORDERS", "SCALES", "clock", "edge_time_ratio", "order_row", "scale_row"]

SCALES = (10**4, 10**5, 10**6, 10**7)
ORDERS = ("shuffled-grid", "random")
GRID_SIDE = 500  # 10^6 stored edges on 250,000 nodes, in both kinds of graph


def clock(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def edge_time_ratio(rows: list[dict[str, Any]]) -> float | None:
    """Time per edge at 10^7 edges over that at 10^4, where both were measured."""
    by_size = {round(row["edges"], -len(str(row["edges"])) + 1): row for row in rows}
    if SCALES[0] not in by_size or SCALES[-1] not in by_size:
        return None
    largest, smallest = by_size[SCALES[-1]], by_size[SCALES[0]]
    return float(largest["nanoseconds_per_edge"] / smallest["nanoseconds_per_edge"])


def scale_row(edges: int, steps: int = 2) -> dict[str, Any]:
    """Time per edge of a training pass on about ``edges`` stored edges: community graphs side by
    side.

    Runs in a process of its own, so that the peak is that of this row alone (with the interpreter
    and PyTorch). Every row is warm: some steps forward and backward come first, so that the tables
    which live with the graph are there.
    """
    part, _ = community_graph(42, level=7)
    copies = max(1, round(edges / part.num_edges))
    return _row(Graph.union([part] * copies), steps)


def order_row(kind: str) -> dict[str, Any]:
    """The same on 10^6 stored edges whose nodes are numbered at random: of a grid, which has an
    order, or of a random graph, on which no order helps."""
    nodes = GRID_SIDE**2
    generator = numpy.random.default_rng(0)
    if kind == "random":
        ends = generator.integers(nodes, size=(2, 2 * nodes))
    else:
        cells = generator.permutation(nodes).reshape(GRID_SIDE, GRID_SIDE)
        right = numpy.stack([cells[:, :-1].ravel(), cells[:, 1:].ravel()])
        down = numpy.stack([cells[:-1].ravel(), cells[1:].ravel()])
        ends = numpy.concatenate([right, down], axis=1)
    index = torch.from_numpy(numpy.concatenate([ends, ends[::-1]], axis=1))
    features = torch.randn(nodes, 16, generator=torch.Generator().manual_seed(0))
    graph = Graph.build(features, index)
    order = node_order(graph.edges)
    return {"graph": kind, "order": order.name, **_row(graph, 2)}


def _row(graph: Graph, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    work = Work(graph)
    step = work.step("native")

    def training_pass(count: int) -> None:
        state = work.state
        for _ in range(count):
            state = step(state, work.drive)
        work.model.zero_grad(set_to_none=True)
        state.sum().backward()

    training_pass(min(steps, 2))
    repeats = max(1, min(30, 2 * 10**6 // graph.num_edges))
    if steps < STEPS:
        repeats = max(repeats, 2)
    seconds = min(clock(lambda: training_pass(steps)) for _ in range(repeats))
    return {
        "edges": graph.num_edges,
        "nodes": graph.num_nodes,
        "steps": steps,
        "seconds": seconds,
        "nanoseconds_per_edge": seconds / steps / graph.num_edges * 1e9,
        "peak_memory_bytes": high_water(),
    }
