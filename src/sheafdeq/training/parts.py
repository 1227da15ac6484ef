"""A split cut into the graphs of its union, for updates on some graphs at a time and for looking at
one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import EdgeDistance, GraphClassification, Objective
from sheafdeq.data.task import Split
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError

__all__ = ["cut", "mixed", "parts_of"]


def parts_of(split: Split, objective: Objective, graphs_per_part: int) -> list[Split]:
    """The split's graphs in their order, ``graphs_per_part`` together (the last part may have
    fewer)."""
    if graphs_per_part < 1:
        raise InputError(f"graphs_per_part must be at least 1, got {graphs_per_part!r}")
    count = split.graph.num_graphs
    bounds = [*range(0, count, graphs_per_part), count]
    return cut(split, objective, bounds)


def cut(split: Split, objective: Objective, bounds: Sequence[int]) -> list[Split]:
    """One part for each pair of neighbouring bounds a, b: the graphs a, ..., b - 1.

    Targets and masks are cut as the objective counts them: by node, by edge (localisation) or by
    graph (graph classification). A graph's nodes and its edges, which are sorted by target, are
    contiguous, so every part is a slice.
    """
    graph = split.graph
    nodes = _pointer(graph.graph_ids, graph.num_graphs)
    edges = _pointer(graph.graph_ids[graph.target], graph.num_graphs)
    counted = {EdgeDistance: edges, GraphClassification: torch.arange(graph.num_graphs + 1)}.get(
        type(objective), nodes
    )
    parts = []
    for first, last in pairwise(bounds):
        (n0, n1), (e0, e1), (t0, t1) = (
            (int(p[first]), int(p[last])) for p in (nodes, edges, counted)
        )
        part = Graph(
            graph.x[n0:n1],
            Edges.of(
                graph.edge_index[:, e0:e1] - n0,
                n1 - n0,
                graph.x.dtype,
                share=None if graph.edges.share is None else graph.edges.share[e0:e1],
            ),
            None if graph.edge_attr is None else graph.edge_attr[e0:e1],
            graph.graph_ids[n0:n1] - first if last - first > 1 else None,
            last - first,
        )
        parts.append(
            Split(part, split.target[t0:t1], None if split.mask is None else split.mask[t0:t1])
        )
    return parts


def mixed(split: Split, objective: Objective) -> Split:
    """The split with its graphs in a fixed random order where whole graphs are classified: files
    are often sorted by class, and neighbours, which make one update together, would be alike.
    Other splits as they are."""
    if type(objective) is not GraphClassification:
        return split
    graph, count = split.graph, split.graph.num_graphs
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    place = _inverse(order)[graph.graph_ids]
    nodes = place.argsort(stable=True)
    shuffled = Graph.build(
        graph.x[nodes],
        _inverse(nodes)[graph.edge_index],
        graph.edge_attr,
        place[nodes],
        edge_weight=graph.edges.share,
        num_graphs=count,
    )
    mask = None if split.mask is None else split.mask[order]
    return Split(shuffled, split.target[order], mask)


def _inverse(order: Tensor) -> Tensor:
    """Where each number stands in a permutation."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def _pointer(owner: Tensor, count: int) -> Tensor:
    """(count + 1,) where each owner's rows begin, for a non-decreasing ``owner``."""
    return torch.cat([owner.new_zeros(1), torch.bincount(owner, minlength=count).cumsum(0)])
