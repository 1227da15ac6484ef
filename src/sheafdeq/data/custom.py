"""Tasks from a user's own graph: a PyG ``Data`` object or dataset, an npz archive, or two CSV
files."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafdeq.data.archives import read_npz
from sheafdeq.data.chains import random_masks
from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import Classification, GraphClassification, Objective, Regression
from sheafdeq.data.task import Dimensions, Split, Task
from sheafdeq.errors import DataError, InputError
from sheafdeq.regular_file import read_regular

__all__ = ["task_from", "task_from_csv", "task_from_npz"]

_PARTS = ("train", "validation", "test")
_MASKS = {
    "train": ("train_mask",),
    "validation": ("val_mask", "validation_mask"),
    "test": ("test_mask",),
}
_ARRAYS = (
    "x",
    "edge_index",
    "edge_attr",
    "y",
    "train_mask",
    "val_mask",
    "validation_mask",
    "test_mask",
)
_SPLIT_WORDS = {"train": 0, "validation": 1, "val": 1, "valid": 1, "test": 2, "": -1}
_FREE_CLASSES = 1000
_LARGEST_OUTPUT = 2**28  # numbers in one (nodes, classes) tensor, 2 GiB of float64
Path_ = str | os.PathLike[str]


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
        parts = [(graph, target, mask) for mask in _masks(single, graph.num_nodes, split, seed)]
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
    :func:`task_from`). Arrays of
    Python objects are refused: they would have to be unpickled.
    """
    content = _bytes(path)
    arrays = read_npz(content, str(path), (*_ARRAYS, "edges"))
    if "edges" in arrays and "edge_index" not in arrays:
        arrays["edge_index"] = arrays["edges"].T
    record = _Record()
    for key in _ARRAYS:
        if key in arrays:
            array = np.ascontiguousarray(arrays[key])
            if key in ("x", "edge_attr"):
                # too large for float32: infinity, which the graph's checks name
                with np.errstate(over="ignore"):
                    array = array.astype(np.float32)
            elif array.dtype.kind == "f":
                array = array.astype(np.float64)
            elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
                if array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise DataError(
                        f"{path}: {key} holds {int(array.max())}, which is beyond 64-bit integers"
                    )
                array = array.astype(np.int64)  # torch computes with signed integers
            setattr(record, key, torch.from_numpy(array))
    settings.setdefault("name", Path(path).stem)
    return _with_source(task_from(record, **settings), npz=content)


