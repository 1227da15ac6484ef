"""``sheafdeq evaluate``: a checkpoint on its task, on other graphs, on your own files, and on what
it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sheafdeq.cli import main
from sheafdeq.cli.evaluate import GRAPHS
from sheafdeq.data import Graph, load_task
from sheafdeq.errors import IncompatibleError
from sheafdeq.evaluation import evaluate_checkpoint, load
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.records import EvaluationRecord, read_record, read_sealed, seal
from sheafdeq.training import TrainingConfig, train
from sheafdeq.training.loop import Trainer, judged

SMALL = {"nodes": 30, "k": 3, "train_seeds": [1], "test_seeds": [2, 3]}
TASK = {"name": "community", "level": 7, "options": SMALL}
CASCADE = {
    "name": "sheaf-cascade",
    "options": {"levels": 2, "level_steps": 1, "channels": 2, "hidden": 4, "edge_hidden": 4},
}


def stored(root: Path, model: object, task: object = TASK, **changes: object) -> Path:
    config = TrainingConfig.parse({"task": task, "model": model, "max_epochs": 2, **changes})
    result = train(config, out=root)
    assert result.path is not None
    return result.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {
        "sheafdeq": stored(root, "sheafdeq"),
        "cascade": stored(root, CASCADE),
        "mlp": stored(root, "mlp"),
        "differences": stored(
            root, "sheafdeq", {**TASK, "options": {**SMALL, "edge_inputs": "difference"}}
        ),
        "counting": stored(root, "ignn", {"name": "counting", "options": {"chains": 5}}),
    }


def judge(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main(["evaluate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["results"][0]


@pytest.mark.parametrize("name", ["sheafdeq", "cascade", "mlp", "differences", "counting"])
def test_its_own_task_gives_the_recorded_scores(runs, name, capsys):
    result = judge(capsys, runs[name], "--split", "all")
    record = read_record(runs[name])
    assert {split: part["score"] for split, part in result["splits"].items()} == pytest.approx(
        record.scores, rel=1e-6
    )
    assert result["run"] == record.id
    assert result["task"]["digest"] == record.task.digest
    assert (result["solves"] is None) == (name == "mlp")
    if name in ("sheafdeq", "differences"):
        assert result["solves"]["mode"] == "trained horizon"
        assert result["solves"]["steps"] == 20


def test_a_guaranteed_model_is_judged_at_rest(runs, capsys):
    result = judge(capsys, runs["cascade"])
    assert result["solves"]["mode"] == "equilibrium"
    assert result["solves"]["statuses"] == {"converged": 2}
    assert 0 < result["solves"]["residual"] <= 1e-6
    assert result["solves"]["steps"] > 2  # it was trained with one step a level
    facts = read_record(runs["cascade"]).solves
    assert facts is not None
    assert facts.at_equilibrium
    assert facts.to_tolerance
    assert facts.final == {"converged": 3}
    assert not read_record(runs["sheafdeq"]).solves.at_equilibrium


def test_what_is_judged_is_the_equilibrium_itself(runs):
    """One more step of the joint map changes nothing, for the cascade and for a single strong
    layer."""
    graph = load_task(**{**SMALL, "name": "community", "level": 7}).test.graph
    torch.manual_seed(1)
    for model in (
        load(runs["cascade"]).model,
        StrongSheafDEQ(2, 3, channels=4, hidden=4, steps=2).eval(),
    ):
        with torch.no_grad():
            output = judged(model, graph)
            context = model.prepare(graph)
            again = model.step(output.solution.value, context)
            torch.testing.assert_close(again, output.solution.value, rtol=3e-6, atol=0)
            # too few steps
            assert not torch.allclose(model.run(graph).logits, output.logits, rtol=1e-6, atol=0)


def test_a_step_limit_is_told(runs):
    graph = load_task(**{**SMALL, "name": "community", "level": 7}).test.graph
    output = load(runs["cascade"]).model.run_to_equilibrium(graph, steps=2)
    assert not output.solution.converged


def test_fresh_graphs_are_other_graphs(runs, capsys):
    fresh = judge(capsys, runs["sheafdeq"], "--fresh")
    by_hand = judge(
        capsys, runs["sheafdeq"], "--task-set", f"test_seeds={json.dumps(GRAPHS['fresh'])}"
    )
    other = judge(capsys, runs["sheafdeq"], "--validation-graphs")
    assert fresh["task"]["options"]["test_seeds"] == list(range(1000, 1010))
    assert other["task"]["options"]["test_seeds"] == list(range(200, 206))
    assert fresh["splits"]["test"]["graphs"] == 10
    assert fresh["splits"] == by_hand["splits"]
    assert (fresh["label"], other["label"], by_hand["label"]) == ("fresh", "validation-graphs", "")
    assert fresh["task"]["digest"] not in (other["task"]["digest"], fresh["task"]["trained_on"])


def test_another_level(runs, capsys):
    assert judge(capsys, runs["sheafdeq"], "--level", 3)["task"]["level"] == 3


def test_regression_keeps_the_units_it_was_trained_in(runs, capsys):
    """The mean target of other chains is another number; the answers must not be multiplied by
    it."""
    checkpoint = load(runs["counting"])
    other = load_task("counting", chains=8)
    raw = (
        checkpoint.model.run(other.test.graph).logits.detach()
        * load_task("counting", chains=5).output_scale
    )
    expected = other.metrics(raw / other.output_scale, other.test)
    result = judge(capsys, runs["counting"], "--task-set", "chains=8")
    assert result["splits"]["test"]["metrics"] == pytest.approx(expected, rel=1e-5)
    unscaled = other.metrics(checkpoint.model.run(other.test.graph).logits.detach(), other.test)
    assert unscaled != pytest.approx(expected, rel=1e-3)


def own_graph(path: Path, width: int = 2, classes: int = 3) -> Path:
    n = 12
    rng = np.random.default_rng(0)
    edges = np.array([[i, (i + 1) % n] for i in range(n)]).T
    masks = {
        f"{part}_mask": np.arange(n) % 3 == k for k, part in enumerate(("train", "val", "test"))
    }
    file = path / f"own-{width}-{classes}.npz"
    np.savez(
        file,
        x=rng.normal(size=(n, width)).astype(np.float32),
        edge_index=edges,
        y=np.arange(n) % classes,
        **masks,
    )
    return file


def test_your_own_files(runs, tmp_path, capsys):
    result = judge(capsys, runs["cascade"], "--npz", own_graph(tmp_path), "--split", "all")
    assert result["splits"]["test"]["scored"] == 4
    assert result["label"] == "own"
    (tmp_path / "nodes.csv").write_text(
        "node,a,b,label,split\n0,0.1,0.2,x,train\n1,1,2,y,validation\n2,0,1,z,test\n"
    )
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n1,2\n")
    words = ["--nodes", tmp_path / "nodes.csv", "--edges", tmp_path / "edges.csv", "--undirected"]
    assert judge(capsys, runs["sheafdeq"], *words)["splits"]["test"]["scored"] == 1


def test_a_record_is_written_once_and_read_back(runs, tmp_path, capsys):
    out = tmp_path / "evaluations"
    assert main(["evaluate", str(runs["sheafdeq"]), "--fresh", "--out", str(out)]) == 0
    (file,) = out.glob("*-fresh.eval.json")
    record = EvaluationRecord.parse(read_sealed(file), str(file))
    assert record.run == read_record(runs["sheafdeq"]).id
    assert record.command == f"sheafdeq evaluate RUN-{record.run[:8]} --fresh"
    before = file.stat().st_mtime_ns
    capsys.readouterr()
    assert main(["evaluate", str(runs["sheafdeq"]), "--fresh", "--out", str(out)]) == 0
    assert file.stat().st_mtime_ns == before
    assert "found" in capsys.readouterr().err
    assert seal(record.payload()) == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("sheafdeq", ["--task", "counting"], "has 2 node features, counting has 1"),
        ("differences", ["--task-set", "edge_inputs=none"], "needs edge_attr of width 5"),
        ("sheafdeq", ["--task-set", "edge_inputs=difference"], "edge features of width 5"),
        ("counting", ["--task", "community"], "node features"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(runs, name, words, message, capsys):
    assert main(["evaluate", str(runs[name]), *words]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert read_record(runs[name]).id[:8] in told


def test_other_widths_and_kinds_of_own_files_are_refused(runs, tmp_path):
    from sheafdeq.data import task_from, task_from_npz

    checkpoint = load(runs["sheafdeq"])
    for file, message in (
        (own_graph(tmp_path, width=4), "node features"),
        (own_graph(tmp_path, classes=2), "outputs"),
    ):
        with pytest.raises(IncompatibleError, match=message):
            evaluate_checkpoint(checkpoint, task_from_npz(file), command="")
    data = Graph.build(torch.randn(6, 2), torch.tensor([[0, 1], [1, 2]]))
    from torch_geometric.data import Data

    masks = {
        f"{part}_mask": torch.arange(6) % 3 == k for k, part in enumerate(("train", "val", "test"))
    }
    regression = task_from(Data(x=data.x, edge_index=data.edge_index, y=torch.randn(6, 3), **masks))
    with pytest.raises(IncompatibleError, match="trained for accuracy"):
        evaluate_checkpoint(checkpoint, regression, command="")


def test_a_folder_names_and_counts_what_it_leaves_out(runs, tmp_path, capsys):
    import shutil

    folder = tmp_path / "runs"
    for name in ("sheafdeq", "mlp", "counting"):
        shutil.copytree(runs[name], folder / name)
    damaged = folder / "sheafdeq" / "record.json"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    assert main(["evaluate", str(folder), "--fresh", "--json"]) == 1
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    # counting has no graph seeds to draw
    assert [result["model"]["name"] for result in answer["results"]] == ["mlp"]
    assert len(answer["excluded"]) == 1
    assert "truncated or altered" in answer["excluded"][0]["error"]
    assert main(["evaluate", str(folder), "--model", "mlp", "--json"]) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--fresh", "--validation-graphs"],
        ["--npz", "a.npz", "--level", "3"],
        ["--nodes", "a.csv"],
        ["--seed", "3"],
        ["--npz", "a.npz", "--nodes", "a.csv", "--edges", "b.csv"],
    ],
)
def test_options_that_contradict_each_other(runs, words):
    assert main(["evaluate", str(runs["sheafdeq"]), *words]) == 2


def test_no_such_run(tmp_path):
    assert main(["evaluate", str(tmp_path / "nothing")]) == 2
    assert main(["evaluate", str(tmp_path)]) == 2


def test_training_ends_at_the_equilibrium():
    config = TrainingConfig.parse({"task": TASK, "model": CASCADE, "max_epochs": 1})
    trainer = Trainer(config, load_task(**{**SMALL, "name": "community", "level": 7}))
    while trainer.stopped is None:
        trainer.advance()
    evaluation = trainer.finish()
    assert evaluation.statuses == {"converged": 3}
    assert evaluation.residual <= 1e-6
