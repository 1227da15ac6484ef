"""What the inputs say about an edge: the difference of the features at its ends, its length, and
the edge's own features.

Differences carry what distinguishes the two ends and drop where in feature space they are, so a
network of them transfers to other graphs instead of memorising nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph

__all__ = ["edge_feature_width", "edge_features"]


def edge_feature_width(in_channels: int, edge_dim: int | None, *, differences: bool = True) -> int:
    """f + 1 + d_e; without differences d_e, or one where there are no edge features either; -1
    where it depends on an f that is not known yet."""
    if differences and in_channels == -1:
        return -1
    return in_channels + 1 + (edge_dim or 0) if differences else edge_dim or 1


def edge_features(graph: Graph, x: Tensor | None = None, *, differences: bool = True) -> Tensor:
    """(e, f + 1 + d_e): x_src - x_tgt, its Euclidean norm, and the edge features; ``x`` replaces
    the graph's features.

    Without ``differences`` only the edge's own features, (e, d_e), or the constant one, (e, 1),
    where it has none.
    """
    x = graph.x if x is None else x
    if not differences:
        return graph.edge_attr if graph.edge_attr is not None else x.new_ones(graph.num_edges, 1)
    difference = x.index_select(0, graph.source) - x.index_select(0, graph.target)
    # the square root has no slope at zero
    length = (difference.square().sum(1, keepdim=True) + 1e-12).sqrt()
    parts = (
        [difference, length] if graph.edge_attr is None else [difference, length, graph.edge_attr]
    )
    return torch.cat(parts, dim=1)
