"""The random graph of the tests."""

from __future__ import annotations

import torch

from sheafdeq.data.graph import Graph


def random_graph(
    n: int = 20,
    e: int = 80,
    *,
    seed: int = 0,
    channels: int = 2,
    edge_dim: int = 0,
    graphs: int = 1,
    undirected: bool = False,
    dtype: torch.dtype = torch.float64,
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
    x = torch.randn(size * graphs, channels, generator=draw, dtype=dtype)
    attributes = None
    if edge_dim:
        attributes = torch.randn(edges.shape[1], edge_dim, generator=draw, dtype=dtype)
    batch = None if graphs == 1 else torch.arange(graphs).repeat_interleave(size)
    return Graph.build(x, edges, attributes, batch)
