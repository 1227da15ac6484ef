"""Masks of a random split, over nodes or over whole graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError

__all__ = ["random_masks", "split_masks"]


def random_masks(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Disjoint masks over ``n`` rows, 60 % train, 20 % validation, the rest test, from one seeded
    permutation."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}")
    permutation = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    train_end, validation_end = n * 6 // 10, n * 8 // 10
    if not 0 < train_end < validation_end < n:
        raise InputError(f"{n} rows are too few for a 60/20/20 split: five are needed")
    part = torch.empty(n, dtype=torch.int64)
    part[permutation[:train_end]] = 0
    part[permutation[train_end:validation_end]] = 1
    part[permutation[validation_end:]] = 2
    return part == 0, part == 1, part == 2


def split_masks(
    graph: Graph, seed: int, split_by: str, *, whole: str
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`random_masks` over nodes (``split_by="node"``), or over graphs (``split_by=whole``):
    then no test node shares a graph, and so an answer, with a training node."""
    if split_by == "node":
        return random_masks(graph.num_nodes, seed)
    if split_by == whole:
        train, validation, test = random_masks(graph.num_graphs, seed)
        place = graph.graph_ids
        return train[place], validation[place], test[place]
    raise InputError(
        f"split_by must be 'node' (the paper's) or {whole!r} (no leak), got {split_by!r}"
    )
