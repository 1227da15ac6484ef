"""Eigendecompositions of normalised adjacencies: one for each graph of a batch, equal graphs share
one.

A batch is block-diagonal, so its decomposition is that of its blocks: 2000 chains of 50 nodes need
a single 50 x 50 decomposition, 1500 graphs of 20 nodes a batch of 20 x 20 ones, where a 100,000 x
100,000 matrix could not even be stored.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers.adjacency import gcn_weights

__all__ = ["AdjacencySpectrum", "SizeGroup", "spectrum_of"]


@dataclass(frozen=True, eq=False)
class SizeGroup:
    """All graphs of one size m: g graphs, of which some may be equal."""

    nodes: Tensor  # (g, m) node numbers
    values: Tensor  # (g or 1, m) eigenvalues
    vectors: Tensor  # (g or 1, m, m) orthonormal columns; a single one when all g graphs are equal
    decompositions: int  # how many were computed


@dataclass(frozen=True, eq=False)
class AdjacencySpectrum:
    """The blocks of a batch by size."""

    groups: tuple[SizeGroup, ...]

    @property
    def decompositions(self) -> int:
        """How many different graphs were decomposed."""
        return sum(group.decompositions for group in self.groups)


_BY_CONTENT: OrderedDict[bytes, AdjacencySpectrum | None] = OrderedDict()
_REMEMBERED = 8


def spectrum_of(
    graph: Graph, *, self_loops: bool = False, max_nodes: int = 10_000
) -> AdjacencySpectrum | None:
    """The spectrum of the normalised adjacency, kept with the edges and, for a few graphs, for
    equal content.

    None for a graph with directed edges, whose adjacency has no orthonormal eigenvectors.
    ``max_nodes`` limits the nodes of each single graph (the work grows with the third power,
    storage with the second).
    """

    if graph.edges.share is not None:  # decompositions are remembered by the edges alone
        return None

    def make() -> AdjacencySpectrum | None:
        key = _content(graph, self_loops)
        if key not in _BY_CONTENT:
            _BY_CONTENT[key] = _decompose(graph, self_loops, max_nodes)
            while len(_BY_CONTENT) > _REMEMBERED:
                _BY_CONTENT.popitem(last=False)
        _BY_CONTENT.move_to_end(key)
        return _BY_CONTENT[key]

    return graph.edges.kept(("spectrum", self_loops, graph.graph_of_node), make)


def _content(graph: Graph, self_loops: bool) -> bytes:
    hasher = hashlib.sha256(
        f"{self_loops} {graph.num_nodes} {graph.x.dtype} {graph.x.device}".encode()
    )
    hasher.update(graph.edge_index.cpu().contiguous().numpy().tobytes())
    hasher.update(graph.graph_ids.cpu().contiguous().numpy().tobytes())
    return hasher.digest()


@torch.no_grad()
def _decompose(graph: Graph, self_loops: bool, max_nodes: int) -> AdjacencySpectrum | None:
    weights = gcn_weights(graph.edges, self_loops=self_loops)
    sizes = torch.bincount(graph.graph_ids, minlength=graph.num_graphs)
    largest = int(sizes.max()) if len(sizes) else 0
    if largest > max_nodes:
        raise InputError(
            f"the closed form decomposes every graph densely and is limited to {max_nodes} nodes "
            f"a graph, got one of {largest}: "
            "raise max_nodes, or solve by iteration (pass steps= or a solver)"
        )
    first = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    owner = graph.graph_ids[graph.target]  # non-decreasing, because edges are sorted by target
    edges = torch.cat(
        [owner.new_zeros(1), torch.bincount(owner, minlength=graph.num_graphs).cumsum(0)]
    ).tolist()
    local = (graph.edge_index - first[owner]).cpu()
    groups = []
    for size in sorted(set(sizes.tolist()) - {0}):
        members = (sizes == size).nonzero().flatten()
        # Equal local edge lists mean equal matrices: weights depend on the edges alone.
        positions: dict[bytes, int] = {}
        which, examples = [], []
        for g in members.tolist():
            key = local[:, edges[g] : edges[g + 1]].numpy().tobytes()
            if key not in positions:
                positions[key] = len(positions)
                examples.append(g)
            which.append(positions[key])
        dense = torch.zeros(len(positions), size, size, dtype=torch.float64, device=graph.x.device)
        for k, g in enumerate(examples):
            part = slice(edges[g], edges[g + 1])
            source, target = local[:, part].to(graph.x.device)
            dense[k].index_put_((target, source), weights.edge[part].double(), accumulate=True)
            dense[k].diagonal().add_(weights.own[first[g] : first[g + 1]].double())
        if float((dense - dense.transpose(1, 2)).abs().max()) > 1e-6:
            return None
        values, vectors = torch.linalg.eigh(dense)
        nodes = first[members].unsqueeze(1) + torch.arange(size, device=graph.x.device)
        if 1 < len(positions) < len(which):
            index = torch.tensor(which, device=graph.x.device)
            values, vectors = values[index], vectors[index]
        dtype = graph.x.dtype
        groups.append(SizeGroup(nodes, values.to(dtype), vectors.to(dtype), len(positions)))
    return AdjacencySpectrum(tuple(groups))