def task_from_csv(nodes: Path_, edges: Path_, *, undirected: bool = False, **settings: Any) -> Task:
    """A task from a node table and an edge table, both with a header line.

    Node table: ``node`` (any name), ``label`` (a class, any word; empty: not known) or ``target``
    (a real number), optionally ``split`` (train, validation, test or empty); every other column is
    a numeric feature. Edge table: ``source``, ``target``; every other column is a numeric edge
    feature. Without a ``split`` column give ``seed``. ``undirected=True`` stores every edge both
    ways. Errors name the file, the line and the column.
    """
    node_rows, node_columns, node_bytes = _table(nodes)
    edge_rows, edge_columns, edge_bytes = _table(edges)
    for needed, columns, path in (
        (("node",), node_columns, nodes),
        (("source", "target"), edge_columns, edges),
    ):
        for column in needed:
            if column not in columns:
                raise DataError(
                    f"{path}, line 1: there is no column {column!r}; the columns are "
                    f"{', '.join(columns)}"
                )
    if ("label" in node_columns) == ("target" in node_columns):
        raise DataError(
            f"{nodes}, line 1: give exactly one of the columns 'label' (classes) and "
            "'target' (numbers)"
        )
    number: dict[str, int] = {}
    for line, row in node_rows:
        if row["node"] in number:
            raise DataError(f"{nodes}, line {line}: node {row['node']!r} is there twice")
        number[row["node"]] = len(number)
    record = _Record()
    features = [c for c in node_columns if c not in ("node", "label", "target", "split")]
    if not features:
        raise DataError(
            f"{nodes}, line 1: there are no feature columns beside {', '.join(node_columns)}"
        )
    record.x = torch.tensor(
        [[_number(nodes, line, c, row[c]) for c in features] for line, row in node_rows]
    )
    if "label" in node_columns:
        words = sorted({row["label"] for _, row in node_rows} - {""}, key=_class_order)
        position = {word: index for index, word in enumerate(words)} | {"": -1}
        record.y = torch.tensor([position[row["label"]] for _, row in node_rows])
    else:
        record.y = torch.tensor(
            [_number(nodes, line, "target", row["target"]) for line, row in node_rows]
        )
    if "split" in node_columns:
        for line, row in node_rows:
            if row["split"] not in _SPLIT_WORDS:
                raise DataError(
                    f"{nodes}, line {line}: split {row['split']!r} is not train, "
                    "validation, test or empty"
                )
        part = torch.tensor([_SPLIT_WORDS[row["split"]] for _, row in node_rows])
        record.train_mask, record.val_mask, record.test_mask = part == 0, part == 1, part == 2
    ends = []
    for line, row in edge_rows:
        for column in ("source", "target"):
            if row[column] not in number:
                raise DataError(
                    f"{edges}, line {line}: {column} {row[column]!r} is not a node of {nodes}"
                )
        ends.append((number[row["source"]], number[row["target"]]))
    edge_index = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T
    edge_features = [c for c in edge_columns if c not in ("source", "target")]
    if edge_features:
        values = [
            [_number(edges, line, c, row[c]) for c in edge_features] for line, row in edge_rows
        ]
        record.edge_attr = torch.tensor(values).reshape(-1, len(edge_features))
    if undirected:
        loop = edge_index[0] == edge_index[1]
        edge_index = torch.cat([edge_index, edge_index[:, ~loop].flip(0)], dim=1)
        if edge_features:
            record.edge_attr = torch.cat([record.edge_attr, record.edge_attr[~loop]])
    record.edge_index = edge_index
    settings.setdefault("name", Path(nodes).stem)
    return _with_source(task_from(record, **settings), nodes=node_bytes, edges=edge_bytes)


# ----------------------------------------------------------------------------------------------
# from PyG objects


class _Record:
    """Attributes like those of a PyG ``Data``."""

    x: Any = None
    edge_index: Any = None
    edge_attr: Any = None
    y: Any = None
    train_mask: Any = None
    val_mask: Any = None
    test_mask: Any = None


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


# ----------------------------------------------------------------------------------------------
# tables


def _table(path: Path_) -> tuple[list[tuple[int, dict[str, str]]], list[str], bytes]:
    """Rows with their line numbers, column names, and the bytes read."""
    content = _bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[tuple[int, dict[str, str]]] = []
    columns: list[str] = []
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not columns:
                columns = cells
                repeated = [
                    repr(name[:40])
                    for name, count in Counter(columns).items()
                    if count > 1 or not name
                ]
                if repeated:
                    named = ", ".join(repeated[:12]) + (", ..." if len(repeated) > 12 else "")
                    raise DataError(
                        f"{path}, line 1: column names must be there and differ, look at {named}"
                    )
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells where the "
                    f"header has {len(columns)}"
                )
            rows.append((reader.line_num, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    if not columns:
        raise DataError(f"{path} is empty: a header line is needed")
    return rows, columns, content


def _number(path: Path_, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise DataError(
            f"{path}, line {line}, column {column!r}: {cell!r} is not a number"
        ) from None
    if not math.isfinite(value):
        raise DataError(f"{path}, line {line}, column {column!r}: {cell!r} is not finite")
    return value


def _class_order(word: str) -> tuple[int, float, str]:
    """Whole numbers in their order, then words in theirs."""
    return (0, int(word), "") if word.isdecimal() and len(word) <= 18 else (1, 0, word)


def _bytes(path: Path_) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _with_source(task: Task, **contents: bytes) -> Task:
    """The same task with the hashes of its files among the defining options."""
    hashes = {
        f"{key}_sha256": hashlib.sha256(content).hexdigest() for key, content in contents.items()
    }
    return replace(task, options={**task.options, **hashes})
