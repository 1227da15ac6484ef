"""``sheafdeq certify RUN --predictions`` as a user calls it."""

import json

import pytest

from sheafdeq.cli import main
from sheafdeq.cli.subject import load_subject
from sheafdeq.predictions import redraw
from sheafdeq.records import read_sealed

TASK = ["nodes=24", "train_seeds=[1]", "test_seeds=[2]", "k=3"]
MODEL = ["levels=2", "level_steps=3", "channels=2", "hidden=4", "edge_hidden=4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A cascade trained for two epochs on a small community task."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["train", "--task", "community", "--level", "10", "--model", "sheaf-cascade"]
    for option in TASK:
        words += ["--task-set", option]
    for option in MODEL:
        words += ["--set", option]
    assert main([*words, "--epochs", "2", "--out", str(folder)]) == 0
    return next(found.parent for found in folder.rglob("record.json"))


def test_the_report_the_record_and_the_pictures(run, tmp_path, capsys):
    capsys.readouterr()
    words = ["certify", str(run), "--predictions", "--radius", "1e-3", "0", "1e-9"]
    assert main([*words, "--attack", "2", "--out", str(tmp_path), "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert [row["radius"] for row in payload["curve"]] == [0.0, 1e-9, 1e-3]
    first = payload["curve"][0]
    assert first["proved"] == first["nodes"] == 24
    assert payload["predictions"][0]["is_proved"] == [True] * 24
    assert all(row["attack"]["proved_labels_changed"] == 0 for row in payload["curve"][1:])
    (record,) = tmp_path.glob("*.json")
    assert read_sealed(record)["curve"] == payload["curve"]
    assert "--predictions" in payload["command"]
    assert len(list(tmp_path.glob("*.png"))) == 2
    again = redraw(read_sealed(record), load_subject(run, "test", "0").split, tmp_path, "again")
    assert [path.name for path in again] == ["again.png", "again-radius.png"]
    stored = tmp_path / f"{record.stem}-radius.png"
    assert again[1].read_bytes() == stored.read_bytes()
    assert main(["certify", str(run), "--predictions"]) == 0
    assert "24 of 24 labels proved" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--radius", "1"], "--predictions"),
        (["--attack", "1"], "--predictions"),
        (["--largest-radius"], "--largest-radius belongs to --predictions"),
        (["--schedules", "2"], "--predictions"),
        (["--predictions", "--groups", "2"], "--groups belongs to --attack"),
        (["--predictions", "--radius", "-1"], "at least 0"),
        (["--predictions", "--task", "counting"], "own task"),
    ],
)
def test_wrong_use_is_told(run, words, message, capsys):
    assert main(["certify", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_sheared_boxes_groups_schedules_and_the_table(run, tmp_path, capsys):
    capsys.readouterr()
    words = ["certify", str(run), "--predictions", "--radius", "0", "1e-6", "--form", "sheared"]
    words += ["--attack", "1", "--groups", "2", "--schedules", "2", "--largest-radius", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert payload["curve"][0]["schedules"]["differing"] == 0
    assert payload["curve"][1]["attack"]["groups"] == 2
    assert "Theorem 43" in payload["predictions"][1]["grounds"]
    radii = payload["largest_radius"]["radius"]
    assert len(radii) == 24
    assert max(radii) >= 1e-6
    assert "--largest-radius" in payload["command"]
    assert main(["tables", "predictions", "--results", str(tmp_path), "--format", "csv"]) == 0
    assert "proved and right" in capsys.readouterr().out
    assert main(["tables", "predictions", "--results", str(tmp_path), "--full", "--wide"]) == 0
    assert "1e-06" in capsys.readouterr().out


def test_a_run_is_needed(capsys):
    assert main(["certify", "--predictions"]) == 2
    assert "RUN" in capsys.readouterr().err
    assert main(["certify", "sheaf-cascade", "--predictions"]) == 2
    assert "run directory" in capsys.readouterr().err
