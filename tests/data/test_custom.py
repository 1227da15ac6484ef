"""A user's own graph: PyG objects, npz and CSV, and errors that name the row."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from sheafdeq.data import task_from, task_from_csv, task_from_npz
from sheafdeq.errors import DataError, InputError


def example(n=10, **changes):
    generator = torch.Generator().manual_seed(0)
    part = torch.arange(n) % 3
    fields = {
        "x": torch.rand(n, 4, generator=generator),
        "edge_index": torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]),
        "y": torch.arange(n) % 2,
        "train_mask": part == 0,
        "val_mask": part == 1,
        "test_mask": part == 2,
    }
    return Data(**{**fields, **changes})


def test_from_data():
    task = task_from(example(), name="mine")
    assert [split.size for split in task.splits.values()] == [4, 3, 3]
    assert task.train.graph is task.test.graph
    assert (task.kind, task.out_channels, task.in_channels) == ("node classification", 2, 4)
    assert task_from([example()]).digest != task.digest  # another name is another task
    assert task_from([example()], name="mine").digest == task.digest


def test_from_a_dataset_object():
    from torch_geometric.data import InMemoryDataset

    class Single(InMemoryDataset):
        def __init__(self, members):
            super().__init__(None)
            self.data, self.slices = self.collate(members)

    assert (
        task_from(Single([example()]), name="mine").digest
        == task_from(example(), name="mine").digest
    )
    with pytest.raises(InputError, match="a dataset of 2 graphs"):
        task_from(Single([example(), example()]))


def test_split_columns_and_drawn_masks():
    masks = torch.stack([example().train_mask, example().val_mask], dim=1)
    other = torch.stack([example().val_mask, example().train_mask], dim=1)
    both = example(
        train_mask=masks, val_mask=other, test_mask=torch.stack([example().test_mask] * 2, dim=1)
    )
    assert torch.equal(task_from(both, split=1).train.mask, example().val_mask)
    bare = example(train_mask=None, val_mask=None, test_mask=None)
    assert [split.size for split in task_from(bare, seed=1).splits.values()] == [6, 2, 2]
    with pytest.raises(InputError, match="no train, validation and test masks"):
        task_from(bare)


def test_regression_scales_by_the_training_targets():
    data = example(y=torch.linspace(-2, 7, 10))
    task = task_from(data)
    assert task.kind == "node regression"
    assert task.output_scale == pytest.approx(data.y[data.train_mask].abs().mean().item())
    assert torch.allclose(task.train.target[:, 0] * task.output_scale, data.y)


def test_held_out_graphs():
    parts = [[example(6), example(5)], [example(4)], example(7)]
    task = task_from(parts)
    assert [split.size for split in task.splits.values()] == [11, 4, 7]
    per_graph = [[example(6, y=torch.tensor([1])), example(5, y=torch.tensor([0]))]] * 3
    task = task_from(per_graph)
    assert task.kind == "graph classification"
    assert task.train.graph.num_graphs == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "y must be a tensor"),
        ({"y": torch.zeros(7, dtype=torch.int64)}, "7 rows, but there are 10 nodes"),
        ({"y": torch.tensor([0.0] * 4 + [float("nan")] + [0.0] * 5)}, "row 4"),
        (
            {"y": torch.tensor([0, 1, 0, -1, 0, 1, 0, 1, 0, 1])},
            "row 3 of the train split has class -1",
        ),
        ({"val_mask": None}, "give all three"),
        ({"val_mask": torch.zeros(10, dtype=torch.bool)}, "validation split scores no row"),
        ({"val_mask": torch.arange(10) % 3 == 0}, "row 0 is in both the train and the validation"),
        ({"train_mask": torch.ones(9, dtype=torch.bool)}, r"shape \(9,\) instead of \(10,\)"),
        ({"edge_index": torch.tensor([[0], [10]])}, "node 10"),
        ({"x": torch.full((10, 4), float("inf"))}, "first in row 0"),
    ],
)
def test_faulty_data_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        task_from(example(**changes))


def test_other_objects_are_refused():
    for thing in (3, "cora", None):
        with pytest.raises(InputError, match=r"expected a PyG Data|a dataset of"):
            task_from(thing)


# ---------------------------------------------------------------------------------------------- npz


def arrays(**changes):
    data = example()
    fields = {key: value.numpy() for key, value in data.to_dict().items()}
    return {**fields, **changes}


def test_npz_equals_the_object(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays())
    task = task_from_npz(tmp_path / "mine.npz")
    other = task_from(example(), name="mine")
    assert torch.equal(task.train.graph.x, other.train.graph.x)
    assert torch.equal(task.train.graph.edge_index, other.train.graph.edge_index)
    assert task.name == "mine"
    assert "npz_sha256" in task.options
    pairs = arrays()
    pairs["edges"] = pairs.pop("edge_index").T
    np.savez(tmp_path / "pairs.npz", **pairs)
    assert torch.equal(
        task_from_npz(tmp_path / "pairs.npz").train.graph.edge_index, task.train.graph.edge_index
    )


def test_faulty_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays(y=np.array([print] * 10, dtype=object)))
    with pytest.raises(DataError, match="y does not hold plain numbers"):
        task_from_npz(path)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="not an npz archive"):
        task_from_npz(path)
    np.savez(path, **arrays(y=np.array(["a"] * 10)))
    with pytest.raises(DataError, match="y does not hold plain numbers"):
        task_from_npz(path)
    np.savez(path, x=np.zeros((3, 2)))
    with pytest.raises(InputError, match="no 'edge_index'"):
        task_from_npz(path)


# ---------------------------------------------------------------------------------------------- CSV

NODES = """node,height,weight,label,split
anna,1.0,2,cat,train
bert,0.5,1,dog,train
carl,0.1,3,cat,validation
dora,0.2,4,dog,test
emil,0.3,5,,
"""
EDGES = "source,target,strength\nanna,bert,0.5\nbert,carl,1\ncarl,anna,2\ndora,dora,3\n"


def tables(tmp_path, nodes=NODES, edges=EDGES):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text(edges)
    return tmp_path / "nodes.csv", tmp_path / "edges.csv"


def test_csv(tmp_path):
    task = task_from_csv(*tables(tmp_path))
    graph = task.train.graph
    assert [split.size for split in task.splits.values()] == [2, 1, 1]
    assert task.train.target.tolist() == [0, 1, 0, 1, -1]
    assert graph.x[3].tolist() == pytest.approx([0.2, 4.0])
    assert sorted(
        zip(
            graph.source.tolist(),
            graph.target.tolist(),
            graph.edge_attr[:, 0].tolist(),
            strict=True,
        )
    ) == [(0, 1, 0.5), (1, 2, 1.0), (2, 0, 2.0), (3, 3, 3.0)]
    both = task_from_csv(*tables(tmp_path), undirected=True).train.graph
    assert both.num_edges == 7  # the self-loop stays single
    real_targets = (
        NODES.replace("label", "target")
        .replace("cat", "1.5")
        .replace("dog", "2.5")
        .replace(",,\n", ",9,\n")
    )
    assert task_from_csv(*tables(tmp_path, real_targets)).kind == "node regression"


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (
            NODES.replace("0.1", "tall"),
            EDGES,
            r"nodes\.csv, line 4, column 'height': 'tall' is not a number",
        ),
        (NODES.replace("0.1", "nan"), EDGES, r"line 4, column 'height': 'nan' is not finite"),
        (NODES.replace("dora,0.2", "anna,0.2"), EDGES, r"line 5: node 'anna' is there twice"),
        (NODES.replace("dora,0.2,4", "dora,0.2"), EDGES, r"line 5: 4 cells where the header has 5"),
        (NODES.replace("validation", "holdout"), EDGES, r"line 4: split 'holdout'"),
        (NODES.replace("label", "class"), EDGES, "exactly one of the columns 'label'"),
        (NODES.replace("node,", "id,"), EDGES, "no column 'node'"),
        (
            NODES,
            EDGES.replace("carl,anna", "carl,otto"),
            r"edges\.csv, line 4: target 'otto' is not a node",
        ),
        (NODES, EDGES.replace("target", "to"), r"edges\.csv, line 1: there is no column 'target'"),
        (NODES, EDGES.replace("0.5", "strong"), r"edges\.csv, line 2, column 'strength'"),
        (NODES.replace("weight", "height"), EDGES, "column names must be there and differ"),
        ("", EDGES, "is empty"),
        ("node,label\na,x\n", "source,target\n", "no feature columns"),
    ],
)
def test_faulty_tables_name_the_line(nodes, edges, message, tmp_path):
    with pytest.raises(DataError, match=message):
        task_from_csv(*tables(tmp_path, nodes, edges))


def test_csv_that_is_not_text(tmp_path):
    nodes, edges = tables(tmp_path)
    nodes.write_bytes(b"node,a\n\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        task_from_csv(nodes, edges)


@pytest.mark.parametrize("seed", [-1, 2**70, 1.5, "a", True])
def test_a_seed_that_no_generator_takes_is_named(tmp_path, seed):
    np.savez(
        tmp_path / "a.npz",
        x=np.zeros((9, 1)),
        edge_index=np.zeros((2, 0), dtype=int),
        y=np.arange(9) % 2,
    )
    with pytest.raises(InputError, match="seed must be a whole number"):
        task_from_npz(tmp_path / "a.npz", seed=seed)
