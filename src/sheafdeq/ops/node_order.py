"""The order in which the native step goes through the nodes of a large graph.

An edge reads the row of its source. Where sources lie far from their targets, every edge of a large
graph waits for memory. A step may number the nodes as it likes, because rows come from and go back
to the caller's places; reverse Cuthill-McKee brings neighbours together wherever the graph has a
shape (chains, grids, meshes, roads, graphs side by side in shuffled order). On a random graph no
order helps, and :class:`NodeOrder` says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops.native_calls import make_layout, native_layout

__all__ = ["NEAR", "NodeOrder", "node_order", "step_layout"]

NEAR = 1024
"""Rows of a source that are at most this far from those of the target count as near: about a
thousand rows of a step fit the second-level cache."""
SMALL = 4 * NEAR
"""Up to so many nodes in a connected piece every row is near enough."""
FAR_SHARE = 0.1
"""An order with fewer far edges than this share is left as it is; a new one has to halve it."""


class NodeOrder(NamedTuple):
    """``nodes`` (n,) the caller's node at each position, or None where the caller's order is kept;
    ``far`` and ``far_given`` the share of edges whose source is far, in this order and in the
    caller's; ``name`` of the order: *given*, *reverse Cuthill-McKee*, or *given: no order helps*.
    """

    nodes: Tensor | None
    far: float
    far_given: float
    name: str


def node_order(edges: Edges) -> NodeOrder:
    """The order for a step on ``edges``, found once and kept with them."""
    wiring = edges.wiring
    order: NodeOrder = wiring.kept("node-order", lambda: _find(wiring))
    return order


def _find(edges: Edges) -> NodeOrder:
    n = edges.num_targets
    if n <= SMALL or native_layout(edges).largest_piece() <= SMALL:  # taken graph by graph
        return NodeOrder(None, 0.0, 0.0, "given")
    source, target = edges.source.numpy(), edges.target.numpy()
    given = _far(source, target)
    if given <= FAR_SHARE:
        return NodeOrder(None, given, given, "given")
    ones = numpy.ones(len(source), dtype=numpy.int8)
    matrix = csr_matrix((ones, source, edges.pointer.numpy()), shape=(n, n))
    # the transpose beside it, where the graph has directions: an edge is near for both its ends
    order = reverse_cuthill_mckee(matrix, symmetric_mode=False).astype(numpy.int64)
    position = numpy.empty(n, dtype=numpy.int64)
    position[order] = numpy.arange(n)
    far = _far(position[source], position[target])
    if far > given / 2:
        return NodeOrder(None, given, given, "given: no order helps")
    return NodeOrder(torch.from_numpy(order), far, given, "reverse Cuthill-McKee")


def _far(source: Any, target: Any) -> float:
    return float((numpy.abs(source - target) > NEAR).mean()) if len(source) else 0.0


def step_layout(edges: Edges) -> Any:
    """The compiled counterpart of ``edges`` for a whole step: :func:`native_layout`, or one in a
    better order."""
    order = node_order(edges)
    if order.nodes is None:
        return native_layout(edges)
    nodes = order.nodes
    return edges.kept("native-step", lambda: _ordered(edges, nodes))


def _ordered(edges: Edges, nodes: Tensor) -> Any:
    """A layout whose position v is node ``nodes[v]`` of the caller."""
    counts = edges.pointer.diff()[nodes]
    pointer = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    rows = edges.edges_into(nodes)
    position = torch.empty_like(nodes)
    position[nodes] = torch.arange(len(nodes))
    layout = make_layout(
        position[edges.source[rows]],
        pointer,
        edges.weight.detach()[rows],
        edges.degree.detach()[nodes],
        edges.num_sources,
    )
    layout.reorder(nodes, rows)
    return layout
