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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import sparse

from sheafdeq.data.archives import read_npz
from sheafdeq.data.cache import cached
from sheafdeq.data.files import data_root, manifest, read_files
from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import Classification, GraphClassification
from sheafdeq.data.pickles import read_pickle
from sheafdeq.data.task import Dimensions, Split, Task
from sheafdeq.errors import DataError, InputError

__all__ = ["GRAPH_SETS", "NODE_SETS", "Source", "graph_task", "node_task"]

_DIMENSIONS = Dimensions(48, 20, 3, 16)
_PATIENCE = 200

Root = str | os.PathLike[str] | None
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """Where one data set comes from and how it is read."""

    name: str
    folder: str
    parse: Callable[[dict[str, bytes], str], Arrays]
    licence: str
    nodes: int
    stored_edges: int
    summary: str
    graphs: int = 1
    metric: str = "accuracy"
    remarks: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Its files below the data root."""
        single = self.folder.endswith(".npz")
        return [
            path
            for path in manifest()
            if (path == self.folder if single else path.startswith(f"{self.folder}/"))
        ]


# ----------------------------------------------------------------------------------------------
# tasks


def node_task(
    source: Source,
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
    source: Source, *, split: int = 0, root: Root = None, download: bool = False
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


def _load(source: Source, root: Root, download: bool) -> Arrays:
    folder = data_root(root)
    paths = source.paths
    sources = {path: manifest()[path].sha256 for path in paths}
    # Raw files are checked every time, cache or not: what is used is always what the manifest says.
    contents = read_files(paths, root=folder, download=download)
    return _checked(source, cached(folder, source.name, sources, lambda: _parsed(source, contents)))


def _parsed(source: Source, contents: dict[str, bytes]) -> Arrays:
    try:
        return source.parse(contents, source.folder)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        OverflowError,
        AttributeError,
        MemoryError,
    ) as error:
        raise DataError(
            f"the files of {source.name} do not have their format: {type(error).__name__}: {error}"
        ) from error


def _checked(source: Source, arrays: Arrays) -> Arrays:
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


def _split_row(source: Source, arrays: Arrays, split: int | str) -> int:
    count = len(arrays["train"])
    if count == 11:  # citation graphs keep their public split in the last row
        if split == "public":
            return 10
        count = 10
    _check_split(source, split, count)
    return int(split)


def _check_split(source: Source, split: int | str, count: int) -> None:
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
    return matrix.toarray()


def _compact(x: np.ndarray) -> Arrays:
    """Features as float32, sparse where that is smaller (word counts are 1 % full)."""
    x = x.astype(np.float32)
    matrix = sparse.csr_matrix(x)
    if matrix.nnz * 4 > x.size:
        return {"x": x}
    return {
        "x_data": matrix.data,
        "x_indices": matrix.indices.astype(np.int32),
        "x_indptr": matrix.indptr.astype(np.int64),
        "x_shape": np.array(x.shape, dtype=np.int64),
    }


# ---------------------------------------------------------------------------------------------- raw
# formats


def _parse_planetoid(contents: dict[str, bytes], folder: str) -> Arrays:
    name = folder.rsplit("/", 1)[1].lower()
    part = {
        key: read_pickle(contents[f"{folder}/raw/ind.{name}.{key}"], f"ind.{name}.{key}")
        for key in ("x", "tx", "allx", "y", "ty", "ally", "graph")
    }
    test = _integers(contents[f"{folder}/raw/ind.{name}.test.index"], f"ind.{name}.test.index")[
        :, 0
    ]
    known = part["allx"].shape[0]
    n = max(int(test.max()) + 1, known + len(test))
    if (
        part["tx"].shape[0] != len(test)
        or part["ty"].shape[0] != len(test)
        or int(test.min()) < known
    ):
        raise DataError(f"the Planetoid files of {name} do not fit together")
    # Test rows are stored in the order of test.index. CiteSeer lists fewer test nodes than its
    # number range has: the nodes in the gaps are isolated, without features, and get class 0, as
    # everywhere else.
    x = np.zeros((n, part["allx"].shape[1]), dtype=np.float32)
    x[:known] = part["allx"].toarray()
    x[test] = part["tx"].toarray()
    target = np.zeros(n, dtype=np.int64)
    target[:known] = part["ally"].argmax(axis=1)
    target[test] = part["ty"].argmax(axis=1)
    graph = part["graph"]
    degrees = [len(neighbours) for neighbours in graph.values()]
    source = np.repeat(np.fromiter(graph, dtype=np.int64, count=len(graph)), degrees)
    neighbour = np.array(
        [node for neighbours in graph.values() for node in neighbours], dtype=np.int64
    )
    keep = source != neighbour
    keys = np.unique(source[keep] * n + neighbour[keep])
    masks = _npz_splits(contents, f"{folder}/geom-gcn/raw/{name}", n)
    labelled = part["y"].shape[0]
    nodes = np.arange(n)
    public = {
        "train": nodes < labelled,
        "validation": (nodes >= labelled) & (nodes < labelled + 500),
        "test": np.isin(nodes, test),
    }
    return {
        **_compact(x),
        "target": target,
        "edges": np.stack([keys // n, keys % n]),
        **{key: np.concatenate([masks[key], public[key][None]]) for key in masks},
    }


def _parse_geom_gcn(
    contents: dict[str, bytes], folder: str, *, prefix: str, indexed: bool = False
) -> Arrays:
    """Tab-separated node file (number, features, class) and edge file. ``indexed``: features list
    the ones."""
    origin = f"{folder}/raw/out1_node_feature_label.txt"
    rows = [line.split(b"\t") for line in contents[origin].split(b"\n")[1:] if line]
    bad = next((i for i, row in enumerate(rows) if len(row) != 3), None)
    if bad is not None:
        raise DataError(f"{origin}, line {bad + 2}: expected number, features and class")
    n = len(rows)
    number = np.array([int(row[0]) for row in rows])
    if not np.array_equal(np.sort(number), np.arange(n)):
        raise DataError(f"{origin}: node numbers must be 0 to {n - 1}, each once")
    target = np.empty(n, dtype=np.int64)
    target[number] = [int(row[2]) for row in rows]
    if indexed:
        ones = [np.array(row[1].split(b","), dtype=np.int64) for row in rows]
        x = np.zeros((n, 1 + max(int(row.max()) for row in ones)), dtype=np.float32)
        x[np.repeat(number, [len(row) for row in ones]), np.concatenate(ones)] = 1.0
    else:
        width = len(rows[0][1])
        bad = next((i for i, row in enumerate(rows) if len(row[1]) != width), None)
        if bad is not None:
            raise DataError(
                f"{origin}, line {bad + 2}: {len(rows[bad][1])} characters of "
                f"features instead of {width}"
            )
        characters = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.uint8).reshape(
            n, width
        )
        digits = characters[:, ::2] - ord("0")
        if (digits > 1).any() or (characters[:, 1::2] != ord(",")).any():
            raise DataError(f"{origin}: features must be zeros and ones with commas between")
        x = np.empty(digits.shape, dtype=np.float32)
        x[number] = digits
    origin = f"{folder}/raw/out1_graph_edges.txt"
    edges = _integers(contents[origin].split(b"\n", 1)[1], origin)
    if edges.shape[1] != 2 or edges.min() < 0 or edges.max() >= n:
        raise DataError(f"{origin}: every line must name two nodes from 0 to {n - 1}")
    keys = np.unique(edges[:, 0] * n + edges[:, 1])
    return {
        **_compact(x),
        "target": target,
        "edges": np.stack([keys // n, keys % n]),
        **_npz_splits(contents, f"{folder}/raw/{prefix}", n),
    }


def _parse_heterophilous(contents: dict[str, bytes], folder: str) -> Arrays:
    ((path, content),) = contents.items()
    data = _npz(
        content,
        path,
        ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks"),
    )
    return {
        **_compact(data["node_features"]),
        "target": data["node_labels"].astype(np.int64),
        "edges": data["edges"].T.astype(np.int64),
        "train": data["train_masks"].astype(bool),
        "validation": data["val_masks"].astype(bool),
        "test": data["test_masks"].astype(bool),
    }


def _parse_tu(contents: dict[str, bytes], folder: str) -> Arrays:
    name = folder.rsplit("/", 1)[1]

    def read(kind: str) -> np.ndarray:
        return _integers(contents[f"{folder}/raw/{name}_{kind}.txt"], f"{name}_{kind}.txt")

    edges = read("A").T - 1
    graph_of_node = read("graph_indicator")[:, 0] - 1
    n = len(graph_of_node)
    if edges.min() < 0 or edges.max() >= n or (np.diff(graph_of_node) < 0).any():
        raise DataError(f"{name}: edges or graph numbers are out of range")
    node_labels = read("node_labels")[:, 0]
    x = np.eye(node_labels.max() - node_labels.min() + 1, dtype=np.float32)[
        node_labels - node_labels.min()
    ]
    attributes = contents.get(f"{folder}/raw/{name}_node_attributes.txt")
    if attributes is not None:
        values = np.array(attributes.replace(b",", b" ").split(), dtype=np.float32).reshape(n, -1)
        x = np.concatenate([values, x], axis=1)
    keys = edges[0] * n + edges[1]
    keys, first = np.unique(keys, return_index=True)
    loops = keys // n == keys % n
    keys, first = keys[~loops], first[~loops]
    arrays = {
        "x": x,
        "edges": np.stack([keys // n, keys % n]),
        "graph_of_node": graph_of_node,
        "target": np.unique(read("graph_labels")[:, 0], return_inverse=True)[1].astype(np.int64),
    }
    if f"{folder}/raw/{name}_edge_labels.txt" in contents:
        labels = read("edge_labels")[first, 0]
        arrays["edge_attr"] = np.eye(labels.max() - labels.min() + 1, dtype=np.float32)[
            labels - labels.min()
        ]
    return arrays


def _npz_splits(contents: dict[str, bytes], prefix: str, n: int) -> Arrays:
    """Ten rows of masks from ``<prefix>_split_0.6_0.2_<i>.npz`` (the true shares are 48/32/20)."""
    masks: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": []}
    for number in range(10):
        path = f"{prefix}_split_0.6_0.2_{number}.npz"
        data = _npz(contents[path], path, ("train_mask", "val_mask", "test_mask"))
        for part, key in (
            ("train", "train_mask"),
            ("validation", "val_mask"),
            ("test", "test_mask"),
        ):
            if data[key].shape != (n,):
                raise DataError(f"{path}: {key} has shape {data[key].shape} instead of ({n},)")
            masks[part].append(data[key].astype(bool))
    return {part: np.stack(rows) for part, rows in masks.items()}


def _npz(content: bytes, origin: str, keys: tuple[str, ...]) -> Arrays:
    return read_npz(content, origin, keys, required=True)


def _integers(content: bytes, origin: str) -> np.ndarray:
    """(lines, columns) whole numbers separated by commas, tabs or spaces."""
    try:
        columns = len(content.split(b"\n", 1)[0].replace(b",", b" ").split())
        return np.array(content.replace(b",", b" ").split(), dtype=np.int64).reshape(-1, columns)
    except ValueError as error:
        raise DataError(f"{origin} must hold whole numbers in columns: {error}") from error


# ---------------------------------------------------------------------------------------------- the
# list

_PLANETOID = "MIT (kimiyoung/planetoid); splits of Geom-GCN: none stated"
_GEOM_GCN = "none stated (Geom-GCN asks to cite the original data)"
_PLATONOV = "MIT (yandex-research/heterophilous-graphs)"
_TU = "none stated (TUDataset collection)"
_DUPLICATES = (
    "holds duplicate nodes that leak from train to test (Platonov et al. 2023): prefer "
    "the filtered version",
)
_IMBALANCED = ("two classes of unequal size: scored by ROC-AUC",)

NODE_SETS = {
    source.name: source
    for source in [
        Source(
            "cora",
            "planetoid/Cora",
            _parse_planetoid,
            _PLANETOID,
            2708,
            10556,
            "citations, 7 topics",
        ),
        Source(
            "citeseer",
            "planetoid/CiteSeer",
            _parse_planetoid,
            _PLANETOID,
            3327,
            9104,
            "citations, 6 topics",
        ),
        Source(
            "pubmed",
            "planetoid/PubMed",
            _parse_planetoid,
            _PLANETOID,
            19717,
            88648,
            "citations, 3 topics",
        ),
        *(
            Source(
                name,
                f"webkb/{name}",
                partial(_parse_geom_gcn, prefix=name),
                _GEOM_GCN,
                nodes,
                edges,
                "web pages of one university, 5 kinds",
                remarks=("tiny: expect large variance over splits",),
            )
            for name, nodes, edges in (
                ("texas", 183, 558),
                ("wisconsin", 251, 900),
                ("cornell", 183, 554),
            )
        ),
        Source(
            "actor",
            "actor",
            partial(_parse_geom_gcn, prefix="film", indexed=True),
            _GEOM_GCN,
            7600,
            53318,
            "actors on the same page, 5 kinds",
        ),
        Source(
            "chameleon",
            "wikipedia/chameleon/geom_gcn",
            partial(_parse_geom_gcn, prefix="chameleon"),
            _GEOM_GCN,
            2277,
            62742,
            "Wikipedia pages, 5 traffic classes",
            remarks=_DUPLICATES,
        ),
        Source(
            "squirrel",
            "wikipedia/squirrel/geom_gcn",
            partial(_parse_geom_gcn, prefix="squirrel"),
            _GEOM_GCN,
            5201,
            396706,
            "Wikipedia pages, 5 traffic classes",
            remarks=_DUPLICATES,
        ),
        Source(
            "chameleon-filtered",
            "heterophilous_filtered/chameleon_filtered.npz",
            _parse_heterophilous,
            _PLATONOV,
            890,
            17708,
            "Chameleon without duplicate nodes",
        ),
        Source(
            "squirrel-filtered",
            "heterophilous_filtered/squirrel_filtered.npz",
            _parse_heterophilous,
            _PLATONOV,
            2223,
            93996,
            "Squirrel without duplicate nodes",
        ),
        Source(
            "minesweeper",
            "heterophilous/minesweeper/raw/minesweeper.npz",
            _parse_heterophilous,
            _PLATONOV,
            10000,
            78804,
            "find the mines on a 100 x 100 board",
            metric="roc_auc",
            remarks=_IMBALANCED,
        ),
        Source(
            "tolokers",
            "heterophilous/tolokers/raw/tolokers.npz",
            _parse_heterophilous,
            _PLATONOV,
            11758,
            1038000,
            "crowd workers, banned or not",
            metric="roc_auc",
            remarks=_IMBALANCED,
        ),
    ]
}

GRAPH_SETS = {
    source.name: source
    for source in [
        Source(
            "mutag",
            "tu/MUTAG",
            _parse_tu,
            _TU,
            3371,
            7442,
            "molecules, mutagenic or not",
            graphs=188,
        ),
        Source(
            "proteins",
            "tu/PROTEINS",
            _parse_tu,
            _TU,
            43471,
            162088,
            "proteins, enzyme or not",
            graphs=1113,
        ),
    ]
}
