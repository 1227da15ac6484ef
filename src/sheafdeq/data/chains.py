"""Counting and Sums: facts about a whole chain that every one of its nodes must report.

* **Counting**: chains of 1, 2, ..., ``chains`` nodes; the target at a node is the number of nodes
  of its chain. The paper asks for "degree-based" features and prints no formula: here the degree
  itself (0, 1 or 2) by default, or its one-hot code with ``features="one-hot"``.
* **Sums**: ``chains`` chains of ``length`` nodes with fair binary features; the target is the
  chain's sum of features.

Both have masks 60/20/20 from one permutation: of the nodes (``split_by="node"``, the paper's, in
which a test node has labelled neighbours in its own chain, and the target is the same all along a
chain), or of the chains (``split_by="chain"``, which does not leak). Targets are divided by the
mean raw target of the training nodes (see :class:`~sheafdeq.data.objective.Regression`), or by
``scale`` where that is given: a model trained on short chains is judged on long ones in the units
it was trained in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.masks import split_masks
from sheafdeq.data.objective import Regression
from sheafdeq.data.task import Dimensions, Split, Task, with_changed
from sheafdeq.errors import InputError

__all__ = ["counting", "sums"]


def counting(
    *,
    chains: int = 50,
    shortest: int = 1,
    features: str = "degree",
    seed: int = 42,
    split_by: str = "node",
    scale: float | None = None,
) -> Task:
    """Chains of ``shortest`` to ``chains`` nodes, each node asked for the length of its chain."""
    if chains < 2:
        raise InputError(f"chains must be at least 2, got {chains}")
    if not 1 <= shortest < chains:
        raise InputError(f"shortest must be from 1 to {chains - 1} (below chains), got {shortest}")
    if features not in ("degree", "one-hot"):
        raise InputError(f"features must be 'degree' or 'one-hot', got {features!r}")
    lengths = torch.arange(shortest, chains + 1)
    edge_index, chain_of_node = _chains(lengths)
    degree = torch.bincount(edge_index[1], minlength=len(chain_of_node))
    x = torch.eye(3)[degree] if features == "one-hot" else degree.float().unsqueeze(1)
    return _task(
        "counting",
        Graph.build(x, edge_index, batch=chain_of_node),
        lengths[chain_of_node],
        with_changed(
            {"chains": chains, "features": features, "seed": seed}, shortest=(shortest, 1)
        ),
        split_by,
        scale,
    )


def sums(
    *,
    chains: int = 2000,
    length: int = 50,
    seed: int = 42,
    split_by: str = "node",
    scale: float | None = None,
) -> Task:
    """Chains of ``length`` nodes with features 0 or 1, each node asked for the sum over its
    chain."""
    if chains < 2 or length < 1:
        raise InputError(
            f"sums needs at least 2 chains of at least 1 node, got {chains} of {length}"
        )
    edge_index, chain_of_node = _chains(torch.full((chains,), length))
    bits = torch.randint(0, 2, (chains, length), generator=torch.Generator().manual_seed(seed))
    return _task(
        "sums",
        Graph.build(bits.float().reshape(-1, 1), edge_index, batch=chain_of_node),
        bits.sum(dim=1)[chain_of_node],
        {"chains": chains, "length": length, "seed": seed},
        split_by,
        scale,
    )


def _chains(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Both directions of every chain's edges, (2, e), and the chain of each node, (n,)."""
    chain_of_node = torch.arange(len(lengths)).repeat_interleave(lengths)
    first = torch.arange(len(chain_of_node) - 1)
    first = first[chain_of_node[:-1] == chain_of_node[1:]]
    forward = torch.stack([first, first + 1])
    return torch.cat([forward, forward.flip(0)], dim=1), chain_of_node


def _task(
    name: str,
    graph: Graph,
    raw: Tensor,
    options: dict[str, Any],
    split_by: str,
    scale: float | None,
) -> Task:
    options = with_changed(options, split_by=(split_by, "node"), scale=(scale, None))
    train, validation, test = split_masks(graph, options["seed"], split_by, whole="chain")
    mean = raw[train].double().mean().item()
    if scale is None:
        scale = mean
    elif not 0 < scale < float("inf"):
        raise InputError(f"scale must be a positive number, got {scale!r}")
    target = (raw.double() / scale).float().unsqueeze(1)
    return Task(
        name=name,
        train=Split(graph, target, train),
        validation=Split(graph, target, validation),
        test=Split(graph, target, test),
        objective=Regression(scale, mean=mean / scale),
        dimensions=Dimensions(6, 50, 3, 2),
        patience=200,
        out_channels=1,
        licence="none needed (generated)",
        options=options,
        remarks=(
            "targets are divided by their training mean; the paper's '-MSE' is read as -RMSE "
            "/ mean(target)",
        ),
    )
