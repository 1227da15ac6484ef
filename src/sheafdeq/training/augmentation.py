"""Training graphs that are never twice the same, so that a model cannot learn them by heart.

Validation nodes lie in the training graphs: a model that recognises a training graph by the places
of its nodes scores well on them and badly on fresh graphs. What carries over to a fresh graph is
how far neighbours are apart and how evidence spreads, not where exactly a node is. The changes
here (:class:`~sheafdeq.training.config.AugmentationConfig`) blur the latter.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import EdgeDistance, Objective
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.training.config import AugmentationConfig

__all__ = ["augmented", "check_augmentation"]


def check_augmentation(config: AugmentationConfig, objective: Objective) -> None:
    """Refuse changes that would change what is scored."""
    if config.edge_dropout and isinstance(objective, EdgeDistance):
        raise InputError(
            "augmentation.edge_dropout: this task scores every edge, so none may be removed"
        )


def augmented(graph: Graph, config: AugmentationConfig) -> Graph:
    """A changed copy of a training graph, by draws from torch's generator."""
    x = graph.x
    if config.feature_noise:
        x = x + config.feature_noise * torch.randn_like(x)
    if config.feature_shift:
        offset = config.feature_shift * torch.randn(graph.num_graphs, x.shape[1], dtype=x.dtype)
        x = x + offset[graph.graph_ids]
    attributes = graph.edge_attr
    if config.edge_noise and attributes is not None:
        attributes = attributes * torch.exp(config.edge_noise * torch.randn_like(attributes))
    if not config.edge_dropout:
        return replace(graph, x=x, edge_attr=attributes)
    kept = _kept_edges(graph, config.edge_dropout)
    attributes = None if attributes is None else attributes[kept]
    share = None if graph.edges.share is None else graph.edges.share[kept]
    edges = Edges.of(graph.edge_index[:, kept], graph.num_nodes, x.dtype, share=share)
    return Graph(x, edges, attributes, graph.graph_of_node, graph.num_graphs)


def _kept_edges(graph: Graph, share: float) -> Tensor:
    """(e,) bool: the draw belongs to the unordered pair, so both directions share it."""
    low = torch.minimum(graph.source, graph.target)
    high = torch.maximum(graph.source, graph.target)
    _, pair = torch.unique(low * graph.num_nodes + high, return_inverse=True)
    count = int(pair.max()) + 1 if pair.numel() else 0
    return (torch.rand(count) >= share)[pair]
