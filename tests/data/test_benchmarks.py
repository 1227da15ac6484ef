"""Real graphs: miniature raw files of every format, and, where the data is at hand, the real ones.

Set ``SHEAFDEQ_TEST_DATA`` to a data folder (the layout of manifest.json) to run the tests marked
``real``.
"""

import io
import os
import pickle
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from sheafdeq.data import load_task, task_names
from sheafdeq.data.benchmark_sets import NODE_SETS
from sheafdeq.data.benchmarks import _features, _stratified_folds
from sheafdeq.data.catalogue import entries, recorded_digests
from sheafdeq.data.files import manifest
from sheafdeq.data.raw_formats import parse_geom_gcn, parse_heterophilous, parse_planetoid, parse_tu
from sheafdeq.errors import DataError, InputError

# ----------------------------------------------------------------------------------------------
# miniature files


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def splits(prefix, n):
    masks = np.arange(n) % 3
    content = npz(train_mask=masks == 0, val_mask=masks == 1, test_mask=masks == 2)
    return {f"{prefix}_split_0.6_0.2_{i}.npz": content for i in range(10)}


def planetoid_files():
    """Six nodes: four known, test nodes 5 and 7 listed out of order, 4 and 6 missing as in
    CiteSeer."""
    features = sparse.csr_matrix(np.arange(12, dtype=np.float32).reshape(4, 3))
    parts = {
        "x": features[:2],
        "allx": features,
        "tx": sparse.csr_matrix(np.array([[70, 71, 72], [50, 51, 52]], dtype=np.float32)),
        "y": np.eye(2, dtype=np.int32),
        "ally": np.eye(2, dtype=np.int32)[[0, 1, 1, 0]],
        "ty": np.eye(2, dtype=np.int32)[[1, 0]],
        "graph": defaultdict(list, {0: [1, 1, 5], 1: [0], 2: [2, 3], 3: [2], 5: [0], 7: []}),
    }
    contents = {
        f"planetoid/Tiny/raw/ind.tiny.{key}": pickle.dumps(value, 3) for key, value in parts.items()
    }
    contents["planetoid/Tiny/raw/ind.tiny.test.index"] = b"7\n5\n"
    return contents | splits("planetoid/Tiny/geom-gcn/raw/tiny", 8)


def test_planetoid_format():
    arrays = parse_planetoid(planetoid_files(), "planetoid/Tiny")
    x = _features(arrays)
    assert x[:4].tolist() == np.arange(12).reshape(4, 3).tolist()
    assert x[7].tolist() == [70, 71, 72]
    assert x[5].tolist() == [50, 51, 52]
    assert x[4].tolist() == x[6].tolist() == [0, 0, 0]
    assert arrays["target"].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    pairs = sorted(map(tuple, arrays["edges"].T.tolist()))
    assert pairs == [(0, 1), (0, 5), (1, 0), (2, 3), (3, 2), (5, 0)]  # no loop, no duplicate
    assert arrays["train"].shape == (11, 8)
    assert np.flatnonzero(arrays["train"][10]).tolist() == [0, 1]
    assert np.flatnonzero(arrays["test"][10]).tolist() == [5, 7]


