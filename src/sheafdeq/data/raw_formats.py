"""Raw files of published graphs, parsed into arrays; nothing is ever unpickled or executed."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sheafdeq.data.archives import read_npz
from sheafdeq.data.pickles import read_pickle
from sheafdeq.errors import DataError

__all__ = ["Arrays", "parse_geom_gcn", "parse_heterophilous", "parse_planetoid", "parse_tu"]


Arrays = dict[str, np.ndarray]


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


def parse_planetoid(contents: dict[str, bytes], folder: str) -> Arrays:
    """Cora, CiteSeer, PubMed: eight files in Planetoid's layout, and Geom-GCN's ten splits."""
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


def parse_geom_gcn(
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


def parse_heterophilous(contents: dict[str, bytes], folder: str) -> Arrays:
    """One archive of Platonov et al.: features, labels, edges and ten splits."""
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


def parse_tu(contents: dict[str, bytes], folder: str) -> Arrays:
    """Many small graphs in the text files of TUDataset."""
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
