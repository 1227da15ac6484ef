"""Trained models by name: they are what their cards say, byte for byte and number for number."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import sheafdeq
from sheafdeq import Graph, SheafDEQ, certify, zoo
from sheafdeq.cli import build_parser, main
from sheafdeq.data.community import with_differences
from sheafdeq.errors import InputError, OptionError, RecordError
from sheafdeq.records import read_record, read_sealed
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.loop import evaluate
from sheafdeq.training.run_identity import task_of
from sheafdeq.zoo.entry import add

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "runs"
NAMES = zoo.names()


def test_the_models_that_were_promised_are_there() -> None:
    assert {f"community-{level}/sheaf-cascade" for level in (3, 5, 7, 9, 10)} <= set(NAMES)
    assert {"community-3/sheafdeq", "community-5/sheafdeq"} <= set(NAMES)
    assert {"counting/sheaf-relay", "sums/sheaf-relay"} <= set(NAMES)
    size = sum(path.stat().st_size for path in zoo.FOLDER.rglob("*") if path.is_file())
    assert size < 2 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_every_number_comes_from_its_records(name: str) -> None:
    facts, proof = zoo.facts(name), read_sealed(zoo.FOLDER / name / zoo.CERTIFICATE)
    record = read_record(RUNS / facts["run"])
    assert facts["scores"] == record.scores
    assert facts["metrics"] == record.metrics
    assert proof["run"] == record.id
    card = zoo.card(name)
    for split, values in record.metrics.items():
        for value in values.values():
            assert re.search(rf"\| {split} .*\b{re.escape(f'{value:.6g}')}\b", card)
    assert f"{record.model.parameters:,} parameters" in card
    assert proof["certificate"]["verdict"] in card.lower()
    parser = build_parser()
    commands = re.findall(r"^\$ sheafdeq (.*)$", card, flags=re.MULTILINE)
    for command in commands:
        if not command.startswith("zoo add"):  # names a folder that may not be there
            parser.parse_args(shlex.split(command))
    assert len(commands) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_the_parameters_of_its_run(name: str) -> None:
    model = sheafdeq.load(name)
    own = sheafdeq.load_model(RUNS / zoo.facts(name)["run"])
    assert not model.training
    assert repr(model) == repr(own)
    assert all(
        torch.equal(first, second)
        for first, second in zip(
            model.state_dict().values(), own.state_dict().values(), strict=True
        )
    )


QUICK = ["community-7/sheaf-cascade", "community-3/sheafdeq", "counting/sheaf-relay"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_a_model_scores_what_its_card_says(name: str) -> None:
    facts = zoo.facts(name)
    task = task_of(TrainingConfig.of_record(facts["config"], name))
    assert task.digest == facts["task"]["digest"]
    found = evaluate(sheafdeq.load(name), task, ["test"]).scores["test"]
    stored = facts["scores"]["test"]
    # as tests/evaluation/test_stored_runs.py
    allowed = 0.5 if facts["task"]["score"].endswith("(%)") else 1e-3 * abs(stored)
    assert abs(found - stored) <= allowed


def test_a_loaded_model_is_used_as_any_other() -> None:
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    ring = torch.arange(8)
    edges = torch.cat([torch.stack([ring, (ring + 1) % 8]), torch.stack([(ring + 1) % 8, ring])], 1)
    cascade = sheafdeq.load("community-7/sheaf-cascade")
    assert cascade(x, edges).shape == (8, 3)
    assert certify(cascade, Graph.build(x, edges), effort="quick").verdict.value == "certified"
    reliable = sheafdeq.load("community-3/sheafdeq")
    graph = with_differences(Graph.build(x, edges))
    assert reliable(graph).shape == (8, 3)


def test_unknown_names_list_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"did you mean 'community-9/sheaf-cascade'.*sums/"):
        sheafdeq.load("community-8/sheaf-cascade")
    with pytest.raises(OptionError, match=r"Choose from: .*counting/sheaf-relay"):
        sheafdeq.load(tmp_path)
    with pytest.raises(OptionError):
        zoo.card("../zoo")
    SheafDEQ(2, 3).save_pretrained(tmp_path)
    assert isinstance(sheafdeq.load(tmp_path), SheafDEQ)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "certificate.json", "README.md", "metrics.json"]
)
def test_an_altered_file_is_refused(file: str, tmp_path: Path) -> None:
    name = "counting/sheaf-relay"
    shutil.copytree(zoo.FOLDER / name, tmp_path / name)
    path = tmp_path / name / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(RecordError):
        zoo.load(name, tmp_path)


def test_an_entry_is_made_again_from_its_records(tmp_path: Path) -> None:
    name = "counting/sheaf-relay"
    run = RUNS / zoo.facts(name)["run"]
    assert add(run, zoo.FOLDER / name / zoo.CERTIFICATE, tmp_path) == name
    for file in ("model.safetensors", zoo.CERTIFICATE, zoo.CARD):
        assert (tmp_path / name / file).read_bytes() == (zoo.FOLDER / name / file).read_bytes()
    stored, again = (read_sealed(f / name / "config.json") for f in (zoo.FOLDER, tmp_path))
    assert stored["arguments"].items() <= again["arguments"].items()  # later options: at defaults
    stored, again = zoo.facts(name), zoo.facts(name, tmp_path)
    assert {**stored, "files": None} == {**again, "files": None}
    with pytest.raises(InputError, match="not of"):
        add(run, zoo.FOLDER / "sums/sheaf-relay" / zoo.CERTIFICATE, tmp_path)
    with pytest.raises(InputError, match="task/model"):
        add(run, zoo.FOLDER / name / zoo.CERTIFICATE, tmp_path, "../evil")


def test_the_command_lists_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["zoo"]) == 0
    assert all(name in capsys.readouterr().out for name in NAMES[:1])
    assert main(["zoo", "--json"]) == 0
    assert '"validation"' in capsys.readouterr().out
    assert main(["zoo", "show", "sums/sheaf-relay"]) == 0
    assert capsys.readouterr().out == zoo.card("sums/sheaf-relay")
    assert main(["zoo", "show", "sums/relay"]) == 2
    assert "did you mean 'sums/sheaf-relay'" in capsys.readouterr().err
    name = "counting/sheaf-relay"
    proof = str(zoo.FOLDER / name / zoo.CERTIFICATE)
    run = str(RUNS / zoo.facts(name)["run"])
    words = ["zoo", "add", run, "--certificate", proof, "--zoo", str(tmp_path), "--name", "a/b"]
    assert main(words) == 0
    assert zoo.names(tmp_path) == ["a/b"]
