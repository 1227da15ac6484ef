"""A wrong value of any option of any command is one line and exit code 2, before anything is
computed."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sheafdeq.cli import build_parser, main

TASK = ["--task", "community", "--level", "7", "--task-set", "nodes=30", "--task-set", "k=3"]


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from commands(command, (*path, name))


PARSER = build_parser()
TYPED = [
    (path, action)
    for path, command in commands(PARSER)
    for action in command._actions
    if (action.type not in (None, str) or action.choices)
    and not isinstance(action, argparse._SubParsersAction)
    and action.option_strings
]


def filler(path: tuple[str, ...], parser: argparse.ArgumentParser) -> list[str]:
    """What a command needs besides the option in question."""
    words = []
    for action in parser._actions:
        if not action.option_strings and action.nargs not in ("?", "*"):
            if isinstance(action, argparse._SubParsersAction):
                continue
            words.append(str(next(iter(action.choices))) if action.choices else "word")
        elif action.required and action.option_strings:
            words += [action.option_strings[0], "place"]
    return words


WRONG = ["", "abc d", "-", "nan", "1e999", "-1", "0x", "[1]", "\x00"]


@pytest.mark.parametrize(
    ("path", "flag"), [(path, action.option_strings[0]) for path, action in TYPED]
)
def test_typed_options(
    path: tuple[str, ...], flag: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Nonsense is refused by the parser; where a word is a value after all (a name of a folder to
    make), it is left alone here."""
    monkeypatch.chdir(tmp_path)
    parser = dict(commands(PARSER))[path]
    action = next(a for a in parser._actions if flag in a.option_strings)
    before = filler(path, parser)
    refused = 0
    for value in WRONG:
        code = 0
        try:
            PARSER.parse_args([*path, *before, f"{flag}={value}"])
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr().err
        if code == 0:
            continue
        refused += 1
        assert code == 2
        assert said.count("\n") == 1, said
        assert said.startswith(f"sheafdeq {' '.join(path)}".strip())
        assert "invalid" not in said or "value" not in said, said  # argparse's own words
    assert refused >= (1 if action.type is not None else len(WRONG)), (path, flag)