def test_geom_gcn_formats():
    dense = {
        "d/raw/out1_node_feature_label.txt": b"node_id\tfeature\tlabel\n"
        b"1\t0,1,1\t2\n0\t1,0,0\t0\n2\t0,0,0\t1\n",
        "d/raw/out1_graph_edges.txt": b"node_id\tnode_id\n0\t1\n1\t2\n0\t1\n2\t2\n",
    } | splits("d/raw/d", 3)
    arrays = parse_geom_gcn(dense, "d", prefix="d")
    assert arrays["x"].tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert arrays["target"].tolist() == [0, 2, 1]
    assert arrays["edges"].T.tolist() == [[0, 1], [1, 2], [2, 2]]
    listed = {
        **dense,
        "d/raw/out1_node_feature_label.txt": b"node_id\tfeature\tlabel\n"
        b"1\t2,0\t2\n0\t1\t0\n2\t0\t1\n",
    }
    assert parse_geom_gcn(listed, "d", prefix="d", indexed=True)["x"].tolist() == [
        [0, 1, 0],
        [1, 0, 1],
        [1, 0, 0],
    ]
    for rows in (
        b"0\t1,0\n",
        b"0\t1,0\t1\n0\t1,0\t1\n",
        b"0\t1,0\t1\n1\t1,0,0\t1\n",
        b"0\t1,7\t1\n",
        b"0\t1;0\t1\n",
    ):
        with pytest.raises(DataError, match="out1_node_feature_label"):
            parse_geom_gcn(
                {**dense, "d/raw/out1_node_feature_label.txt": b"h\n" + rows}, "d", prefix="d"
            )
    for bad in (b"h\n0\t9\n", b"h\n0\n", b"h\n0\tx\n"):
        with pytest.raises(DataError, match="out1_graph_edges"):
            parse_geom_gcn({**dense, "d/raw/out1_graph_edges.txt": bad}, "d", prefix="d")


def test_heterophilous_format_and_object_arrays():
    mask = np.ones((10, 3), dtype=bool)
    good = {
        "node_features": np.eye(3, dtype=np.float32),
        "node_labels": np.array([0, 1, 0]),
        "edges": np.array([[0, 1], [1, 2]]),
        "train_masks": mask,
        "val_masks": mask,
        "test_masks": mask,
    }
    arrays = parse_heterophilous({"a.npz": npz(**good)}, "a.npz")
    assert arrays["edges"].tolist() == [[0, 1], [1, 2]]
    planted = npz(**{**good, "node_labels": np.array([print, 1, 0], dtype=object)})
    for bad in (planted, b"PK", npz(edges=mask), npz(**good)[:-40]):
        with pytest.raises(DataError, match=r"a\.npz"):
            parse_heterophilous({"a.npz": bad}, "a.npz")


def test_tu_format():
    contents = {
        "tu/T/raw/T_A.txt": b"1, 2\n2, 1\n3, 3\n3, 4\n4, 3\n",
        "tu/T/raw/T_graph_indicator.txt": b"1\n1\n2\n2\n",
        "tu/T/raw/T_graph_labels.txt": b"-1\n1\n",
        "tu/T/raw/T_node_labels.txt": b"2\n0\n1\n2\n",
        "tu/T/raw/T_edge_labels.txt": b"0\n1\n1\n0\n0\n",
        "tu/T/raw/T_node_attributes.txt": b" 1.5\n 2.5\n-1\n0\n",
    }
    arrays = parse_tu(contents, "tu/T")
    assert arrays["x"].tolist() == [[1.5, 0, 0, 1], [2.5, 1, 0, 0], [-1, 0, 1, 0], [0, 0, 0, 1]]
    assert arrays["edges"].T.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert arrays["edge_attr"].argmax(1).tolist() == [0, 1, 0, 0]
    assert arrays["target"].tolist() == [0, 1]
    with pytest.raises(DataError, match="out of range"):
        parse_tu({**contents, "tu/T/raw/T_A.txt": b"1, 9\n"}, "tu/T")


def test_folds_are_stratified():
    labels = np.array([0] * 63 + [1] * 125)
    fold = _stratified_folds(labels)
    assert set(np.bincount(fold)) <= {18, 19}
    for label in (0, 1):
        counts = np.bincount(fold[labels == label], minlength=10)
        assert counts.max() - counts.min() <= 1


# ----------------------------------------------------------------------------------------------
# real files

