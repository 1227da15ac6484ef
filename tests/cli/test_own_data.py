"""A user's own files from the command line: trained, stored, resumed, swept, judged and asked."""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sheafdeq.cli import main
from sheafdeq.cli.data_options import DataChoice, data_choice
from sheafdeq.records import read_record, read_sealed

SMALL = ["--set", "channels=2", "--set", "steps=4", "--epochs", "2"]
Say = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command: exit code, JSON (or text) and errors."""

    def run(*words: object) -> tuple[int, Any, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words and out else out, err

    return run


def ring(n: int = 24, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A ring whose nodes belong to two classes."""
    node = np.arange(n)
    one = np.stack([node, (node + 1) % n])
    x = np.random.default_rng(seed).normal(size=(n, 3)) + (node % 2)[:, None]
    return {"x": x, "edge_index": np.concatenate([one, one[::-1]], axis=1), "y": node % 2, **more}


def tables(folder: Path, labels: list[str] | None, n: int = 24, seed: int = 0) -> list[object]:
    """The words that name a node table and an edge table."""
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(seed).normal(size=(n, 3))
    head = "node,a,b,c" + (",label" if labels else "")
    lines = [
        ",".join([f"n{k}", *map(str, row), *([labels[k % len(labels)]] if labels else [])])
        for k, row in enumerate(x)
    ]
    (folder / "nodes.csv").write_text("\n".join([head, *lines]) + "\n")
    edges = "".join(f"n{k},n{(k + 1) % n}\n" for k in range(n))
    (folder / "edges.csv").write_text("source,target\n" + edges)
    return ["--nodes", folder / "nodes.csv", "--edges", folder / "edges.csv", "--undirected"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "mine.npz"
    np.savez(path, **ring())
    return path


def train(say: Say, tmp_path: Path, *words: object, model: str = "sheafdeq") -> Path:
    small = SMALL if model == "sheafdeq" else ["--epochs", "2"]
    code, found, err = say(
        "train", "--model", model, *small, "--out", tmp_path / "runs", "--json", *words
    )
    assert code == 0, err
    return Path(found["path"])


def test_the_content_and_not_the_path_names_a_run(say: Say, archive: Path, tmp_path: Path) -> None:
    run = train(say, tmp_path, "--npz", archive, "--mask-seed", 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(archive, elsewhere / "copy.npz")
    assert train(say, tmp_path, "--npz", elsewhere / "copy.npz", "--mask-seed", 1) == run
    np.savez(archive, **ring(seed=1))
    assert train(say, tmp_path, "--npz", archive, "--mask-seed", 1) != run
    record = read_record(run)
    assert record.task.name.startswith("own-")
    assert record.config["task"]["files"]["npz"]["name"] == "mine.npz"
    assert record.task.kind == "node classification"
    for file in ("record.json", "checkpoint.json"):
        assert str(tmp_path) not in (run / file).read_text()


def test_a_run_says_which_file_it_needs(say: Say, archive: Path, tmp_path: Path) -> None:
    run = train(say, tmp_path, "--npz", archive, "--mask-seed", 1)
    for words in (
        ["evaluate", run],
        ["certify", run],
        ["diagnose", run],
        ["async", run],
        ["infer", run],
        ["explore", run],
        ["predict", run],
        ["settle", run, "--out", tmp_path / "settled"],
    ):
        code, _, err = say(*words)
        assert code == 2, words
        assert "mine.npz (SHA-256" in err
        assert "--npz FILE" in err
        assert err.count("\n") == 1
    # its own file brings the split and the masks along, and gives the recorded scores
    code, found, _ = say("evaluate", run, "--npz", archive, "--json")
    assert code == 0
    (result,) = found["results"]
    stored = read_record(run).scores["test"]
    assert result["splits"]["test"]["score"] == pytest.approx(stored)
    assert result["label"] == "trained"
    assert str(tmp_path) not in json.dumps(result)


def test_every_command_takes_the_file(say: Say, archive: Path, tmp_path: Path) -> None:
    run, own = train(say, tmp_path, "--npz", archive, "--mask-seed", 1), ["--npz", archive]
    code, found, _ = say("certify", run, *own, "--effort", "quick", "--json")
    assert code == 0
    assert found["task"].startswith("own-")
    code, found, _ = say("diagnose", run, *own, "--iterations", 6, "--no-spectrum", "--json")
    assert code == 0
    assert found["results"][0]["nodes"] == 24
    assert "--npz mine.npz" in found["results"][0]["command"]
    words = ["--samples", 1, "--work", 3, "--schedules", "1,1", "--reference-steps", 20, "--json"]
    code, found, _ = say("async", run, *own, *words)
    assert code == 0
    code, found, _ = say("infer", run, *own, "--engine", "in-process", "--horizon", 4, "--json")
    assert code == 0
    assert found["score"] is not None  # the run was trained on it, so its labels are known
    page = tmp_path / "page.html"
    assert say("explore", run, *own, "--iterations", 3, "--out", page)[0] == 0
    assert page.stat().st_size > 10_000
    stage = "epochs=1,learning_rate=0.001,residual_weight=1"
    words = ["--out", tmp_path / "settled", "--stage", stage, "--json"]
    code, found, _ = say("settle", run, *own, *words)
    assert code == 0
    settled = read_record(found["stages"][0]["path"])
    assert settled.task.digest == read_record(run).task.digest
    np.savez(tmp_path / "other.npz", **ring(seed=5))
    assert say("settle", run, "--npz", tmp_path / "other.npz", *words)[0] == 2


def test_other_files_are_another_graph(say: Say, archive: Path, tmp_path: Path) -> None:
    run = train(say, tmp_path, "--npz", archive, "--mask-seed", 1)
    other = tmp_path / "other.npz"
    np.savez(other, **{key: value for key, value in ring(40, 3).items() if key != "y"})
    code, found, _ = say("infer", run, "--npz", other, "--engine", "in-process", "--json")
    assert found["nodes"] == 40
    assert found["score"] is None
    code, found, _ = say("certify", run, "--npz", other, "--effort", "quick", "--json")
    assert code == 0
    assert found["part"] == "your own --npz other.npz"
    code, _, err = say("evaluate", run, "--npz", other, "--mask-seed", 0)
    assert code == 1
    assert "no array 'y'" in err
    np.savez(other, **ring(40, 3))
    code, found, _ = say("evaluate", run, "--npz", other, "--mask-seed", 0, "--json")
    assert found["results"][0]["label"] == "own"
    np.savez(other, **{**ring(40, 3), "x": np.zeros((40, 7))})
    code, _, err = say("evaluate", run, "--npz", other, "--mask-seed", 0)
    assert code == 1
    assert "has 3 node features" in err


def test_an_interrupted_run_on_a_file_is_resumed(say: Say, archive: Path, tmp_path: Path) -> None:
    from sheafdeq.training import TrainingConfig
    from sheafdeq.training import train as train_run
    from sheafdeq.training.interrupt import Suspended

    task = {"files": {"npz": str(archive)}, "options": {"seed": 1}}
    options = {"channels": 2, "steps": 4}
    config = TrainingConfig.parse(
        {"task": task, "model": {"name": "sheafdeq", "options": options}, "max_epochs": 4}
    )
    direct = train_run(config, out=tmp_path / "direct")
    with pytest.raises(Suspended):
        train_run(
            config,
            out=tmp_path / "runs",
            suspend_when=lambda metrics: "enough" if metrics.epoch >= 2 else None,
        )
    elsewhere = tmp_path / "moved.npz"
    archive.rename(elsewhere)
    words = ["--npz", elsewhere, "--mask-seed", 1, "--epochs", 4]
    run = train(say, tmp_path, *words)
    assert run.name == direct.record.id
    assert read_record(run).timing["epochs_in_this_attempt"] < 4
    assert read_record(run).scores == direct.record.scores


SWEEP = """
name = "mine"
seeds = [1]
[training]
max_epochs = 1
[[tasks]]
files = { npz = "mine.npz" }
options = { seed = 1 }
[[tasks]]
name = "words"
files = { nodes = "tables/nodes.csv", edges = "tables/edges.csv" }
options = { seed = 2, undirected = true }
[[models]]
name = "gcn"
options = [{ width = 4 }]
"""


def test_sweeps_name_files(say: Say, archive: Path, tmp_path: Path, monkeypatch) -> None:
    tables(tmp_path / "tables", ["no", "yes"])
    (tmp_path / "mine.toml").write_text(SWEEP)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # paths start at the folder of the file that names them
    store = tmp_path / "runs"
    words = [tmp_path / "mine.toml", "--out", store, "--json"]
    code, found, err = say("sweep", "run", *words)
    assert (code, found["done"]) == (0, 2), err
    names = {read_record(path.parent).task.name for path in store.glob("*/record.json")}
    assert "words" in names
    assert len(names) == 2
    # a changed file is another task, though its path is the same
    np.savez(archive, **ring(seed=9))
    assert say("sweep", "status", *words)[1]["left"] == 1
    # the models of a sweep on a file of one's own
    own = ["--npz", archive, "--mask-seed", 3]
    code, found, _ = say("sweep", "status", "smoke", *own, "--out", store, "--json")
    assert code == 0
    assert found["failed"] == 0
    assert all("own (mine.npz)" in run["run"] for run in found["missing"])


@pytest.mark.parametrize("ending", ["npz", "csv", "json"])
def test_predict_on_unlabelled_tables(say: Say, tmp_path: Path, ending: str) -> None:
    run = train(say, tmp_path, *tables(tmp_path / "a", ["no", "yes"]), "--mask-seed", 0)
    other = tables(tmp_path / "b", None, 10, 4)
    out = tmp_path / "deep" / f"out.{ending}"
    code, facts, _ = say("predict", run, *other, "--out", out, "--json")
    assert code == 0
    assert (facts["nodes"], facts["graphs"]) == (10, 1)
    assert sum(facts["labels"].values()) == 10
    if ending == "json":
        content = json.loads(out.read_text())
        rows = content["nodes"]
        assert content["graphs"][0]["status"] == rows[0]["status"]
        outputs = np.array([row["outputs"] for row in rows])
    elif ending == "csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
        outputs = np.array([[float(row["output0"]), float(row["output1"])] for row in rows])
    else:
        content = np.load(out)  # no pickles: it would refuse
        words = content["classes"]
        keys = ("node", "labels", "residual", "graph")
        columns = zip(*(content[key] for key in keys), strict=True)
        rows = [
            {"node": node, "label": words[label], "residual": residual,
             "status": content["graph_status"][graph]}
            for node, label, residual, graph in columns
        ]  # fmt: skip
        outputs = content["outputs"]
    assert [row["node"] for row in rows] == [f"n{k}" for k in range(10)]
    assert [row["label"] for row in rows] == [("no", "yes")[k] for k in outputs.argmax(1)]
    assert {row["status"] for row in rows} == set(facts["statuses"])
    # the residual of the graph is the largest of its nodes
    largest = max(float(row["residual"]) for row in rows)
    assert largest == pytest.approx(facts["residual"], rel=1e-4)


def test_labels_of_other_tables_get_the_classes_the_run_knows(say: Say, tmp_path: Path) -> None:
    run = train(
        say, tmp_path, *tables(tmp_path / "a", ["no", "yes"]), "--mask-seed", 0, model="gcn"
    )
    # only one of the two words occurs, and it is the second class, not the first
    other = tables(tmp_path / "b", ["yes"], 10, 4)
    code, facts, err = say("evaluate", run, *other, "--mask-seed", 0, "--part", "all", "--json")
    assert code == 0, err
    right = sum(
        part["scored"] * part["metrics"]["accuracy"]
        for part in facts["results"][0]["splits"].values()
    )
    code, said, _ = say("predict", run, *other, "--json")
    assert said["statuses"] == {"feed-forward": 1}
    expected = said["labels"].get("yes", 0)
    assert right == pytest.approx(expected if right <= 10 else 100 * expected)
    code, _, err = say("evaluate", run, *tables(tmp_path / "c", ["yes", "maybe"]), "--mask-seed", 0)
    assert code == 1
    assert "label 'maybe' is none of the classes 'no', 'yes'" in err


def test_regression_answers_in_the_units_of_the_file(say: Say, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", **ring(y=1000.0 + rng.normal(size=24)))
    run = train(say, tmp_path, "--npz", tmp_path / "a.npz", "--mask-seed", 0, "--epochs", 30)
    out = tmp_path / "o.npz"
    assert say("predict", run, "--npz", tmp_path / "a.npz", "--out", out)[0] == 0
    assert np.load(out)["outputs"].mean() > 100  # not in units of the mean
    assert "labels" not in np.load(out)


def test_several_graphs_with_a_class_each(say: Say, tmp_path: Path) -> None:
    graphs = 12
    node = np.arange(4 * graphs)
    one = np.stack([node, node // 4 * 4 + (node + 1) % 4])
    x = np.random.default_rng(0).normal(size=(len(node), 2))
    file = tmp_path / "graphs.npz"
    np.savez(file, x=x, edge_index=one, y=np.arange(graphs) % 2, batch=node // 4)
    run = train(say, tmp_path, "--npz", file, "--mask-seed", 0)
    assert read_record(run).task.kind == "graph classification"
    out = tmp_path / "o.csv"
    _, facts, _ = say("predict", run, "--npz", file, "--out", out, "--json")
    assert facts["graphs"] == graphs
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == graphs
    assert {"graph", "status", "residual", "steps", "label", "output0"} <= set(rows[0])


def test_predict_on_the_runs_own_task(say: Say, tmp_path: Path) -> None:
    task = ["--task", "community", "--level", 3, "--task-set", "nodes=30", "--task-set", "k=3"]
    run = train(say, tmp_path, *task)
    code, facts, _ = say("predict", run, "--part", "test", "--json")
    assert code == 0
    assert facts["graphs"] == 3


def test_splits_by_name_reach_the_task(say: Say, tmp_path: Path) -> None:
    for words, message in (
        (["--task", "cora", "--split", "public"], "not in the data folder"),
        (["--task", "cora", "--split", "12"], "0 to 9"),
        (["--task", "texas", "--split", "public"], "split"),
        (["--task", "community", "--split", "3"], "has no option 'split'"),
    ):
        code, _, err = say("train", *words, "--model", "gcn", "--root", tmp_path)
        assert message in err, words
        assert code == (1 if "data folder" in message else 2)


def test_a_data_folder_that_is_not_there_is_wrong_usage_unless_it_is_to_be_filled(
    say: Say, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    for words in (["train", "--task", "cora", "--model", "gcn"], ["tasks", "show", "cora"]):
        code, _, err = say(*words, "--root", absent)
        assert code == 2
        assert err.count("\n") == 1
        assert "--root" in err
        assert "nothing of that name" in err
    assert DataChoice(root=str(absent), download=True) == data_choice(
        argparse.Namespace(
            **dict.fromkeys(("npz", "nodes", "edges", "mask_seed", "task_split")),
            undirected=False,
            download=True,
            root=str(absent),
        )
    )


def test_names_of_parts_and_of_splits(say: Say, archive: Path, tmp_path: Path) -> None:
    masks = {
        f"{part}_mask": np.stack([np.arange(24) % 3 == k, np.arange(24) % 3 == (k + 1) % 3], 1)
        for k, part in enumerate(("train", "val", "test"))
    }
    np.savez(archive, **ring(**masks))
    run = train(say, tmp_path, "--npz", archive, "--split", 1)
    digests = set()
    for words in ([], ["--split", "1", "--split", "validation"], ["--split", "0"]):
        code, found, err = say("evaluate", run, "--npz", archive, *words, "--json")
        assert code == 0, err
        (result,) = found["results"]
        digests.add(result["task"]["digest"])
        assert list(result["splits"]) == ["validation" if "validation" in words else "test"]
    assert len(digests) == 2
    assert say("evaluate", run, "--npz", archive, "--split", "7")[0] == 2


def test_the_data_folder_is_for_one_command(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.delenv("SHEAFDEQ_DATA", raising=False)
    _, _, err = say("tasks", "show", "texas", "--root", tmp_path)
    assert str(tmp_path) in err
    assert "SHEAFDEQ_DATA" not in os.environ


def test_a_record_of_a_file_is_sealed_like_any_other(
    say: Say, archive: Path, tmp_path: Path
) -> None:
    run = train(say, tmp_path, "--npz", archive, "--mask-seed", 1, "--task", "ring")
    assert read_sealed(run / "record.json")["task"]["name"] == "ring"
    _, found, _ = say("runs", tmp_path / "runs", "--json")
    (row,) = found["runs"]
    assert row["files"] == ["mine.npz"]
    assert row["name"].startswith("ring-sheafdeq-seed42-")