def test_no_number_is_without_limits() -> None:
    bare = [
        (path, action.option_strings or action.dest)
        for path, command in commands(PARSER)
        for action in command._actions
        if action.type in (int, float, open, Path)
    ]
    assert bare == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, one archive, one file and no records of results."""
    root = tmp_path_factory.mktemp("place")
    words = ["--model", "appnp", "--epochs", "0", "--out", str(root / "runs"), "--json"]
    assert main(["train", *TASK, *words]) == 0
    (root / "file").write_text("")
    node = np.arange(9)
    np.savez(root / "g.npz", x=np.ones((9, 2)), edge_index=np.stack([node, node[::-1]]), y=node % 2)
    (root / "bad.toml").write_text("task = 3\nmodel = 4\n")
    return root


SMALL = " ".join([*TASK, "--epochs", "0"])
TABLE = [
    # of issue and of imagination: command, what the one line says
    (f"train {SMALL} --model sheafdeq --set shift=abc", "shift must be a number"),
    (f"train {SMALL} --model sheafdeq --set gradient=5", "gradient must be text"),
    (f"train {SMALL} --model sheafdeq --set gradient=foo", "choose 'unrolled'"),
    (f"train {SMALL} --model sheafdeq --set training_steps=3", "has no option 'training_steps'"),
    (
        f"train {SMALL} --model sheaf-cascade --set training_steps=3",
        "training_steps must be a list",
    ),
    (f"train {SMALL} --model sheafdeq --set solver=newton", "one of 'picard', 'anderson'"),
    (f"train {SMALL} --model sheafdeq --set tolerance=-1", "tolerance"),
    (f"train {SMALL} --model sheafdeq --set channels=0", "channels must be a whole number from 1"),
    (f"train {SMALL} --model sheafdeq --set chanels=3", "did you mean 'channels'"),
    (f"train {SMALL} --model gcn --set solver=picard", "has no option 'solver'"),
    (f"train {SMALL} --model gcn --set width", "KEY=VALUE"),
    (f"train {SMALL} --model gcn --task-set nodes=abc", "nodes must be a whole number"),
    (f"train {SMALL} --model gcn --task-set split=public", "has no option 'split'"),
    (f"train {SMALL} --model gcn --split public", "has no option 'split'"),
    (f"train {SMALL} --model gcn --training-set patience=0", "patience"),
    (f"train {SMALL} --model gcn --training-set foo=1", "unknown key 'foo'"),
    (f"train {SMALL} --model gnc", "did you mean 'gcn'"),
    (f"train {SMALL} --model gcn --out file", "is a file, a folder is needed"),
    (f"train {SMALL} --model gcn --init-from nope", "neither a run directory"),
    (f"train {SMALL} --model gcn --init-from fffff", "fffff"),
    (f"train {SMALL} --model gcn --save x", "--parts"),
    (f"train {SMALL} --model gcn --mask-seed 3", "for your own graph"),
    (f"train {SMALL} --model gcn --undirected", "for your own graph"),
    (f"train {SMALL} --model my_models", "there is no model"),
    ("train --task communty --model gcn", "did you mean 'community'"),
    ("train --task community --model gcn --level 12", "whole number from 0 to 10"),
    ("train --task community --model gcn --epochs -3", "whole number from 0"),
    ("train --task cora --model gcn --task-set undirected=maybe", "undirected must be true or"),
    ("train --task cora --model gcn --split pubic", "splits 0 to 9"),
    ("train --task cora --model gcn --task-set root=x", "not for a configuration"),
    ("train --model gcn", "give --task (or your own graph)"),
    ("train --config nope.toml", "no such file"),
    ("train --config bad.toml", "bad.toml"),
    ("train --recipe relable", "did you mean 'reliable'"),
    ("train --npz g.npz --model gcn", "there are no train, validation and test masks"),
    ("train --npz g.npz --model gcn --mask-seed 1 --split public", "have numbers"),
    ("train --npz g.npz --model gcn --mask-seed 1 --level 3", "not for your own files"),
    ("train --npz g.npz --model gcn --mask-seed 1 --task cora", "call your own data otherwise"),
    ("train --npz g.npz --model gcn --task-set seed=abc", "seed must be a whole number"),
    ("train --npz nope.npz --model gcn", "nope.npz"),
    ("train --npz runs --model gcn", "is a folder"),
    ("train --npz g.npz --nodes file --edges file --model gcn", "not both"),
    ("train --nodes file --model gcn", "belong together"),
    ("tasks show communty", "did you mean 'community'"),
    ("tasks show", "name one task"),
    ("tasks show cora --option undirected=maybe", "undirected must be true or"),
    ("tasks show community --level 3 --plot x.foo", "must end in .png"),
    ("tasks show --npz g.npz --mask-seed 1 --option colour=red", "has no option 'colour'"),
    ("models sheafdq", "did you mean 'sheafdeq'"),
    ("sweep run smok", "did you mean 'smoke'"),
    ("sweep run bad.toml", "bad.toml"),
    ("sweep run smoke --set foo=1", "has no option 'foo'"),
    ("sweep run smoke --set shift=abc", "shift must be a number"),
    ("sweep run smoke --task-set foo=1", "has no option 'foo'"),
    ("sweep run smoke --training-set max_epochs=abc", "max_epochs"),
    ("sweep run smoke --training-set max_epoch=1", "did you mean 'max_epochs'"),
    ("sweep run smoke --shard 5/2", "1 <= i <= n"),
    ("sweep run smoke --budget abc", "neither epochs"),
    ("sweep run smoke --out file", "is a file"),
    ("sweep status smoke --recorded nope", "is not a folder"),
    ("sweep export smoke --results file", "is a file"),
    ("evaluate nope", "neither a run directory"),
    ("evaluate RUN --level 12", "whole number from 0 to 10"),
    ("evaluate RUN --task communty", "did you mean 'community'"),
    ("evaluate RUN --task-set foo=1", "has no option 'foo'"),
    ("evaluate RUN --split pubic", "has no option 'split'"),
    ("evaluate RUN --out file", "is a file"),
    ("evaluate RUN --fresh --validation-graphs", "choose one"),
    ("evaluate runs --models gnc", "did you mean 'gcn'"),
    ("predict RUN --out x.txt", "must end in .npz or .csv or .json"),
    ("predict RUN --out runs", "must end in"),
    ("predict RUN --out file/x.npz", "is a file"),
    ("predict RUN --npz nope.npz", "nope.npz"),
    ("certify gnc --task community", "did you mean 'gcn'"),
    ("certify gcn --task communty", "did you mean 'community'"),
    ("certify gcn", "brings no task of its own"),
    ("certify RUN --graph abc", "--graph must be 'all' or a number"),
    ("certify RUN --radius 1", "belongs to --predictions"),
    ("certify --all nope", "is not a folder"),
    ("certify", "give one of"),
    ("diagnose RUN --graph 99", "--graph must be"),
    ("diagnose runs --models gnc", "did you mean 'gcn'"),
    ("diagnose runs --checkpoints appnp", "MODEL:SEED"),
    ("diagnose runs --option foo", "KEY=VALUE"),
    ("diagnose RUN RUN2 --label x", "RUN2"),
    ("async RUN --reference nope", "finite:K"),
    ("async RUN --reference finite:0", "finite:K"),
    ("async RUN --schedules 0,5", "S,TAU"),
    ("async RUN --schedules abc", "S,TAU"),
    ("async RUN --faults --tau-sweep", "two studies"),
    ("infer RUN --slow 7=2", "PART=FACTOR"),
    ("infer RUN --slow 0=-1", "PART=FACTOR"),
    ("infer RUN --figure x.foo", "must end in"),
    ("infer RUN --output x.foo", ".npz or .csv"),
    ("infer RUN --assignment nope", "not there"),
    ("infer RUN --ray-address h:1", "--engine ray"),
    ("infer RUN --mode async --horizon 3", "--horizon"),
    ("explore RUN --schedule 0,1", "S,TAU"),
    ("explore RUN --scale nan", "finite number"),
    ("explore RUN --out x.txt", "must end in .html"),
    ("settle RUN --out x --stage epochs=abc,learning_rate=1,residual_weight=1", "a number"),
    ("settle RUN --out x --stage epochs=0,learning_rate=1,residual_weight=1", "one epoch"),
    ("settle RUN --out x --stage epochs=1.5,learning_rate=1,residual_weight=1", "whole number"),
    ("settle RUN --out x --stage foo=1", "unknown key 'foo'"),
    ("settle RUN --out x --npz g.npz", "not what the run was trained on"),
    ("studies RUN --paper --level 3", "--level"),
    ("runs nope", "is not a folder"),
    ("runs --task communty", "did you mean 'community'"),
    ("runs --model gnc", "did you mean 'gcn'"),
    ("tables foo", "there is no 'foo'"),
    ("tables all --results runs --metric acuracy", "did you mean 'accuracy'"),
    ("tables community --results runs --columns L99", "no column 'L99'"),
    ("tables parameters --out runs", "is a folder"),
    ("tables results --results runs --explanations nope", "not there"),
    ("figures --only foo", "there is no 'foo'"),
    ("figures --runs nope", "is not a folder"),
    ("figures --results nope", "is not a folder"),
    ("report nope", "no such folder"),
    ("report runs --results nope", "is not a folder"),
    ("report runs --schedule 0,1", "S,TAU"),
    ("demo --page x.txt", "must end in .html"),
    ("--user-model nope models", "package.module:Class"),
    ("trian", "did you mean 'train'"),
    ("train --modle gcn", "did you mean '--model'"),
]


@pytest.mark.parametrize(("command", "words"), TABLE, ids=[command for command, _ in TABLE])
def test_wrong_words(command: str, words: str, place: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SHEAFDEQ_DATA", str(place))
    (run,) = (place / "runs").glob("*/record.json")
    before = sorted(path.name for path in place.iterdir())
    code = main([run.parent.name[:6] if word == "RUN" else word for word in command.split()])
    said = capsys.readouterr().err
    assert code == 2, said
    assert words in said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert sorted(path.name for path in place.iterdir()) == before  # nothing was written


def completed(line: str, folder: Path) -> list[str]:
    """What the shell is offered for a line, by argcomplete's own protocol."""
    program = (
        "import os, sys\n"
        "os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 8)\n"
        "from sheafdeq.cli import main\n"
        "sys.argv = ['sheafdeq']\n"
        "main()\n"
    )
    out = folder / "completions"
    environment = {
        "PATH": "/usr/bin:/bin",
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run(
        [sys.executable, "-c", program, str(out)],
        cwd=folder,
        env=environment,
        timeout=120,
        check=False,
    )
    return [word.strip() for word in out.read_text().split("\n") if word.strip()]


def test_the_shell_completes_commands_options_and_names(place: Path) -> None:
    pytest.importorskip("argcomplete")
    assert set(completed("sheafdeq pre", place)) == {"predict"}
    assert "--mask-seed" in completed("sheafdeq train --mask", place)
    assert set(completed("sheafdeq train --model sheaf-c", place)) == {"sheaf-cascade"}
    assert set(completed("sheafdeq train --task comm", place)) == {"community"}
    (run,) = (place / "runs").glob("*/record.json")
    assert run.parent.name[:8] in completed("sheafdeq evaluate ", place)
