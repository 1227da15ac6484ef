"""``sheafdeq infer`` on a miniature run: outputs, record, figure, and named errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafdeq.cli import main
from sheafdeq.cli.subject import load_subject
from sheafdeq.records import read_sealed

TASK = {
    "name": "community",
    "level": 7,
    "options": {"nodes": 30, "k": 3, "train_seeds": [42], "test_seeds": [100, 101]},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from sheafdeq.training import TrainingConfig, train

    root, found = tmp_path_factory.mktemp("runs"), {}
    for model in ("ignn", "energygnn", "mlp"):
        config = {"task": TASK, "model": {"name": model}, "seed": 42, "max_epochs": 2}
        path = train(TrainingConfig.model_validate(config), out=root).path
        assert path is not None
        found[model] = path
    return found


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_outputs_record_and_figure(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    pytest.importorskip("matplotlib")
    arguments = [
        "infer",
        str(runs["ignn"]),
        "--parts",
        "3",
        "--mode",
        mode,
        "--engine",
        "in-process",
        "--tolerance",
        "1e-5",
    ]
    outputs, figure = tmp_path / "o.npz", tmp_path / "f.png"
    assert (
        main(
            [
                *arguments,
                "--json",
                "--output",
                str(outputs),
                "--out",
                str(tmp_path / "r"),
                "--figure",
                str(figure),
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    (stored,) = (tmp_path / "r").glob("*.json")
    assert read_sealed(stored)["command"] == printed["command"]
    assert printed["solve"]["status"] == "converged"
    assert len(printed["parts"]) == 3
    assert printed["bound"]["rate"] < 1
    assert 0 < printed["bound"]["distance_at_most"][0] < 1e-2
    assert figure.stat().st_size > 1000
    subject = load_subject(runs["ignn"])
    with torch.no_grad():
        whole = subject.model.run(subject.split.graph, steps=500).logits
    np.testing.assert_allclose(np.load(outputs)["outputs"], whole.numpy(), atol=1e-3)
    assert main([*arguments, "--output", str(tmp_path / "o.csv")]) == 0
    assert "distance to the equilibrium: at most" in capsys.readouterr().out
    with open(tmp_path / "o.csv") as stream:
        rows = list(csv.reader(stream))
    assert rows[0][0] == "node"
    assert len(rows) == 1 + len(whole)


def test_a_graph_of_ones_own_and_an_assignment(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    edges = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    np.savez(tmp_path / "g.npz", x=x, edge_index=edges)
    (tmp_path / "n.csv").write_text(
        "node,a,b\n" + "".join(f"v{k},{row[0]},{row[1]}\n" for k, row in enumerate(x))
    )
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"v{u},v{v}\n" for u, v in edges.T))
    (tmp_path / "parts.txt").write_text("0 0 1 1 2 2")
    found = []
    for graph in (
        ["--npz", str(tmp_path / "g.npz")],
        ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv")],
    ):
        arguments = [
            *graph,
            "--undirected",
            "--assignment",
            str(tmp_path / "parts.txt"),
            "--engine",
            "in-process",
        ]
        assert (
            main(
                [
                    "infer",
                    str(runs["ignn"]),
                    *arguments,
                    "--output",
                    str(tmp_path / "o.npz"),
                    "--json",
                ]
            )
            == 0
        )
        record = json.loads(capsys.readouterr().out)
        assert record["score"] is None
        assert record["nodes"] == 6
        assert record["partition"] == "given"
        found.append(np.load(tmp_path / "o.npz")["outputs"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_a_horizon_is_enough_and_no_convergence_is_a_failure(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["infer", str(runs["ignn"]), "--engine", "in-process", "--no-bound", "--json"]
    assert main([*arguments, "--horizon", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["solve"]["status"] == "maximum-steps"
    assert main([*arguments, "--steps", "3"]) == 1
    assert json.loads(capsys.readouterr().out)["solve"]["steps"] == 3


def test_mistakes_are_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["ignn"])
    (tmp_path / "short.txt").write_text("0 1")
    (tmp_path / "word.txt").write_text("zero")
    np.savez(tmp_path / "empty.npz", y=np.zeros(3))
    cases = [
        ([run, "--parts", "1000"], 1, "at most 60"),
        ([run, "--parts", "0"], 2, "whole number from 1"),
        ([run, "--assignment", str(tmp_path / "short.txt")], 1, "each of the 60 nodes"),
        ([run, "--assignment", str(tmp_path / "word.txt")], 1, "one part number a line"),
        ([run, "--output", "o.txt"], 2, ".npz or .csv"),
        ([run, "--npz", "a.npz", "--nodes", "n.csv", "--edges", "e.csv"], 2, "not both"),
        ([run, "--nodes", "n.csv"], 2, "belong together"),
        ([run, "--npz", str(tmp_path / "empty.npz")], 1, "no array 'x'"),
        ([run, "--ray-address", "h:1"], 2, "--engine ray"),
        ([run, "--slow", "fast"], 2, "PART=FACTOR"),
        ([run, "--mode", "async", "--horizon", "3"], 2, "--horizon"),
        ([str(runs["energygnn"])], 1, "no local_step"),
        ([str(runs["mlp"])], 1, "feed-forward"),
        ([str(tmp_path / "nothing")], 2, "nothing"),
    ]
    for arguments, code, words in cases:
        assert main(["infer", *arguments]) == code, arguments
        assert words in capsys.readouterr().err
