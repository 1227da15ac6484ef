"""The command as a user calls it."""

import json

from sheafdeq.cli import main


def test_a_named_model_on_a_task(capsys, tmp_path):
    code = main(["certify", "ignn", "--task", "counting", "--effort", "quick", "--json", "--out", str(tmp_path)])
    payload = json.loads(capsys.readouterr().out)
    assert code == 0
    assert payload["certificate"]["verdict"] == "certified"
    assert payload["certificate"]["rate"] < 1
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_the_plain_report(capsys):
    assert main(["certify", "appnp", "--task", "counting"]) == 0
    text = capsys.readouterr().out
    assert "verdict: certified (global)" in text
    assert "Proposition 33" in text


def test_the_audit_command(capsys):
    assert main(["certify", "--audit", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


def test_wrong_use_is_told(capsys, tmp_path):
    assert main(["certify"]) == 2
    assert main(["certify", "ignn"]) == 2
    assert main(["certify", "no-such-model", "--task", "counting"]) == 2
    assert main(["certify", "--all", str(tmp_path / "missing")]) == 2
    assert main(["certify", "--all", str(tmp_path)]) == 0
    assert "0 checkpoints" in capsys.readouterr().out
