"""The graph every model, solver and task shares. Index conventions are stated here, once.

* ``n`` nodes, ``e`` directed (stored) edges. A stored edge ``u -> v`` carries a message from its
  *source* ``u`` (row 0 of ``edge_index``) to its *target* ``v`` (row 1).
* An undirected graph stores every edge twice. Nothing here symmetrises: directed input is used as
  given.
* Edges are kept sorted by target, then by source (:meth:`Graph.build` sorts them, edge features
  along with them), so the incoming edges of node ``v`` are the slice ``pointer[v]:pointer[v + 1]``.
  Results therefore do not depend on the order in which edges were supplied. ``edge_order`` maps a
  sorted position back to the position in the user's ``edge_index``.
* The *degree* of ``v`` is its number of incoming stored edges. It is clamped to one where it
  divides, so an isolated node keeps its own state and receives nothing. In a part of a larger graph
  some edges are stored elsewhere; then ``edges.counts`` holds the true numbers, and they take the
  place of the stored ones.
* A self-loop is a stored edge like any other: it counts once in the degree, sends a message and
  adds its diagonal term. Duplicate edges are parallel edges: each counts.
* Several graphs form one :class:`Graph` by disjoint union; ``graph_of_node`` (non-decreasing) says
  which graph a node belongs to, and solvers decide convergence for each graph on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sheafdeq.data.sparse_matrix import entries_of, is_sparse_matrix
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.full_precision import autocasting
from sheafdeq.plain_tensor import plain_tensor

__all__ = ["AnyGraph", "Graph"]

AnyGraph: TypeAlias = Any
"""What :meth:`Graph.of` takes: a :class:`Graph`, or a PyG ``Data`` or ``Batch``."""

SPARSE_SHARE = 0.1
"""Features with a smaller share of non-zeros are multiplied entry by entry."""
_INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph, or the disjoint union of several, with node and edge features.

    Build it with :meth:`build` (checks and sorts), :meth:`from_data` (a PyG ``Data`` or ``Batch``)
    or :meth:`of` (whatever holds a graph); the plain constructor trusts its arguments.
    """

    x: Tensor  # (n, f) node features
    edges: Edges  # sorted by target, then source
    edge_attr: Tensor | None = None  # (e, d_e) edge features in the same order
    graph_of_node: Tensor | None = None  # (n,) int64; None means one graph
    num_graphs: int = 1
    # (e,) sorted position -> supplied position
    edge_order: Tensor | None = field(default=None, repr=False)

    # ------------------------------------------------------------------ construction

    @staticmethod
    def build(
        x: Tensor,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        edge_weight: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Graph:
        """Check every tensor, sort the edges by target, and return a :class:`Graph`.

        ``edge_index`` (2, e) may also be the transposed adjacency matrix (n, n), as a COO, CSR or
        CSC tensor or torch_sparse's ``SparseTensor`` (:mod:`~sheafdeq.data.sparse_matrix`);
        ``edge_attr`` (e,) is one feature.
        ``edge_weight`` (e,), nonnegative, says how much each edge counts in degrees and messages:
        an edge of weight zero might as well be absent, one of weight two be there twice.

        Tensor subclasses (PyG's ``EdgeIndex``, ``nn.Parameter``) and lazily negated views become
        plain tensors here (:func:`~sheafdeq.plain_tensor.plain_tensor`). Raises
        :class:`~sheafdeq.errors.InputError` (a ``ValueError``) that names what came and what is
        needed.
        """
        if torch.compiler.is_compiling():  # stand-ins without numbers: nothing can be checked
            return _traced(x, edge_index, edge_attr, edge_weight)
        x = _checked_features(x, "x")
        n = x.shape[0]
        if is_sparse_matrix(edge_index):
            edge_index, edge_attr, edge_weight = _from_matrix(edge_index, edge_attr, edge_weight, n)
        edge_index = _checked_edge_index(edge_index, n, x.device)
        if edge_attr is not None:
            edge_attr = _checked_edge_attr(edge_attr, edge_index.shape[1], x)
        if edge_weight is not None:
            edge_weight = _checked_edge_weight(edge_weight, edge_index.shape[1], x)
        graph_of_node, count = _checked_batch(batch, n, num_graphs, edge_index)
        source, target = edge_index
        if edge_index.shape[1] > 1:
            order = torch.argsort(target * max(n, 1) + source, stable=True)
            edge_index = edge_index[:, order].contiguous()
            if edge_attr is not None:
                edge_attr = edge_attr[order].contiguous()
            if edge_weight is not None:
                edge_weight = edge_weight[order]
        else:
            order = torch.arange(edge_index.shape[1], device=x.device)
        edges = Edges.of(edge_index, n, x.dtype, share=edge_weight)
        return Graph(x, edges, edge_attr, graph_of_node, count, order)

    @staticmethod
    def from_data(data: Any) -> Graph:
        """A PyG ``Data`` or ``Batch`` (anything with ``x``, and ``edge_index`` or ``adj_t``)."""
        if callable(getattr(data, "to_homogeneous", None)):
            raise InputError(
                f"a {type(data).__name__} has several kinds of nodes or edges: give one kind, for "
                "example data.to_homogeneous()"
            )
        edge_index = getattr(data, "edge_index", None)
        if edge_index is None:
            edge_index = getattr(data, "adj_t", None)
        for name, value in (("x", getattr(data, "x", None)), ("edge_index", edge_index)):
            if value is None:
                raise InputError(
                    f"the graph has no '{name}': give a PyG Data object with x and edge_index (or "
                    f"adj_t), got {type(data).__name__}"
                )
        return Graph.build(
            data.x,
            edge_index,
            getattr(data, "edge_attr", None),
            getattr(data, "batch", None),
            edge_weight=getattr(data, "edge_weight", None),
            num_graphs=getattr(data, "num_graphs", None)
            if getattr(data, "batch", None) is not None
            else None,
        )

    @staticmethod
    def of(graph: AnyGraph) -> Graph:
        """A :class:`Graph` as it is, a PyG ``Data`` or ``Batch`` checked."""
        return graph if isinstance(graph, Graph) else Graph.from_data(graph)

    @staticmethod
    def union(graphs: Sequence[Graph]) -> Graph:
        """Disjoint union, in order; each part keeps its own graph number(s)."""
        if not graphs:
            raise InputError("a union needs at least one graph, got none")
        with_attr = [g.edge_attr is not None for g in graphs]
        if any(with_attr) and not all(with_attr):
            raise InputError("either every graph of a union has edge features or none has")
        node_offsets, graph_offset, node_offset = [], 0, 0
        ids = []
        for g in graphs:
            node_offsets.append(node_offset)
            ids.append(g.graph_ids + graph_offset)
            node_offset += g.num_nodes
            graph_offset += g.num_graphs
        # Parts are sorted by target and targets grow from part to part, so the union is sorted too.
        index = [g.edge_index + o for g, o in zip(graphs, node_offsets, strict=True)]
        whole = all(g.edges.counts is None for g in graphs)
        counts = None if whole else torch.cat([g.in_degree for g in graphs])
        x = torch.cat([g.x for g in graphs])
        share = None
        if any(g.edges.share is not None for g in graphs):
            share = torch.cat(
                [
                    x.new_ones(g.num_edges) if g.edges.share is None else g.edges.share
                    for g in graphs
                ]
            )
        return Graph(
            x,
            Edges.of(torch.cat(index, dim=1), node_offset, x.dtype, counts, share),
            torch.cat([g.edge_attr for g in graphs]) if all(with_attr) else None,  # type: ignore[misc]
            torch.cat(ids),
            graph_offset,
        )

    # ------------------------------------------------------------------ sizes and derived structure

    @property
    def num_nodes(self) -> int:
        """Number of nodes ``n``."""
        return self.x.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of stored directed edges ``e``."""
        return self.edges.num_edges

    @cached_property
    def edge_index(self) -> Tensor:
        """(2, e) int64, sorted by target, then source."""
        return torch.stack([self.edges.source, self.edges.target])

    @property
    def source(self) -> Tensor:
        """(e,) source node of every stored edge."""
        return self.edges.source

    @property
    def target(self) -> Tensor:
        """(e,) target node of every stored edge, non-decreasing."""
        return self.edges.target

    @property
    def edge_dim(self) -> int:
        """Width of the edge features (0 without)."""
        return 0 if self.edge_attr is None else self.edge_attr.shape[1]

    @cached_property
    def graph_ids(self) -> Tensor:
        """(n,) graph number of every node (zeros for one graph)."""
        if self.graph_of_node is not None:
            return self.graph_of_node
        return torch.zeros(self.num_nodes, dtype=torch.int64, device=self.x.device)

    @cached_property
    def sparse_features(self) -> tuple[Tensor, Edges] | None:
        """Stored entries of ``x`` where most are zero (a bag of words), else None: their values and
        their places, as edges from columns to rows."""
        if torch.compiler.is_compiling() or self.x.requires_grad or not self.x.numel():
            return None
        places = self.x.nonzero()
        if len(places) > SPARSE_SHARE * self.x.numel():
            return None
        rows, columns = places.T
        counts = torch.bincount(rows, minlength=self.num_nodes)
        pointer = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        entries = Edges(columns.contiguous(), pointer, self.x.shape[1], self.x.dtype)
        return self.x[rows, columns], entries

    @property
    def pointer(self) -> Tensor:
        """(n + 1,) int64: the incoming edges of node v are ``pointer[v]:pointer[v + 1]``."""
        return self.edges.pointer

    @property
    def in_degree(self) -> Tensor:
        """(n,) int64 number of incoming edges, also where some are stored elsewhere."""
        return self.edges.in_degree

    @property
    def degree(self) -> Tensor:
        """(n,) number of incoming edges, in the dtype of ``x``, clamped to at least one."""
        return self.edges.degree

    @property
    def edge_weight(self) -> Tensor:
        """(e,) the symmetric scalar normalisation 1 / sqrt(deg_u deg_v) of every stored edge, times
        the weight it was given."""
        return self.edges.weight

    # ------------------------------------------------------------------ conversions

    def to(self, *args: Any, **kwargs: Any) -> Graph:
        """Move to a device and/or floating dtype, as ``Tensor.to`` does (indices keep their
        dtype)."""
        x = self.x.to(*args, **kwargs)
        return Graph(
            x,
            self.edges.to(x.device, x.dtype),
            None if self.edge_attr is None else self.edge_attr.to(*args, **kwargs),
            None if self.graph_of_node is None else self.graph_of_node.to(x.device),
            self.num_graphs,
            None if self.edge_order is None else self.edge_order.to(x.device),
        )

    def with_features(self, x: Tensor) -> Graph:
        """The same edges with other node features (same number of nodes)."""
        x = plain_tensor(x, "x")
        if x.shape[0] != self.num_nodes:
            raise InputError(
                f"features have {x.shape[0]} rows, the graph has {self.num_nodes} nodes"
            )
        return replace(self, x=x, edges=self.edges.to(x.device, x.dtype))

    def __repr__(self) -> str:
        parts = [
            f"nodes={self.num_nodes}",
            f"edges={self.num_edges}",
            f"features={self.x.shape[1]}",
        ]
        if self.edge_attr is not None:
            parts.append(f"edge_features={self.edge_dim}")
        if self.num_graphs != 1:
            parts.append(f"graphs={self.num_graphs}")
        return f"Graph({', '.join(parts)})"


def _traced(
    x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, edge_weight: Tensor | None
) -> Graph:
    """:meth:`Graph.build` of tensors that are only traced: sorted, one graph, not checked."""
    n = x.shape[0]
    order = torch.argsort(edge_index[1] * n + edge_index[0], stable=True)
    if edge_attr is not None:
        edge_attr = (edge_attr.unsqueeze(-1) if edge_attr.dim() == 1 else edge_attr)[order]
    share = None if edge_weight is None else edge_weight[order]
    edges = Edges.of(edge_index[:, order], n, x.dtype, share=share)
    return Graph(x, edges, edge_attr, None, 1, order)


# ---------------------------------------------------------------------- checks


def _checked_features(x: Any, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise InputError(
            f"{name} must be a torch tensor of shape (nodes, features), got {type(x).__name__}"
        )
    x = plain_tensor(x, name)
    if x.dim() != 2:
        raise InputError(f"{name} must have shape (nodes, features), got shape {tuple(x.shape)}")
    if not x.dtype.is_floating_point:
        raise InputError(f"{name} must be floating point, got {x.dtype}: call .float() first")
    if x.dtype in (torch.float16, torch.bfloat16) and autocasting(x.device):
        x = x.float()  # what stands before the model in an autocast region computes in this type
    if x.dtype in (torch.float16, torch.bfloat16):
        raise InputError(
            f"{name} is {x.dtype}: equilibria are solved in float32 or float64, convert first"
        )
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).any(dim=1).nonzero()[0])
        raise InputError(
            f"{name} holds NaN or infinity (first in row {row}): clean the features first"
        )
    result: Tensor = x
    return result


def _from_matrix(
    matrix: Any, edge_attr: Tensor | None, edge_weight: Tensor | None, n: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """edge_index, edge_attr and edge_weight of an adjacency matrix: numbers are weights (all ones:
    none), vectors features."""
    edge_index, values = entries_of(matrix, n)
    if values is None or (
        values.dim() == 1 and not values.requires_grad and bool((values == 1).all())
    ):
        return edge_index, edge_attr, edge_weight
    name, given = ("edge_weight", edge_weight) if values.dim() == 1 else ("edge_attr", edge_attr)
    if given is not None:
        raise InputError(f"the adjacency matrix has values, and {name} was given too: leave one")
    if values.dim() == 1:
        return edge_index, edge_attr, values
    return edge_index, values, edge_weight


def _checked_edge_index(edge_index: Any, n: int, device: torch.device) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise InputError(
            "edge_index must be a torch tensor of shape (2, edges), got "
            f"{type(edge_index).__name__}"
        )
    edge_index = plain_tensor(edge_index, "edge_index")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise InputError(
            f"edge_index must have shape (2, edges), got shape {tuple(edge_index.shape)}"
        )
    if edge_index.dtype not in _INDEX_TYPES:
        raise InputError(f"edge_index must hold integers (torch.int64), got {edge_index.dtype}")
    if edge_index.device != device:
        raise InputError(
            f"edge_index is on {edge_index.device} but x is on {device}: move one of them"
        )
    edge_index = edge_index.to(torch.int64)
    if edge_index.numel():
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0:
            raise InputError(
                f"edge_index holds the negative node number {low}; nodes are numbered 0 to {n - 1}"
            )
        if high >= n:
            raise InputError(
                f"edge_index holds node {high}, but x has only {n} rows (nodes 0 to {n - 1})"
            )
    result: Tensor = edge_index
    return result


def _checked_edge_attr(edge_attr: Any, e: int, x: Tensor) -> Tensor:
    if not isinstance(edge_attr, Tensor):
        raise InputError(
            "edge_attr must be a torch tensor of shape (edges, width), got "
            f"{type(edge_attr).__name__}"
        )
    edge_attr = plain_tensor(edge_attr, "edge_attr")
    edge_attr = edge_attr.unsqueeze(-1) if edge_attr.dim() == 1 else edge_attr
    if edge_attr.dim() != 2 or edge_attr.shape[0] != e:
        raise InputError(
            f"edge_attr must have shape ({e}, width), one row for each edge, got "
            f"{tuple(edge_attr.shape)}"
        )
    if not edge_attr.dtype.is_floating_point:
        raise InputError(
            f"edge_attr must be floating point, got {edge_attr.dtype}: call .float() first"
        )
    if edge_attr.device != x.device:
        raise InputError(
            f"edge_attr is on {edge_attr.device} but x is on {x.device}: move one of them"
        )
    if not bool(torch.isfinite(edge_attr).all()):
        row = int((~torch.isfinite(edge_attr)).any(dim=1).nonzero()[0])
        raise InputError(
            f"edge_attr holds NaN or infinity (first in row {row}): clean the edge features first"
        )
    result: Tensor = edge_attr.to(x.dtype)
    return result


def _checked_edge_weight(edge_weight: Any, e: int, x: Tensor) -> Tensor:
    if isinstance(edge_weight, Tensor):
        edge_weight = plain_tensor(edge_weight, "edge_weight")
        if edge_weight.shape == (e, 1):
            edge_weight = edge_weight.squeeze(1)
    if (
        not isinstance(edge_weight, Tensor)
        or edge_weight.shape != (e,)
        or not edge_weight.dtype.is_floating_point
        or edge_weight.device != x.device
    ):
        got = (
            f"{edge_weight.dtype} of shape {tuple(edge_weight.shape)} on {edge_weight.device}"
            if isinstance(edge_weight, Tensor)
            else type(edge_weight).__name__
        )
        raise InputError(
            f"edge_weight must hold {e} floating point numbers, one for each edge, on {x.device}; "
            f"got {got}"
        )
    fine = torch.isfinite(edge_weight) & (edge_weight >= 0)
    if not bool(fine.all()):
        entry = int((~fine).nonzero()[0])
        raise InputError(
            f"edge_weight must be finite and not negative (entry {entry} is "
            f"{edge_weight[entry].item()}): a sheaf learns signs itself"
        )
    result: Tensor = edge_weight.to(x.dtype)
    return result


def _checked_batch(
    batch: Any, n: int, num_graphs: int | None, edge_index: Tensor
) -> tuple[Tensor | None, int]:
    if batch is None:
        if num_graphs not in (None, 1):
            raise InputError(
                f"num_graphs={num_graphs} needs a batch vector that says which node "
                "is in which graph"
            )
        return None, 1
    if isinstance(batch, Tensor):
        batch = plain_tensor(batch, "batch")
    if not isinstance(batch, Tensor) or batch.shape != (n,) or batch.dtype not in _INDEX_TYPES:
        got = (
            f"{tuple(batch.shape)} {batch.dtype}"
            if isinstance(batch, Tensor)
            else type(batch).__name__
        )
        raise InputError(f"batch must be an integer tensor of shape ({n},), got {got}")
    batch = batch.to(torch.int64)
    if n == 0:
        return batch, num_graphs or 1
    if int(batch.min()) < 0 or bool((batch[1:] < batch[:-1]).any()):
        raise InputError("batch must be non-negative and non-decreasing (as PyG's Batch makes it)")
    count = int(batch[-1]) + 1
    if num_graphs is not None:
        if num_graphs < count:
            raise InputError(f"batch names graph {count - 1}, but num_graphs is {num_graphs}")
        count = num_graphs
    crossing = batch[edge_index[0]] != batch[edge_index[1]]
    if bool(crossing.any()):
        edge = int(crossing.nonzero()[0])
        raise InputError(
            f"edge {edge} joins nodes {edge_index[0, edge].item()} and "
            f"{edge_index[1, edge].item()}, which are in "
            "different graphs of the batch"
        )
    return batch, count
