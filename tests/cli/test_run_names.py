"""Runs by the beginning of their id and by name, in every command that takes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sheafdeq.cli import build_parser, main
from sheafdeq.cli.run_names import run_name, runs_matching, shortest
from sheafdeq.records import read_record

TASK = ["--task", "community", "--level", "7", "--task-set", "nodes=30", "--task-set", "k=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs in ``runs``."""
    root = tmp_path_factory.mktemp("place")
    for model, seed in (("appnp", 1), ("appnp", 2), ("gcn", 1)):
        words = [
            "--model",
            model,
            "--seed",
            str(seed),
            "--epochs",
            "1",
            "--out",
            str(root / "runs"),
        ]
        assert main(["train", *TASK, *words, "--json"]) == 0
    return root


@pytest.fixture
def ids(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(folder)
    return [path.name for path in runs_matching("")]


def begin(ids: list[str], wanted: str) -> str:
    return wanted[: shortest(ids, 4)]


def test_a_beginning_stands_for_the_run(
    ids: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recurrent = [i for i in ids if read_record(folder / "runs" / i).model.name == "appnp"]
    word = begin(ids, recurrent[0])
    small = ["--iterations", "2"]
    for words in (
        ["evaluate", word, "--json"],
        ["predict", word, "--json"],
        ["infer", word, "--engine", "in-process", "--json"],
        ["certify", word, "--effort", "quick", "--json"],
        ["certify", word, "--predictions", "--json"],
        ["diagnose", word, *small, "--no-spectrum", "--json"],
        ["async", word, "--samples", "1", "--work", "2", "--schedules", "1,1", "--json"],
        ["explore", word, *small, "--out", "page.html"],
        ["report", "runs", "--explore", word, *small, "--out", "site", "--json"],
        ["train", *TASK, "--model", "appnp", "--init-from", word, "--epochs", "0", "--json"],
        [
            *["settle", word, "--out", "settled", "--json"],
            *["--stage", "epochs=1,learning_rate=0.001,residual_weight=1"],
        ],
    ):
        assert main(words) == 0, (words, capsys.readouterr().err)
        out = capsys.readouterr().out
        assert recurrent[0] in out or words[0] in ("explore", "report", "train", "settle")


def test_store_and_name(ids: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(folder / "runs" / ids[0])
    name = run_name("community", 7, record.model.name, record.seed, record.id)
    (folder / "elsewhere").mkdir(exist_ok=True)
    for word in (
        f"runs/{begin(ids, ids[0])}",
        f"{folder}/runs/{begin(ids, ids[0])}",
        name,
        f"RUN-{ids[0][:8]}",
        ids[0],
    ):
        assert main(["evaluate", word, "--json"]) == 0, capsys.readouterr().err
        assert json.loads(capsys.readouterr().out)["results"][0]["run"] == ids[0]
    assert main(["evaluate", f"elsewhere/{ids[0][:8]}"]) == 2


def test_unknown_and_ambiguous_words_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        run = tmp_path / "runs" / f"abc{number}{'0' * 60}"
        run.mkdir(parents=True)
        (run / "record.json").write_text("{}")
    for command, tail in (
        ("evaluate", []),
        ("predict", []),
        ("infer", []),
        ("certify", []),
        ("diagnose", []),
        ("async", []),
        ("explore", []),
        ("studies", []),
        ("settle", ["--out", "x"]),
        ("report", ["--explore", "abc"]),
    ):
        words = [command, *([] if command == "report" else ["abc"]), *tail]
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert "9 runs begin with 'abc': abc0, abc1" in said
        assert "3 more" in said
        words = ["ffff" if word == "abc" else word for word in words]
        assert main(words) == 2, words
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert "ffff" in said


def test_every_command_that_takes_a_run_resolves_it() -> None:
    """No command can have an argument RUN that only knows directories."""
    import argparse

    for action in build_parser()._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, command in action.choices.items():
            resolved = command.get_default("run_arguments") or {}
            for argument in command._actions:
                if argument.metavar in ("RUN", "RUN|MODEL") and name != "report":
                    assert argument.dest in resolved, (name, argument.dest)
    # the report takes folders of runs, which are paths


def test_runs_lists_and_filters(
    ids: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*words: str) -> list[dict]:
        assert main(["runs", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["runs"]

    assert {row["id"] for row in listed()} == set(ids)
    assert {row["id"] for row in listed("runs")} == set(ids)
    assert [row["seed"] for row in listed("--model", "appnp")] == [1, 2]
    assert [row["model"] for row in listed("--seed", "1")] == ["appnp", "gcn"]
    assert listed("--task", "sums") == []
    assert len(listed("--task", "community", "--level", "7")) == 3
    assert len(listed("--protocol", "max_epochs=1")) == 3
    assert listed("--protocol", "paper") == []
    best = max(row["validation"] for row in listed())
    assert next(row["validation"] for row in listed("--above", str(best))) == best
    assert listed("--above", "101") == []
    scores = [row["test"] for row in listed("--sort", "test")]
    assert scores == sorted(scores, reverse=True)
    assert main(["runs", "--wide"]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in listed())
    assert main(["runs", "nowhere"]) == 2


def test_a_damaged_record_is_named_and_the_others_are_listed(
    ids: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(folder / "runs", tmp_path / "runs")
    record = tmp_path / "runs" / ids[0] / "record.json"
    record.write_bytes(record.read_bytes()[:-40])
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 1
    out, err = capsys.readouterr()
    assert len(json.loads(out)["runs"]) == 2
    assert ids[0] in err
