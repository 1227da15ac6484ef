"""Real graphs with their standard splits, parsed from the raw files; nothing is ever unpickled or
executed.

Files lie below the data root as PyTorch Geometric's dataset classes lay out their raw files, and
agree with what these classes return (a test compares them). The classes themselves are not used to
load: they unpickle raw files and cached results, and a planted file would run.

* Citation graphs Cora, CiteSeer, PubMed (Planetoid): ten splits 48/32/20 of Geom-GCN, or
  ``split="public"``.
* WebKB (Texas, Wisconsin, Cornell), Actor, Chameleon, Squirrel (Geom-GCN): ten splits 48/32/20.
* Chameleon and Squirrel without duplicate nodes, Minesweeper, Tolokers (Platonov et al. 2023): ten
  splits; the latter two are scored by ROC-AUC.
* MUTAG, PROTEINS (TUDataset): graph classification. There is no standard split: ten stratified
  folds from a fixed seed; fold ``split`` tests, the next one validates. Test graphs are held out.

Node classification graphs are made undirected, without self-loops or duplicate edges, unless
``undirected=False``. Recommended model sizes (width 48, 20 steps, stalk 3) and a patience of 200
epochs are this project's choice.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from scipy import sparse

from sheafdeq.data.benchmark_sets import DataSource
from sheafdeq.data.cache import cached
from sheafdeq.data.files import data_root, manifest, read_files
from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import Classification, GraphClassification
from sheafdeq.data.raw_formats import Arrays
from sheafdeq.data.task import Dimensions, Split, Task
from sheafdeq.errors import DataError, InputError

__all__ = ["Root", "graph_task", "node_task"]


_DIMENSIONS = Dimensions(48, 20, 3, 16)

_PATIENCE = 200

Root = str | os.PathLike[str] | None


def node_task(
    source: DataSource,
    *,
    split: int | str = 0,
    undirected: bool = True,
    row_normalised: bool = False,
    root: Root = None,
    download: bool = False,
) -> Task:
    """Node classification on one graph, split number ``split``; ``row_normalised`` divides features
    by their row sum."""
    if not (split == "public" and source.folder.startswith("planetoid/")):
        _check_split(source, split, 10)
    arrays = _load(source, root, download)
    row = _split_row(source, arrays, split)
    n = len(arrays["target"])
    x = _features(arrays)
    if row_normalised:
        total = np.abs(x).sum(axis=1, keepdims=True)
        x = x / np.where(total > 0, total, 1)
    edges = arrays["edges"].astype(np.int64)
    if undirected:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
        edges = edges[:, edges[0] != edges[1]]
        keys = np.unique(edges[1] * n + edges[0])
        edges = np.stack([keys % n, keys // n])
    graph = Graph.build(torch.from_numpy(x), torch.from_numpy(edges))
    target = torch.from_numpy(arrays["target"].astype(np.int64))
    classes = int(target.max()) + 1
    train, validation, test = (
        Split(graph, target, torch.from_numpy(arrays[part][row].astype(bool)))
        for part in ("train", "validation", "test")
    )
    return Task(
        name=source.name,
        train=train,
        validation=validation,
        test=test,
        objective=Classification(classes, source.metric),
        dimensions=_DIMENSIONS,
        patience=_PATIENCE,
        out_channels=classes,
        licence=source.licence,
        options={"split": split, "undirected": undirected, "row_normalised": row_normalised},
        remarks=source.remarks,
    )


def graph_task(
    source: DataSource, *, split: int = 0, root: Root = None, download: bool = False
) -> Task:
    """Graph classification with held-out graphs, fold number ``split`` of ten."""
    _check_split(source, split, 10)
    arrays = _load(source, root, download)
    labels, graph_of_node = arrays["target"], arrays["graph_of_node"]
    fold = _stratified_folds(labels)
    following = (split + 1) % 10
    parts = []
    for chosen in ((fold != split) & (fold != following), fold == following, fold == split):
        keep = chosen[graph_of_node]
        number = np.cumsum(keep) - 1
        edge_kept = keep[arrays["edges"][0]]
        attributes = (
            torch.from_numpy(arrays["edge_attr"][edge_kept]) if "edge_attr" in arrays else None
        )
        graph = Graph.build(
            torch.from_numpy(arrays["x"][keep]),
            torch.from_numpy(number[arrays["edges"][:, edge_kept]]),
            attributes,
            torch.from_numpy((np.cumsum(chosen) - 1)[graph_of_node[keep]]),
            num_graphs=int(chosen.sum()),
        )
        parts.append(Split(graph, torch.from_numpy(labels[chosen])))
    classes = int(labels.max()) + 1
    return Task(
        name=source.name,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        objective=GraphClassification(classes),
        dimensions=_DIMENSIONS,
        patience=_PATIENCE,
        out_channels=classes,
        licence=source.licence,
        options={"split": split},
        remarks=source.remarks,
    )


def _load(source: DataSource, root: Root, download: bool) -> Arrays:
    folder = data_root(root)
    paths = source.paths
    sources = {path: manifest()[path].sha256 for path in paths}
    # Raw files are checked every time, cache or not: what is used is always what the manifest says.
    contents = read_files(paths, root=folder, download=download)
    return _checked(source, cached(folder, source.name, sources, lambda: _parsed(source, contents)))


_MALFORMED = (ValueError, LookupError, TypeError, OverflowError, AttributeError, MemoryError)


def _parsed(source: DataSource, contents: dict[str, bytes]) -> Arrays:
    try:
        return source.parse(contents, source.folder)
    except _MALFORMED as error:
        raise DataError(
            f"the files of {source.name} do not have their format: {type(error).__name__}: {error}"
        ) from error


def _checked(source: DataSource, arrays: Arrays) -> Arrays:
    """The arrays, if they fit each other and the data set: a cache on disk could say anything."""

    def fits() -> bool:
        nodes, folds = source.nodes, arrays["train"].shape[0] if source.graphs == 1 else 0
        rows = nodes if source.graphs == 1 else source.graphs
        x_shape = (
            arrays["x"].shape if "x" in arrays else tuple(int(size) for size in arrays["x_shape"])
        )
        edges, target = arrays["edges"], arrays["target"]
        whole = all(
            arrays[key].dtype.kind in "iu"
            for key in ("edges", "target", "graph_of_node")
            if key in arrays
        )
        return (
            whole
            and len(x_shape) == 2
            and x_shape[0] == nodes
            and 0 < x_shape[1] <= 2**28 // nodes
            and edges.ndim == 2
            and edges.shape[0] == 2
            and (not edges.size or (int(edges.min()) >= 0 and int(edges.max()) < nodes))
            and target.shape == (rows,)
            and int(target.min()) >= 0
            and int(target.max()) < 1000
            and all(
                arrays[key].shape == (folds, nodes)
                for key in ("train", "validation", "test")
                if folds
            )
            and (source.graphs == 1 or _is_partition(arrays["graph_of_node"], nodes, source.graphs))
            and ("edge_attr" not in arrays or arrays["edge_attr"].shape[0] == edges.shape[1])
        )

    try:
        fine = fits()
    except (KeyError, IndexError, ValueError, TypeError, OverflowError):
        fine = False
    if not fine:
        raise DataError(
            f"the parsed arrays of {source.name} do not fit together: delete the "
            "folder 'parsed' of the data root"
        )
    return arrays


def _is_partition(graph_of_node: np.ndarray, nodes: int, graphs: int) -> bool:
    within = (
        graph_of_node.shape == (nodes,)
        and int(graph_of_node.min()) >= 0
        and int(graph_of_node.max()) < graphs
    )
    return within and not (np.diff(graph_of_node) < 0).any()


def _split_row(source: DataSource, arrays: Arrays, split: int | str) -> int:
    count = len(arrays["train"])
    if count == 11:  # citation graphs keep their public split in the last row
        if split == "public":
            return 10
        count = 10
    _check_split(source, split, count)
    return int(split)


def _check_split(source: DataSource, split: int | str, count: int) -> None:
    if isinstance(split, bool) or not isinstance(split, int) or not 0 <= split < count:
        raise InputError(f"{source.name} has splits 0 to {count - 1}, got {split!r}")


def _stratified_folds(labels: np.ndarray) -> np.ndarray:
    """Fold 0..9 of every graph: each class is shuffled with seed 42 and dealt out in turn."""
    random = np.random.default_rng(42)
    fold = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in range(int(labels.max()) + 1):
        members = random.permutation(np.flatnonzero(labels == label))
        fold[members] = (dealt + np.arange(len(members))) % 10
        dealt += len(members)
    return fold


def _features(arrays: Arrays) -> np.ndarray:
    if "x" in arrays:
        return arrays["x"]
    shape = tuple(int(size) for size in arrays["x_shape"])
    try:
        matrix = sparse.csr_matrix(
            (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=shape
        )
        matrix.check_format(full_check=True)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the cached features are not a matrix ({error}): delete the folder "
            "'parsed' of the data root"
        ) from error
    result: np.ndarray = matrix.toarray()
    return result