FILE_TASKS = [entry.name for entry in entries() if entry.files]
SIZES = {
    "cora": (1192, 796, 497),
    "citeseer": (1596, 1065, 666),
    "pubmed": (9463, 6310, 3944),
    "texas": (87, 59, 37),
    "wisconsin": (120, 80, 51),
    "cornell": (87, 59, 37),
    "actor": (3648, 2432, 1520),
    "chameleon": (1092, 729, 456),
    "squirrel": (2496, 1664, 1041),
    "chameleon-filtered": (409, 287, 194),
    "squirrel-filtered": (1053, 718, 452),
    "minesweeper": (5000, 2500, 2500),
    "tolokers": (5879, 2939, 2940),
    "mnist-terrain": (88_680, 29_560, 29_560),
    "mutag": (150, 19, 19),
    "proteins": (889, 112, 112),
}


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """A private copy of the real data."""
    folder = os.environ.get("SHEAFDEQ_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set SHEAFDEQ_TEST_DATA to a folder with the real data files to run this test")
    copy = tmp_path_factory.mktemp("data")
    for path in manifest():
        if (Path(folder) / path).is_file():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / path, copy / path)
    return copy


@pytest.mark.parametrize("name", FILE_TASKS)
def test_real_tasks_are_the_recorded_ones(name, real):
    task = load_task(name, root=real)
    entry = next(entry for entry in entries() if entry.name == name)
    assert sum(graph.num_nodes for graph in task.graphs) == entry.nodes
    assert sum(graph.num_edges for graph in task.graphs) == entry.stored_edges
    assert sum(graph.num_graphs for graph in task.graphs) == entry.graphs
    assert task.kind == entry.kind
    assert tuple(split.size for split in task.splits.values()) == SIZES[name]
    assert task.digest == recorded_digests()[task.title]
    assert load_task(name, root=real).digest == task.digest  # now from the cache


def test_mnist_majority_is_the_papers(real):
    task = load_task("mnist-terrain", root=real)
    assert task.train.graph.num_graphs == 14_780
    # 7877 ones of 14,780
    assert 100 * task.constant_over_all["accuracy"] == pytest.approx(53.295, abs=1e-3)
    assert task.constant_score == pytest.approx(53.3, abs=0.7)


def test_public_split(real):
    task = load_task("cora", split="public", root=real)
    assert [split.size for split in task.splits.values()] == [140, 500, 1000]
    with pytest.raises(InputError, match="cora has splits 0 to 9, got 10"):
        load_task("cora", split=10, root=real)
    with pytest.raises(InputError, match="texas has splits 0 to 9, got 'public'"):
        load_task("texas", split="public", root=real)


def test_real_auc_tasks(real):
    task = load_task("minesweeper", root=real)
    perfect = torch.nn.functional.one_hot(task.test.target, 2).float()
    assert task.score(task.metrics(perfect, task.test)) == 100.0
    assert task.constant_score == 50.0


def test_held_out_graphs_partition_the_set(real):
    seen = [load_task("mutag", split=s, root=real) for s in range(10)]
    assert sum(task.test.graph.num_nodes for task in seen) == 3371
    assert sum(task.test.size for task in seen) == 188


def test_splits_differ_and_cover(real):
    tasks = [load_task("texas", split=s, root=real) for s in range(10)]
    assert len({task.digest for task in tasks}) == 10
    for task in tasks:
        assert (torch.stack([s.mask for s in task.splits.values()]).sum(0) == 1).all()


