"""The random graph of the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph


def random_parts(
    n: int = 20,
    e: int = 80,
    seed: int = 0,
    *,
    channels: int = 2,
    edge_dim: int = 0,
    graphs: int = 1,
    undirected: bool = False,
    ring: bool = False,
    simple: bool = False,
    isolated: bool = True,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What ``Graph.build`` takes: features (n, channels), edges (2, e), attributes, batch.

    Args:
        undirected: Each edge is followed by its reverse.
        ring: A cycle through all nodes and no self-loop, so that every node has a neighbour.
        simple: Neither self-loops nor parallel edges.
        isolated: The last node of every graph of the batch has no edge.
    """
    draw = torch.Generator().manual_seed(seed)
    size = n // graphs
    reached = size - 1 if isolated and not ring else size
    columns = []
    for number in range(graphs):
        if simple:
            codes = torch.randperm(size * size, generator=draw)
            pairs = torch.stack([codes // size, codes % size])
            pairs = pairs[:, pairs[0] != pairs[1]][:, : e // graphs]
        else:
            pairs = torch.randint(max(reached, 1), (2, e // graphs if size else 0), generator=draw)
        if ring:
            nodes = torch.arange(size)
            pairs = torch.cat([pairs, torch.stack([nodes, (nodes + 1) % size])], dim=1)
            pairs = pairs[:, pairs[0] != pairs[1]]
        columns.append(pairs + number * size)
    edges = torch.cat(columns, dim=1)
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.randn(size * graphs, channels, generator=draw, dtype=dtype)
    attributes = None
    if edge_dim:
        attributes = torch.randn(edges.shape[1], edge_dim, generator=draw, dtype=dtype)
    batch = None if graphs == 1 else torch.arange(graphs).repeat_interleave(size)
    return x, edges, attributes, batch


def random_graph(n: int = 20, e: int = 80, seed: int = 0, **options: Any) -> Graph:
    """Directed, with self-loops, parallel edges and an isolated last node in every graph of the
    batch, unless the options of ``random_parts`` say otherwise."""
    return Graph.build(*random_parts(n, e, seed, **options))
