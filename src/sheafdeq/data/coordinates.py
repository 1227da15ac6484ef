"""Coordinates: find positions for 20 nodes from the distances along the edges of their neighbour
graph.

Every graph places ``nodes`` points uniformly in the unit square and joins each to its ``k`` nearest
(union-symmetrised). Node features are one-hot identifiers, the edge feature is the Euclidean
distance, which is also what predicted positions are judged by
(:class:`~sheafdeq.data.objective.EdgeDistance`). The paper does not print k; 6 reproduces the
losses of its feature-only models, and makes nearly every graph connected. Splits are over graphs,
60/20/20.
"""

from __future__ import annotations

import numpy as np
import torch

from sheafdeq.data.graph import Graph
from sheafdeq.data.masks import random_masks
from sheafdeq.data.objective import EdgeDistance
from sheafdeq.data.task import Dimensions, Split, Task
from sheafdeq.errors import InputError

__all__ = ["batched_neighbours", "coordinates"]


def coordinates(*, graphs: int = 1500, nodes: int = 20, k: int = 6, seed: int = 42) -> Task:
    """Held-out graphs; outputs are positions (n, 2)."""
    if nodes < 2 or not 1 <= k < nodes:
        raise InputError(
            "coordinates needs at least 2 nodes and k from 1 to nodes - 1, got "
            f"nodes={nodes}, k={k}"
        )
    positions = torch.rand(graphs, nodes, 2, generator=torch.Generator().manual_seed(seed))
    points = positions.double().numpy()
    adjacency, distance = batched_neighbours(points, k)
    splits = []
    for mask in random_masks(graphs, seed):
        chosen = mask.numpy()
        graph_of_edge, target, source = np.nonzero(adjacency[chosen])
        length = torch.from_numpy(distance[chosen][graph_of_edge, target, source]).float()
        count = int(chosen.sum())
        graph = Graph.build(
            torch.eye(nodes).repeat(count, 1),
            torch.from_numpy(
                np.stack([graph_of_edge * nodes + source, graph_of_edge * nodes + target])
            ),
            length.unsqueeze(1),
            torch.arange(count).repeat_interleave(nodes),
        )
        assert graph.edge_attr is not None
        splits.append(Split(graph, graph.edge_attr[:, 0].clone()))
    return Task(
        name="coordinates",
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        objective=EdgeDistance(),
        dimensions=Dimensions(16, 10, 2, 8),
        patience=200,
        out_channels=2,
        licence="none needed (generated)",
        options={"graphs": graphs, "nodes": nodes, "k": k, "seed": seed},
        remarks=(
            "k is not printed in the paper; 6 reproduces the losses of its feature-only models",
        ),
    )


def batched_neighbours(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Union-symmetrised k-nearest-neighbour graphs of many small point sets.

    ``points`` (g, n, 2) gives ``adjacency`` (g, n, n) bool, symmetric without loops, and
    ``distance`` (g, n, n). Equal distances are told apart by node number.
    """
    g, n, _ = points.shape
    distance = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(axis=-1))
    ranked = distance.copy()
    ranked[:, np.arange(n), np.arange(n)] = np.inf
    nearest = np.argsort(ranked, axis=2, kind="stable")[:, :, :k]
    adjacency = np.zeros((g, n, n), dtype=bool)
    np.put_along_axis(adjacency, nearest, True, axis=2)
    return adjacency | adjacency.transpose(0, 2, 1), distance
