"""A model in a module of the user's: every command takes it when the user names it, and no file can
ask for it."""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from pathlib import Path

import pytest

from sheafdeq.cli import main
from sheafdeq.errors import OptionError, RecordError
from sheafdeq.records import read_record
from sheafdeq.registry import COMMUNITY, build_model, model_spec, use_model
from sheafdeq.training.checkpoint import load_model
from sheafdeq.user_models import VARIABLE, installed_names

MODULE = '''
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.equilibrium import EquilibriumModel, Readout
from sheafdeq.edges import Edges
from sheafdeq.recurrence import node_field


@dataclass(frozen=True, eq=False)
class Context:
    edges: Edges
    drive: Tensor = node_field()


class Average(EquilibriumModel):
    """h_v <- gain tanh(mean of incoming h_u) + drive_v."""

    def __init__(self, in_channels: int, out_channels: int, stalk_dim: int, width: int = 6,
                 *, gain: float = 0.5, steps: int = 60) -> None:
        super().__init__(steps=steps)
        self.in_channels, self.out_channels, self.gain = in_channels, out_channels, float(gain)
        self.encoder = nn.Linear(in_channels, width)
        self.readout = Readout(width, out_channels)

    def prepare(self, graph):
        return Context(graph.edges, self.encoder(graph.x))

    def initial_state(self, context):
        return torch.zeros_like(context.drive)

    def step(self, state, context):
        return self.local_step(state, state[context.edges.source], context)

    def local_step(self, own, received, context):
        edges = context.edges
        total = torch.zeros_like(context.drive).index_add(0, edges.target, received)
        return self.gain * torch.tanh(total / edges.degree[:, None]) + context.drive


class Demanding(Average):
    def __init__(self, in_channels: int, out_channels: int, flavour: str) -> None:
        super().__init__(in_channels, out_channels, 1)


class Handing(Average):
    def __init__(self, in_channels: int, out_channels: int, *, depth: int = 1, **options) -> None:
        super().__init__(in_channels, out_channels, 1, **options)


class NoModel:
    pass
'''
NUMBERS = count()
TASK = [f"--task-set={option}" for option in ("nodes=30", "k=3", "train_seeds=[42]")]
TASK = ["--task", "community", "--level", "7", *TASK, "--task-set", "test_seeds=[100]"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the folder the program runs in, which nothing has imported."""
    name = f"models_of_a_user_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return name


@pytest.fixture
def run(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of the user's model, trained by the command; nothing is allowed afterwards."""
    words = ["train", *TASK, "--model", f"{module}:Average", "--set", "gain=0.4", "--epochs", "2"]
    assert main([*words, "--out", str(tmp_path / "runs"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    del os.environ[VARIABLE]
    return tmp_path / "runs" / record["id"]


def test_train(run: Path, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(run)
    assert record.model.name == f"{module}:Average"
    assert record.model.title == "Average"
    assert record.model.options == {"width": 6, "gain": 0.4, "steps": 60}
    words = ["train", *TASK, "--model", f"{module}:Average", "--set", "gain=0.4", "--epochs", "2"]
    assert main([*words, "--out", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == run.name
    assert main([*words[:-2], "--set", "gian=0.4", "--json"]) == 2
    assert "did you mean 'gain'" in capsys.readouterr().err


def test_options_handed_on_to_the_base_class_are_options(module: str) -> None:
    name = use_model(f"{module}:Handing")
    assert model_spec(name).options == {"depth": 1, "gain": 0.5, "steps": 60}
    assert build_model(name, COMMUNITY, gain=0.25).gain == 0.25
    with pytest.raises(OptionError, match="a number"):
        build_model(name, COMMUNITY, gain="much")


def test_a_file_cannot_ask_for_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match="--user-model"):
        load_model(run)
    for command in (["evaluate"], ["certify"], ["infer"], ["diagnose"]):
        assert main([*command, str(run)]) == 1
        assert "--user-model" in capsys.readouterr().err


def test_evaluate_certify_and_infer_in_parts(
    run: Path, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = ["--user-model", f"{module}:Average"]
    assert main([*allowed, "evaluate", str(run), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    stored = read_record(run).scores["test"]
    assert result["splits"]["test"]["score"] == pytest.approx(stored, rel=1e-6)
    assert main([*allowed, "certify", str(run), "--effort", "quick", "--json"]) == 0
    certificate = json.loads(capsys.readouterr().out)["certificate"]
    assert certificate["verdict"] == "not certified"
    outputs = str(tmp_path / "outputs.npz")
    words = ["infer", str(run), "--parts", "2", "--engine", "local", "--output", outputs, "--json"]
    assert main([*allowed, *words]) == 0
    assert json.loads(capsys.readouterr().out)["solve"]["status"] == "converged"


def test_fresh_weights_are_certified_and_listed_by_name(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{module}:Average"
    words = ["certify", name, "--task", "community", "--level", "7", "--effort", "quick", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["model"] == name
    assert main(["models", name, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["options"] == {"width": 6, "gain": 0.5, "steps": 60}


def test_sweep_with_a_worker_process(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = (
        'name = "community"\nlevel = 7\noptions = { nodes = 30, k = 3, train_seeds = [42], '
        "test_seeds = [100] }"
    )
    (tmp_path / "mine.toml").write_text(
        f'name = "mine"\nseeds = [1]\n[training]\nmax_epochs = 2\n[[tasks]]\n{task}\n'
        f'[[models]]\nname = "{module}:Average"\noptions = [{{ gain = 0.2 }}, {{ gain = 0.3 }}]\n'
    )
    words = ["sweep", "run", "mine.toml", "--out", "runs", "--json"]
    assert main(words) == 2
    assert "--user-model" in capsys.readouterr().err
    assert main(["--user-model", f"{module}:Average", *words]) == 0
    records = [read_record(path.parent) for path in (tmp_path / "runs").glob("*/record.json")]
    assert sorted(record.model.options["gain"] for record in records) == [0.2, 0.3]


def test_an_installed_package_offers_models_by_entry_point(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "someones_models-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-models\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[sheafdeq.models]\naverage = {module}:Average\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "average" in installed_names()
    assert type(build_model("average", COMMUNITY, gain=0.1)).__name__ == "Average"
    assert model_spec("average") is model_spec("average")
    assert main(["models", "--json"]) == 0
    assert "average" in [row["name"] for row in json.loads(capsys.readouterr().out)["models"]]


def test_wrong_names_are_named(module: str) -> None:
    for place, words in (
        (f"{module}:NoModel", "not a model"),
        (f"{module}:Absent", "nothing of that name"),
        (f"{module}:Demanding", "'flavour'"),
        ("no_such_module_anywhere:Model", "ModuleNotFoundError"),
    ):
        with pytest.raises(OptionError, match=words):
            model_spec(use_model(place))
    for place in ("os", ":Model", "a b:C", "../x:Y", "module:Class.method", ""):
        with pytest.raises(OptionError, match=r"package\.module:Class"):
            use_model(place)
    with pytest.raises(OptionError, match="there is no model"):
        model_spec("shefdeq")
