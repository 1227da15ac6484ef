"""Tasks from a user's own graph: a PyG ``Data`` object or dataset, an npz archive, or two CSV
files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.masks import random_masks
from sheafdeq.data.objective import Classification, GraphClassification, Objective, Regression
from sheafdeq.data.own_files import OwnData, Path_, read_archive, read_own, read_tables
from sheafdeq.data.task import Dimensions, Split, Task
from sheafdeq.errors import InputError

__all__ = ["own_task", "task_from", "task_from_csv", "task_from_npz"]

_PARTS = ("train", "validation", "test")
_MASKS = {
    "train": ("train_mask",),
    "validation": ("val_mask", "validation_mask"),
    "test": ("test_mask",),
}
_FREE_CLASSES = 1000
_LARGEST_OUTPUT = 2**28  # numbers in one (nodes, classes) tensor, 2 GiB of float64


def task_from(
    data: Any,
    *,
    name: str = "custom",
    split: int = 0,
    seed: int | None = None,
    metric: str = "accuracy",
    dimensions: Dimensions | None = None,
    patience: int = 200,
    licence: str = "not stated",
) -> Task:
    """A task from PyG objects.

    ``data`` is one of

    * a ``Data`` (or a dataset that holds just one) with ``x``, ``edge_index``, ``y`` and boolean
      ``train_mask``, ``val_mask``, ``test_mask`` of shape (n,) or (n, splits), of which column
      ``split`` is used; with ``seed``, masks may be absent and 60/20/20 masks are drawn;
    * three of ``Data``, list or dataset, (train, validation, test): held-out graphs, all their
      nodes (or graphs) scored.

    Whole-number ``y`` means classes (-1: not known, may not be scored), real ``y`` regression; one
    entry for each node, or one for each graph (classes only). Regression targets are divided by
    their mean absolute training value. Raises :class:`~sheafdeq.errors.InputError` that names the
    row at fault.
    """
    if isinstance(data, list | tuple) and len(data) == 3:
        parts: list[tuple[Graph, Tensor, Tensor | None]] = []
        for part, items in zip(_PARTS, data, strict=True):
            graph, target = _united(items, part)
            parts.append((graph, target, None))
    else:
        single = _only_graph(data)
        graph = Graph.from_data(single)
        target = _checked_target(getattr(single, "y", None), graph, "y")
        parts = [(graph, target, mask) for mask in _masks(single, target.shape[0], split, seed)]
    return _assemble(
        parts,
        name=name,
        metric=metric,
        dimensions=dimensions or Dimensions(48, 20, 3, 16),
        patience=patience,
        licence=licence,
        options={"split": split, "seed": seed},
    )


def task_from_npz(path: Path_, **settings: Any) -> Task:
    """A task from an npz archive with ``x`` (n, f), ``edge_index`` (2, e) or ``edges`` (e, 2),
    ``y`` and masks.

    Optional: ``edge_attr`` (e, d_e), ``train_mask``, ``val_mask``, ``test_mask`` (see
    :func:`task_from`), ``batch`` (n,), the number of every node's graph, where the archive holds
    several; then ``y`` and the masks may have one entry for each graph. Arrays of Python objects
    are refused: they would have to be unpickled.
    """
    settings.setdefault("name", Path(path).stem)
    return _own(read_archive(path), settings)


def task_from_csv(nodes: Path_, edges: Path_, *, undirected: bool = False, **settings: Any) -> Task:
    """A task from a node table and an edge table, both with a header line.

    Node table: ``node`` (any name), ``label`` (a class, any word; empty: not known) or ``target``
    (a real number), optionally ``split`` (train, validation, test or empty); every other column is
    a numeric feature. Edge table: ``source``, ``target``; every other column is a numeric edge
    feature. Without a ``split`` column give ``seed``. ``undirected=True`` stores every edge both
    ways. Errors name the file, the line and the column.
    """
    settings.setdefault("name", Path(nodes).stem)
    return _own(read_tables(nodes, edges, True, undirected=undirected), settings)


def own_task(
    files: Mapping[str, Path_],
    *,
    name: str | None = None,
    split: int = 0,
    seed: int | None = None,
    undirected: bool = False,
    metric: str = "accuracy",
    classes: Sequence[str] | None = None,
) -> Task:
    """A task from ``{"npz": path}`` or ``{"nodes": path, "edges": path}``.

    It is called by what is in its files (``own-3f2a91c0``) unless ``name`` says otherwise, so that
    nothing of it depends on where they lie. ``classes``: the words of the labels in the order a
    model knows them.
    """
    data = read_own(files, labelled=True, undirected=undirected, classes=classes)
    settings = {"split": split, "seed": seed, "metric": metric, "name": name or data.name}
    return _own(data, settings)


def _own(data: OwnData, settings: dict[str, Any]) -> Task:
    """A task whose defining options hold the hashes of its files, and what its outputs mean."""
    task = task_from(data, **settings)
    meaning: dict[str, Any] = {"classes": list(data.class_names)} if data.class_names else {}
    if isinstance(task.objective, Regression):
        meaning["scale"] = task.objective.scale
    hashes = {f"{kind}_sha256": digest for kind, digest in data.digests.items()}
    return replace(task, options={**task.options, **meaning, **hashes})


# ----------------------------------------------------------------------------------------------
# from PyG objects


def _only_graph(data: Any) -> Any:
    # datasets have .indices(), Data has not
    if hasattr(data, "edge_index") and not hasattr(data, "indices"):
        return data
    try:
        count = len(data)
    except TypeError:
        raise InputError(
            f"expected a PyG Data object, a dataset or three of them, got {type(data).__name__}"
        ) from None
    if count != 1:
        raise InputError(
            f"a dataset of {count} graphs has no node masks: give three parts (train, validation, "
            "test) of it"
        )
    return data[0]


def _united(items: Any, part: str) -> tuple[Graph, Tensor]:
    members = (
        [items] if hasattr(items, "edge_index") and not hasattr(items, "indices") else list(items)
    )
    if not members:
        raise InputError(f"the {part} part holds no graph")
    graphs, targets = [], []
    for index, member in enumerate(members):
        try:
            graph = Graph.from_data(member)
            targets.append(_checked_target(getattr(member, "y", None), graph, "y"))
        except InputError as error:
            raise InputError(f"{part} graph {index}: {error}") from error
        graphs.append(graph)
    if len({(target.dtype, target.dim()) for target in targets}) != 1:
        raise InputError(f"the graphs of the {part} part have targets of different types")
    return Graph.union(graphs), torch.cat(targets)


def _checked_target(y: Any, graph: Graph, origin: str) -> Tensor:
    if not isinstance(y, Tensor):
        raise InputError(
            f"{origin} must be a tensor with one entry for each node or graph, got "
            f"{type(y).__name__}"
        )
    rows = (graph.num_nodes, graph.num_graphs)
    if y.dim() == 0:
        y = y.unsqueeze(0)
    if y.shape[0] not in rows:
        raise InputError(
            f"{origin} has {y.shape[0]} rows, but there are {rows[0]} nodes and {rows[1]} graphs"
        )
    if y.is_floating_point():
        y = (y.unsqueeze(1) if y.dim() == 1 else y).float()
        if y.dim() != 2 or y.shape[1] == 0:
            raise InputError(
                f"{origin} must have shape (rows,) or (rows, targets), got {tuple(y.shape)}"
            )
        wrong = ~torch.isfinite(y).all(dim=1)
        if bool(wrong.any()):
            raise InputError(
                f"{origin} is NaN or infinite (in float32) in row {int(wrong.nonzero()[0])}"
            )
        targets: Tensor = y
        return targets
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dim() != 1:
        raise InputError(f"{origin} must hold one class for each row, got shape {tuple(y.shape)}")
    classes: Tensor = y.to(torch.int64)
    return classes


def _masks(data: Any, n: int, split: int, seed: int | None) -> list[Tensor]:
    found: list[Tensor] = []
    for part in _PARTS:
        mask = next(
            (m for m in (getattr(data, key, None) for key in _MASKS[part]) if m is not None), None
        )
        if mask is None:
            continue
        if mask.dim() == 2:
            if not 0 <= split < mask.shape[1]:
                raise InputError(
                    f"the {part} mask has splits 0 to {mask.shape[1] - 1}, got {split}"
                )
            mask = mask[:, split]
        if mask.shape != (n,):
            raise InputError(f"the {part} mask has shape {tuple(mask.shape)} instead of ({n},)")
        found.append(mask.bool())
    if not found:
        if seed is None:
            raise InputError(
                "there are no train, validation and test masks: add them, or give a "
                "seed to draw 60/20/20"
            )
        return list(random_masks(n, seed))
    if len(found) != 3:
        raise InputError(
            "some but not all of train_mask, val_mask and test_mask are there: give all three"
        )
    return found


def _assemble(
    parts: Sequence[tuple[Graph, Tensor, Tensor | None]],
    *,
    name: str,
    metric: str,
    dimensions: Dimensions,
    patience: int,
    licence: str,
    options: dict[str, Any],
) -> Task:
    splits = [Split(graph, target, mask) for graph, target, mask in parts]
    for first in range(3):
        if splits[first].size == 0:
            raise InputError(f"the {_PARTS[first]} split scores no row: mark at least one")
        for second in range(first + 1, 3):
            one, other = splits[first].mask, splits[second].mask
            if one is not None and other is not None and bool((one & other).any()):
                row = int((one & other).nonzero()[0])
                raise InputError(
                    f"row {row} is in both the {_PARTS[first]} and the {_PARTS[second]} mask"
                )
    if (
        len(
            {
                (s.target.dtype, s.target.shape[1:], s.graph.x.shape[1], s.graph.edge_dim)
                for s in splits
            }
        )
        != 1
    ):
        raise InputError("the three parts differ in target type or feature width")
    per_graph = {s.target.shape[0] != s.graph.num_nodes for s in splits}
    if len(per_graph) != 1:
        raise InputError("some parts have targets for nodes and others for graphs")
    objective: Objective
    if splits[0].target.is_floating_point():
        if per_graph == {True}:
            raise InputError(
                "real targets for whole graphs are not supported: give one for each node"
            )
        scale = splits[0].scored_target.abs().double().mean().item() or 1.0
        out_channels = splits[0].target.shape[1]
        objective = Regression(scale, out_channels)
        splits = [Split(s.graph, (s.target.double() / scale).float(), s.mask) for s in splits]
    else:
        for part, s in zip(_PARTS, splits, strict=True):
            unknown = (s.target < 0) if s.mask is None else (s.target < 0) & s.mask
            if bool(unknown.any()):
                row = int(unknown.nonzero()[0])
                raise InputError(
                    f"row {row} of the {part} split has class {int(s.target[row])}: "
                    "classes start at 0"
                )
        out_channels = _checked_classes(splits)
        kind = GraphClassification if per_graph == {True} else Classification
        objective = kind(max(out_channels, 2), metric)
        out_channels = max(out_channels, 2)
    return Task(
        name=name,
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        objective=objective,
        dimensions=dimensions,
        patience=patience,
        out_channels=out_channels,
        licence=licence,
        options=options,
    )


def _checked_classes(splits: Sequence[Split]) -> int:
    """Number of classes C; every output, loss and metric is (rows, C), so C is bounded by what the
    targets hold.

    Up to ``_FREE_CLASSES`` may be skipped in the numbering; beyond, every class must occur, and the
    outputs fit memory.
    """
    distinct = torch.unique(torch.cat([torch.unique(s.target) for s in splits])).numel()
    largest, rows = max(int(s.target.max()) for s in splits), max(s.graph.num_nodes for s in splits)
    allowed = max(_FREE_CLASSES, min(distinct, _LARGEST_OUTPUT // max(rows, 1)))
    if largest >= allowed:
        raise InputError(
            f"y holds class {largest}, but only {distinct} classes occur in {rows} nodes: number "
            "them from 0 without "
            "gaps, or give real numbers (float) for regression"
        )
    return 1 + largest
