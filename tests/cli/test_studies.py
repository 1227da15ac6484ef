"""diagnose, async and figures on miniature runs: from training to pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sheafdeq.cli import build_parser, main
from sheafdeq.cli.choice import Choice
from sheafdeq.cli.figures import KINDS
from sheafdeq.cli.subject import choose, load_subject, one_graph
from sheafdeq.data import load_task
from sheafdeq.errors import UsageError
from sheafdeq.records import read_record, read_sealed
from sheafdeq.report.figures import draw_all, read_sources, write_drawings

TASK = {
    "name": "community",
    "level": 7,
    "options": {"nodes": 30, "k": 3, "train_seeds": [42], "test_seeds": [100, 101]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sheafdeq.training import TrainingConfig, train

    root = tmp_path_factory.mktemp("runs")
    for model in ("sheafdeq", "loop-transformer"):
        for seed in (42, 43):
            config = {
                "task": TASK,
                "model": {"name": model},
                "seed": seed,
                "max_epochs": 2,
                "test_every": 1,
            }
            train(TrainingConfig.model_validate(config), out=root)
    return root


def test_from_runs_to_figures(store: Path, tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "figures"
    sizes = ("--samples", "2", "--work", "3", "--iterations", "22")
    places = ("--results", str(results), "--figures", str(out))
    assert main(["studies", str(store), "--threshold", "0", *sizes, *places]) == 0
    diagnosed = {
        p["model"]["name"]: p
        for p in map(read_sealed, sorted((results / "diagnostics").glob("*.json")))
    }
    assert {name: record["seed"] for name, record in diagnosed.items()} == {
        "loop-transformer": 42,
        "sheafdeq": 42,
    }
    assert diagnosed["loop-transformer"]["continued"]["update_of"] == "outputs"
    assert len(diagnosed["sheafdeq"]["continued"]["trajectories"]) == 6
    assert diagnosed["sheafdeq"]["spectrum"]["kind"] == "estimate"
    studied = [read_sealed(path) for path in sorted((results / "async").glob("*.json"))]
    assert sorted({(r["model"]["name"], r["study"]) for r in studied}) == [
        (name, study)
        for name in ("loop-transformer", "sheafdeq")
        for study in ("faults", "schedules", "tau-sweep")
    ]
    for record in studied:
        assert record["simulation"].startswith(
            "exact" if record["model"]["name"] == "sheafdeq" else "approximate"
        )
        assert record["reference"]["kind"] == (
            "converged" if record["model"]["name"] == "sheafdeq" else "finite:20"
        )
        assert all(condition["violations"] == 0 for condition in record["conditions"])
        labels = [condition["label"] for condition in record["conditions"]]
        assert len(set(labels)) == len(labels)
        # the recorded command can be run
        assert build_parser().parse_args(record["command"].split()[1:]).work == 3
    names = {path.stem for path in out.glob("*.json")}
    kinds = {name.split("-community")[0] for name in names}
    assert kinds == set(KINDS) - {"frontier"}  # which draws certificates
    for name in names:
        assert (out / f"{name}.png").stat().st_size > 1000
        facts = json.loads((out / f"{name}.json").read_text())
        assert facts["command"].startswith("sheafdeq figures")
        assert facts["records"]
        assert all(len(record["sha256"]) == 64 and record["run"] for record in facts["records"])
    assert {path.suffix for path in out.iterdir()} == {".png", ".json"}
    # The same records give the same picture, byte for byte.
    again = draw_all(read_sources(results), only=["faults"])
    for path in write_drawings(again, tmp_path / "again", "sheafdeq figures"):
        assert path.read_bytes() == (out / path.name).read_bytes()


def test_one_run_in_words(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(
        p.parent
        for p in sorted(store.glob("*/record.json"))
        if read_record(p).model.name == "sheafdeq"
    )
    assert main(["diagnose", str(path), "--iterations", "22", "--graph", "1", "--double"]) == 0
    text = capsys.readouterr().out
    assert "spectral radius" in text
    assert "estimate" in text
    assert "test[1]" in text
    assert (
        main(
            [
                "async",
                str(path),
                "--schedules",
                "2,1",
                "--samples",
                "2",
                "--work",
                "5",
                "--reference",
                "paper",
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "finite:420" in text
    assert "(2, 1)" in text
    warm = [
        "async",
        str(path),
        "--schedules",
        "2,1",
        "--samples",
        "1",
        "--work",
        "1",
        "--reference",
        "finite:30",
        "--json",
    ]
    ends = []
    for steps in ("0", "30"):
        assert main([*warm, "--warm", steps]) == 0
        ends.append(json.loads(capsys.readouterr().out)["results"][0])
    assert [end["study"] for end in ends] == ["schedules", "warm"]
    # one update from the state after 30 iterations is nearer to where they lead than one update
    # from the start
    assert ends[1]["conditions"][0]["d_out"]["median"] < ends[0]["conditions"][0]["d_out"]["median"]


def test_wrong_usage_is_told(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["async", str(store), "--threshold", "0", "--schedules", "five"]) == 2
    assert "S,TAU" in capsys.readouterr().err
    assert main(["async", str(store), "--faults", "--tau-sweep"]) == 2
    assert main(["async", str(store), "--threshold", "0", "--faults", "--warm", "3"]) == 2
    assert main(["async", str(store), "--threshold", "0", "--warm", "-1"]) == 2
    assert main(["diagnose", str(tmp_path / "nowhere")]) == 2
    assert main(["diagnose", str(store), "--threshold", "101"]) == 1
    assert "none of 4 runs" in capsys.readouterr().err
    assert main(["diagnose", str(store), "--threshold", "0", "--label", "mine"]) == 2
    assert main(["figures", "--results", str(tmp_path)]) == 1
    assert "no records" in capsys.readouterr().err


def test_an_altered_record_draws_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "diagnostics"
    path = next(
        p.parent
        for p in sorted(store.glob("*/record.json"))
        if read_record(p).model.name == "sheafdeq"
    )
    assert (
        main(["diagnose", str(path), "--iterations", "3", "--no-spectrum", "--out", str(folder)])
        == 0
    )
    (record,) = folder.glob("*.json")
    assert read_sealed(record)["schema"] == "sheafdeq.diagnostics/1"
    record.write_bytes(record.read_bytes().replace(b'"seed":4', b'"seed":5'))
    assert main(["figures", "--results", str(tmp_path), "--out", str(tmp_path / "figures")]) == 1
    assert "SHA-256" in capsys.readouterr().err


def test_the_papers_rule_takes_the_lowest_seed_above_the_threshold(store: Path) -> None:
    candidates = [(p.parent, read_record(p)) for p in sorted(store.glob("*/record.json"))]
    raised = [
        (
            path,
            record.model_copy(
                update={
                    "scores": {**record.scores, "validation": 90.0 if record.seed == 43 else 79.9}
                }
            ),
        )
        for path, record in candidates
    ]
    chosen = choose(raised, 80.0, Choice(level=7))
    assert [read_record(path).seed for path in chosen] == [43, 43]
    assert choose(raised, 80.0, Choice(level=10)) == []
    # the score does not matter for what is named
    named = choose(raised, 80.0, Choice(checkpoints=(("sheafdeq", 42),)))
    assert [(read_record(path).model.name, read_record(path).seed) for path in named] == [
        ("sheafdeq", 42)
    ]


def test_runs_are_chosen_by_seed_model_option_protocol_and_inputs(
    store: Path, tmp_path: Path, capsys
) -> None:
    records = [read_record(p) for p in sorted(store.glob("*/record.json"))]

    def accepted(**fields: object) -> set[tuple[str, int]]:
        return {(r.model.name, r.seed) for r in records if Choice(**fields).accepts(r)}

    assert len(accepted()) == 4
    assert accepted(seeds=(43,), models=("sheafdeq",)) == {("sheafdeq", 43)}
    assert accepted(options={"shift": 1.3}) == {("sheafdeq", 42), ("sheafdeq", 43)}
    assert accepted(options={"shift": 1.2}) == set()
    assert accepted(protocol="paper") == set()
    assert len(accepted(protocol="max_epochs=2")) == 4
    assert len(accepted(inputs="none")) == 4
    assert accepted(inputs="difference") == set()
    (tmp_path / "results").mkdir()
    words = [
        "--results",
        str(tmp_path / "results"),
        "--runs",
        str(store),
        "--out",
        str(tmp_path / "figures"),
        "--json",
    ]
    for extra, count in ((["--run-seeds", "42"], 0), (["--models", "sheafdeq"], 1), ([], 2)):
        assert main(["figures", *words, "--only", "training", *extra]) == 0
        assert len(json.loads(capsys.readouterr().out)["figures"]) == count
    assert main(["figures", *words, "--protocol", "paper"]) == 1
    assert main(["diagnose", str(store), "--threshold", "0", "--checkpoints", "sheafdeq"]) == 2
    assert "MODEL:SEED" in capsys.readouterr().err
    assert (
        main(
            ["diagnose", str(store), "--threshold", "0", "--checkpoints", "sheafdeq:42", "ignn:42"]
        )
        == 1
    )
    assert "no run of ignn:42" in capsys.readouterr().err


def test_the_papers_three_checkpoints_in_one_command(tmp_path: Path, monkeypatch, capsys) -> None:
    """Runs of the paper's protocol are long; here the protocol's length is two epochs."""
    from sheafdeq.report import selection
    from sheafdeq.training import TrainingConfig, train

    monkeypatch.setitem(selection.PAPER_PROTOCOL, "max_epochs", 2)
    small = {"nodes": 30, "k": 3, "train_seeds": [42], "test_seeds": [100]}
    wanted = [
        ("sheafdeq", 43, 7, 1.3),
        ("sheafdeq-no-norm", 43, 7, 1.3),
        ("loop-transformer", 42, 7, None),
        ("sheafdeq", 42, 7, 1.3),
    ]
    wanted += [("sheafdeq", seed, 3, 1.2) for seed in (42, 43)]
    for model, seed, level, shift in wanted:
        options = {} if shift is None else {"shift": shift}
        config = {
            "task": {"name": "community", "level": level, "options": small},
            "model": {"name": model, "options": options},
        }
        train(
            TrainingConfig.parse({**config, "seed": seed, "max_epochs": 2, "test_every": 1}),
            out=tmp_path / "runs",
        )
    places = ["--results", str(tmp_path / "results"), "--figures", str(tmp_path / "figures")]
    sizes = ["--samples", "2", "--work", "3", "--iterations", "22"]
    assert main(["studies", str(tmp_path / "runs"), "--paper", *sizes, *places]) == 0
    diagnosed = [
        read_sealed(path) for path in sorted((tmp_path / "results" / "diagnostics").glob("*.json"))
    ]
    assert {(d["model"]["name"], d["seed"], d["protocol"]) for d in diagnosed} == {
        (m, s, "paper") for m, s, _, _ in wanted[:3]
    }
    names = {path.stem for path in (tmp_path / "figures").glob("*.json")}
    assert names == {
        "continued-community-level-7",
        "continued-full-community-level-7",
        "settling-community-level-7",
        "async-community-level-7",
        "training-community-level-3-sheafdeq",
    }
    facts = json.loads(
        (tmp_path / "figures" / "training-community-level-3-sheafdeq.json").read_text()
    )
    assert "--option shift=1.2" in facts["command"]
    assert main(["studies", str(tmp_path / "runs"), "--paper", "--level", "3", *places]) == 2


def test_one_graph_is_cut_out_exactly(store: Path) -> None:
    path = next(
        p.parent
        for p in sorted(store.glob("*/record.json"))
        if read_record(p).model.name == "sheafdeq"
    )
    whole, second = load_subject(path), load_subject(path, graph="1")
    both = whole.model.run(whole.split.graph).logits
    alone = second.model.run(second.split.graph).logits
    assert second.split.graph.num_nodes == 30
    # ten roundings of outputs of this size: sums run over another number of rows
    assert (both[30:] - alone).abs().max() < 1e-6 * both.abs().max()
    with pytest.raises(UsageError, match="0 to 1"):
        one_graph(whole.split, whole.task.objective, "2")


def test_one_graph_of_a_task_with_edge_targets_keeps_its_own_distances() -> None:
    task = load_task("coordinates", graphs=20)
    part = one_graph(task.test, task.objective, "1")
    positions = torch.rand(part.graph.num_nodes, 2, generator=torch.Generator().manual_seed(0))
    source, target = part.graph.edge_index
    lengths = (positions[source] - positions[target]).norm(dim=1)
    assert (part.graph.num_graphs, part.graph.num_nodes) == (1, 20)
    assert torch.equal(part.target, part.graph.edge_attr[:, 0])
    torch.testing.assert_close(
        task.objective.loss(positions, part), (lengths - part.target).square().mean()
    )
