"""Graphs and models the tests of this folder share."""

from __future__ import annotations

import torch

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.registry import MODELS, Shape, build_model

SMALL = Shape(in_channels=3, out_channels=2, edge_dim=None, stalk_dim=2, channels=3, steps=4)
EDGED = Shape(in_channels=3, out_channels=2, edge_dim=2, stalk_dim=2, channels=3, steps=4)


def built(name: str, shape: Shape = SMALL, seed: int = 3, **options: object) -> EquilibriumModel:
    torch.manual_seed(seed)
    model = build_model(name, shape, **options).double().eval()
    assert isinstance(model, EquilibriumModel)
    return model


def recurrences() -> list[str]:
    """Registered models that are equilibria."""
    return [name for name in MODELS if isinstance(build_model(name, SMALL), EquilibriumModel)]


def runs_in_parts(name: str) -> bool:
    """Models that say otherwise are refused (a test)."""
    model = build_model(name, SMALL)
    return hasattr(model, "local_step") and getattr(model, "local_prepare", True)


LOCAL = [name for name in recurrences() if runs_in_parts(name)]


def random_graph(
    n: int = 40,
    e: int = 160,
    *,
    seed: int = 0,
    edge_dim: int = 0,
    graphs: int = 1,
    undirected: bool = False,
) -> Graph:
    """Directed, with self-loops, duplicates and an isolated last node in every graph of the
    batch."""
    draw = torch.Generator().manual_seed(seed)
    size = n // graphs
    columns = []
    for number in range(graphs):
        columns.append(torch.randint(0, size - 1, (2, e // graphs), generator=draw) + number * size)
    edges = torch.cat(columns, dim=1)
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.randn(size * graphs, 3, generator=draw, dtype=torch.float64)
    attributes = None
    if edge_dim:
        attributes = torch.randn(edges.shape[1], edge_dim, generator=draw, dtype=torch.float64)
    batch = None if graphs == 1 else torch.arange(graphs).repeat_interleave(size)
    return Graph.build(x, edges, attributes, batch)
