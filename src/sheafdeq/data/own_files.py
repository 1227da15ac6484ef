"""A user's own files: an npz archive, or a node table and an edge table (CSV), read and checked.

What is read is an :class:`OwnData`, attributes like those of a PyG ``Data``. Labels and masks
may be absent: a graph to predict on needs neither.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sheafdeq.data.archives import read_npz
from sheafdeq.data.graph import Graph
from sheafdeq.errors import DataError, InputError
from sheafdeq.regular_file import read_regular

__all__ = ["FILE_KINDS", "OwnData", "file_digest", "own_name", "read_archive", "read_own"]

FILE_KINDS = ("npz", "nodes", "edges")
"""What a file of a user's may be: one archive, or a node table with an edge table."""

NO_LABELS = "outputs alone need no labels (`sheafdeq predict`)"

_ARRAYS = (
    "x",
    "edge_index",
    "edge_attr",
    "batch",
    "y",
    "train_mask",
    "val_mask",
    "validation_mask",
    "test_mask",
)
_SPLIT_WORDS = {"train": 0, "validation": 1, "val": 1, "valid": 1, "test": 2, "": -1}
Path_ = str | os.PathLike[str]


@dataclass
class OwnData:
    """What the files hold; ``digests`` are the SHA-256 of their bytes, by kind of file."""

    digests: dict[str, str]
    where: str  # the file, for messages
    x: Any = None
    edge_index: Any = None
    edge_attr: Any = None
    batch: Any = None
    y: Any = None
    train_mask: Any = None
    val_mask: Any = None
    validation_mask: Any = None
    test_mask: Any = None
    node_names: tuple[str, ...] = ()  # of a node table, in the order of the nodes
    class_names: tuple[str, ...] = ()  # words of its labels, in the order of the classes

    @property
    def graph(self) -> Graph:
        """The graph without labels."""
        for name in ("x", "edge_index"):
            if getattr(self, name) is None:
                raise DataError(f"{self.where}: there is no array {name!r}")
        return Graph.from_data(self)

    @property
    def name(self) -> str:
        """``own-3f2a91c0``: by content, so the same under every path."""
        return own_name(self.digests)


def own_name(digests: Mapping[str, str]) -> str:
    """What a task of these files is called where its user gives no name."""
    text = ".".join(digests[kind] for kind in FILE_KINDS if kind in digests)
    return f"own-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def file_digest(path: Path_) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(_bytes(path)).hexdigest()


def read_own(
    files: Mapping[str, Path_],
    *,
    labelled: bool = False,
    undirected: bool = False,
    classes: Sequence[str] | None = None,
) -> OwnData:
    """Read ``{"npz": path}`` or ``{"nodes": path, "edges": path}``.

    ``labelled`` insists on labels; ``undirected`` stores every edge once more the other way round;
    ``classes`` are the words of labels in the order of the classes, where a model knows them.
    """
    if set(files) == {"npz"}:
        data = read_archive(files["npz"])
        if undirected and data.edge_index is not None:
            _store_both_ways(data)
        if labelled and data.y is None:
            raise DataError(f"{files['npz']}: there is no array 'y': {NO_LABELS}")
        return data
    if set(files) == {"nodes", "edges"}:
        return read_tables(
            files["nodes"], files["edges"], labelled, undirected=undirected, classes=classes
        )
    raise InputError(
        "a graph of your own is one npz archive, or a node table and an edge table (nodes, edges), "
        f"got {', '.join(sorted(files)) or 'nothing'}"
    )


def read_archive(path: Path_) -> OwnData:
    """An npz archive with ``x`` (n, f), ``edge_index`` (2, e) or ``edges`` (e, 2); optional
    ``edge_attr`` (e, d_e), ``batch`` (n,), ``y`` and masks.

    Arrays of Python objects are refused: they would have to be unpickled.
    """
    content = _bytes(path)
    arrays = read_npz(content, str(path), (*_ARRAYS, "edges"))
    if "edges" in arrays and "edge_index" not in arrays:
        arrays["edge_index"] = arrays["edges"].T
    data = OwnData({"npz": hashlib.sha256(content).hexdigest()}, str(path))
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
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            setattr(data, key, torch.from_numpy(array))
    return data


def read_tables(
    nodes: Path_,
    edges: Path_,
    labelled: bool = False,
    *,
    undirected: bool = False,
    classes: Sequence[str] | None = None,
) -> OwnData:
    """A node table and an edge table, both with a header line; see
    :func:`~sheafdeq.data.custom.task_from_csv` for their columns.

    Neither ``label`` nor ``target``: a graph without labels, unless ``labelled`` insists on them.
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
    given = ("label" in node_columns) + ("target" in node_columns)
    if given == 2 or (labelled and not given):
        raise DataError(
            f"{nodes}, line 1: give exactly one of the columns 'label' (classes) and "
            f"'target' (numbers){'' if given else '; ' + NO_LABELS}"
        )
    number: dict[str, int] = {}
    for line, row in node_rows:
        if row["node"] in number:
            raise DataError(f"{nodes}, line {line}: node {row['node']!r} is there twice")
        number[row["node"]] = len(number)
    contents = {"nodes": node_bytes, "edges": edge_bytes}
    data = OwnData(
        {kind: hashlib.sha256(content).hexdigest() for kind, content in contents.items()},
        str(nodes),
        node_names=tuple(number),
    )
    features = [c for c in node_columns if c not in ("node", "label", "target", "split")]
    if not features:
        raise DataError(
            f"{nodes}, line 1: there are no feature columns beside {', '.join(node_columns)}"
        )
    data.x = torch.tensor(
        [[_number(nodes, line, c, row[c]) for c in features] for line, row in node_rows]
    ).reshape(-1, len(features))
    if "label" in node_columns:
        _read_labels(data, nodes, node_rows, classes)
    elif "target" in node_columns:
        data.y = torch.tensor(
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
        data.train_mask, data.val_mask, data.test_mask = part == 0, part == 1, part == 2
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
        data.edge_attr = torch.tensor(values).reshape(-1, len(edge_features))
    data.edge_index = edge_index
    if undirected:
        _store_both_ways(data)
    return data


def _store_both_ways(data: OwnData) -> None:
    """Every edge that is no self-loop once more, the other way round, with its features."""
    index = data.edge_index
    if index.dim() != 2 or index.shape[0] != 2:
        return  # the graph's checks name it
    loop = index[0] == index[1]
    data.edge_index = torch.cat([index, index[:, ~loop].flip(0)], dim=1)
    if data.edge_attr is not None and data.edge_attr.shape[0] == loop.shape[0]:
        data.edge_attr = torch.cat([data.edge_attr, data.edge_attr[~loop]])


def _read_labels(
    data: OwnData,
    path: Path_,
    rows: Sequence[tuple[int, dict[str, str]]],
    classes: Sequence[str] | None,
) -> None:
    """Classes of the words; by ``classes`` where the order is known, else whole numbers first, then
    words."""
    words = sorted({row["label"] for _, row in rows} - {""}, key=_class_order)
    if classes is not None:
        for line, row in rows:
            if row["label"] and row["label"] not in classes:
                raise DataError(
                    f"{path}, line {line}: label {row['label']!r} is none of the classes "
                    f"{', '.join(map(repr, classes))} the model was trained for"
                )
        words = list(classes)
    position = {word: index for index, word in enumerate(words)} | {"": -1}
    data.y = torch.tensor([position[row["label"]] for _, row in rows])
    data.class_names = tuple(words)


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