@pytest.mark.parametrize(
    "name",
    [
        "cora",
        "citeseer",
        "pubmed",
        "texas",
        "cornell",
        "wisconsin",
        "actor",
        "chameleon",
        "minesweeper",
    ],
)
def test_real_graphs_equal_what_pyg_reads(name, real, tmp_path):
    """PyG on a private copy of the same raw files (its own processed files are made afresh
    there)."""
    from torch_geometric import datasets

    folder = tmp_path / "pyg"
    for path in NODE_SETS[name].paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real / path, folder / path)
    if name in ("cora", "citeseer", "pubmed"):
        full = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}[name]
        for extra in (folder / f"planetoid/{full}/raw").iterdir():
            target = folder / f"planetoid/{full}/geom-gcn/raw" / extra.name
            shutil.copy(extra, target)
        dataset = datasets.Planetoid(str(folder / "planetoid"), full, split="geom-gcn")
    elif name == "actor":
        dataset = datasets.Actor(str(folder / "actor"))
    elif name == "chameleon":
        dataset = datasets.WikipediaNetwork(
            str(folder / "wikipedia"), name, geom_gcn_preprocess=True
        )
    elif name == "minesweeper":
        dataset = datasets.HeterophilousGraphDataset(str(folder / "heterophilous"), "Minesweeper")
    else:
        dataset = datasets.WebKB(str(folder / "webkb"), name.capitalize())
    data = dataset[0]
    for number in (0, 7):
        task = load_task(name, split=number, undirected=name == "minesweeper", root=real)
        graph = task.train.graph
        assert torch.equal(graph.x, data.x)
        assert torch.equal(task.train.target, data.y)
        keys = (data.edge_index[1] * graph.num_nodes + data.edge_index[0]).sort().values
        assert torch.equal(graph.target * graph.num_nodes + graph.source, keys)
        for split, mask in (
            (task.train, "train_mask"),
            (task.validation, "val_mask"),
            (task.test, "test_mask"),
        ):
            assert torch.equal(split.mask, data[mask][:, number].bool())


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS"])
def test_real_graph_sets_equal_what_pyg_reads(name, real, tmp_path):
    from torch_geometric import datasets

    for path in manifest():
        if path.startswith(f"tu/{name}/"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(real / path, tmp_path / path)
    dataset = datasets.TUDataset(str(tmp_path / "tu"), name, use_node_attr=True)
    labels = torch.cat([data.y for data in dataset]).numpy()
    chosen = np.flatnonzero(_stratified_folds(labels) == 0)
    test = load_task(name.lower(), root=real).test
    for position, number in enumerate(chosen):
        data, nodes = dataset[int(number)], test.graph.graph_ids == position
        assert torch.equal(test.graph.x[nodes], data.x)
        assert int(data.y) == int(test.target[position])
        inside = nodes[test.graph.source]
        first = int(nodes.nonzero()[0])
        # sorted by target here, by source there
        found = (test.graph.edge_index[:, inside] - first).flip(0)
        assert torch.equal(
            found,
            data.edge_index.flip(0)[
                :, (data.edge_index[1] * 10_000 + data.edge_index[0]).argsort()
            ],
        )
        if data.edge_attr is not None:
            order = (data.edge_index[1] * 10_000 + data.edge_index[0]).argsort()
            assert torch.equal(test.graph.edge_attr[inside], data.edge_attr[order])


def test_a_planted_processed_file_is_never_opened(real, tmp_path):
    copy = tmp_path / "copy"
    for path in NODE_SETS["texas"].paths:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real / path, copy / path)

    class Bomb:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'marker')!r}, 'w').close()",)

    processed = copy / "webkb/texas/processed"
    processed.mkdir()
    for name in ("data.pt", "pre_filter.pt", "pre_transform.pt"):
        (processed / name).write_bytes(pickle.dumps(Bomb()))
    load_task("texas", root=copy)
    assert not (tmp_path / "marker").exists()


# ----------------------------------------------------------------------------------------------
# recorded digests


@pytest.mark.parametrize(
    ("name", "options"),
    [("community", {"level": level}) for level in range(11)]
    + [(name, {}) for name in ("counting", "sums", "coordinates", "mnist-terrain-standin")],
)
def test_generated_tasks_are_the_recorded_ones(name, options):
    if name == "community" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("torch.randn rounds differently on processors without AVX2")
    task = load_task(name, **options)
    assert task.digest == recorded_digests()[task.title]


def test_every_task_has_a_recorded_digest():
    titles = {title.split(",")[0] for title in recorded_digests()}
    assert titles == set(task_names())
