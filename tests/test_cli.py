import json
import subprocess
import sys

import pytest

import sheafdeq
from sheafdeq.cli import build_parser, main


def all_parsers(parser, path=()):
    yield path, parser
    for action in parser._actions:
        for name, child in (
            (getattr(action, "choices", None) or {}).items()
            if hasattr(action, "choices") and isinstance(action.choices, dict)
            else ()
        ):
            yield from all_parsers(child, (*path, name))


def test_help_at_every_level(capsys):
    paths = [path for path, _ in all_parsers(build_parser())]
    assert ("demo",) in paths
    assert ("doctor",) in paths
    for path in paths:
        with pytest.raises(SystemExit) as stop:
            main([*path, "--help"])
        assert stop.value.code == 0
        assert "usage: sheafdeq" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"sheafdeq {sheafdeq.__version__}"


def test_wrong_usage_exits_with_two(capsys):
    assert main([]) == 2
    for arguments in (["no-such-command"], ["demo", "--level", "x"], ["demo", "--level", "11"]):
        assert main(arguments) == 2
    assert "level" in capsys.readouterr().err


def test_doctor(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["sheafdeq"] == sheafdeq.__version__
    assert findings["versions"]["torch"]
    assert findings["threads"]["torch"] >= 1
    assert isinstance(findings["kernel"]["available"], bool)
    assert main(["doctor"]) == 0
    assert "kernel" in capsys.readouterr().out


def test_small_demo_holds_two_models_against_each_other_and_reports_a_missed_goal(capsys):
    code = main(
        ["demo", "--nodes", "60", "--epochs", "2", "--threads", "1", "--page", "", "--json"]
    )
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert report["goal_reached"] is False
    paper, cascade = report["models"]
    assert [row["iterations"] for row in paper["horizons"]] == [20, 100]
    assert paper["horizons"][1]["residual"] > 1e-4
    assert paper["verdict"] == "nothing sought, it does not rest"
    assert (cascade["verdict"], cascade["reach"]) == ("certified", "global")
    assert cascade["rate"] < 1
    assert cascade["starts"]["apart"] < 1e-2  # what is proved is seen
    for row in (*paper["horizons"], *cascade["horizons"]):
        assert 0 <= row["accuracy"] <= 100
        assert (row["status"] == "converged") == (row["residual"] <= row["tolerance"])


def test_easy_goal_is_reached_and_the_demo_ends_with_a_page(capsys, tmp_path):
    page = tmp_path / "demo.html"
    assert (
        main(
            [
                "demo",
                "--nodes",
                "60",
                "--epochs",
                "3",
                "--goal",
                "1",
                "--threads",
                "1",
                "--page",
                str(page),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "reached" in out
    assert f"open {page}" in out
    assert page.read_text().count('"kind":"default"') == 2  # both models


def test_a_users_mistake_prints_no_traceback():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sheafdeq",
            "train",
            "--task",
            "no-such-task",
            "--model",
            "sheafdeq",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no-such-task" in done.stderr
