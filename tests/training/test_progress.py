from __future__ import annotations

import io
import json

import pytest

from sheafdeq.cli import main
from sheafdeq.errors import InputError
from sheafdeq.training.loop import EpochMetrics
from sheafdeq.training.progress import BarProgress, LineProgress, SilentProgress, progress_from
from sheafdeq.training.run import train


def test_lines_name_everything_a_reader_wants(small):
    stream = io.StringIO()
    train(small(), progress=LineProgress(stream, seconds=0.0))
    lines = stream.getvalue().splitlines()
    assert lines[0] == small().title
    for word in ("loss", "validation", "best", "epochs/s", "left"):
        assert word in lines[1]
    assert "max_epochs after 6 epochs" in lines[-1]
    assert len(lines) == 1 + 7 + 1


def test_the_bar_is_drawn_and_removed(capsys):
    bar = BarProgress()
    bar.start("title", 0, 3)
    for epoch in range(3):
        bar.update(EpochMetrics(epoch, 0.5, 90.0, 91.0, 1, 0.01))
    bar.finish("finished")
    assert "finished" in capsys.readouterr().err


def test_choices():
    assert isinstance(progress_from(None), SilentProgress)
    assert isinstance(progress_from("lines"), LineProgress)
    assert isinstance(progress_from("auto"), LineProgress)  # standard error is not a terminal here
    own = SilentProgress()
    assert progress_from(own) is own
    with pytest.raises(InputError, match="weather"):
        progress_from("weather")


# ---------------------------------------------------------------------- the command

TASK_OPTIONS = ("nodes=30", "train_seeds=[1]", "test_seeds=[2]", "k=3")
ARGUMENTS = ["train", "--task", "community", "--level", "10", "--epochs", "6"]
ARGUMENTS += ["--model", "sheafdeq", "--set", "shift=1.3"]
ARGUMENTS += [word for option in TASK_OPTIONS for word in ("--task-set", option)]


def test_the_command_the_api_and_the_store_agree(small, tmp_path, capsys):
    assert main([*ARGUMENTS, "--out", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    direct = train(small(), out=tmp_path / "other").record
    assert summary["id"] == direct.id
    assert summary["scores"] == direct.scores
    assert main([*ARGUMENTS, "--out", str(tmp_path)]) == 0
    assert "found in" in capsys.readouterr().out


def test_a_configuration_file_with_replacements(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(
        'seed = 7\nmax_epochs = 0\nmodel = "sheafdeq"\n[task]\nname = '
        '"counting"\noptions = { chains = 5 }\n'
    )
    assert main(["train", "--config", str(path), "--seed", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["train", "--task", "community"], 2, "--model"),
        (["train", "--task", "community", "--model", "sheafdeq", "--set", "shift"], 2, "KEY=VALUE"),
        (["train", "--task", "weather", "--model", "sheafdeq"], 2, "weather"),
        (["train", "--task", "counting", "--model", "sheafdeq", "--set", "shft=1"], 2, "shft"),
        (["train", "--task", "counting", "--model", "sheafdeq", "--epochs", "-1"], 2, "--epochs"),
    ],
)
def test_mistakes_are_named_without_a_traceback(arguments, code, word, capsys):
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert word in error
    assert "Traceback" not in error
