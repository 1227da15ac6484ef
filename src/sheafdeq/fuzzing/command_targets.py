"""Doors for words: configurations, options, commands."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from random import Random
from typing import Any

from sheafdeq.fuzzing.hostile import NUMBERS, WORDS, damaged_bytes, damaged_json, hostile
from sheafdeq.fuzzing.record_targets import PREPARED, write_damaged

__all__ = ["commands", "configurations", "options"]


_TOML = [
    "1",
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "1e-320",
    "true",
    '"abc"',
    "[]",
    "[1, 2]",
    "{}",
    "{ kind = 1 }",
    "9" * 5000,
    "1979-05-27",
    "[" * 500 + "]" * 500,
    "99999999999999999999",
    '"\\u001b[2J"',
    '"../.."',
    "[[[[1]]]]",
    "{ shift = 'abc' }",
    "0x7fffffffffffffff",
]


def configurations(random: Random, folder: Path) -> None:
    """TOML files of runs and of sweeps."""
    from sheafdeq.registry import COMMUNITY, build_model
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.sweep import Sweep

    lines = ['model = "sheafdeq"', 'task = "counting"', "seed = 3"]
    keys = [
        *TrainingConfig.model_fields,
        "task.name",
        "model.options",
        "schedule.kind",
        "penalties.residual_weight",
        "a.b.c",
        '""',
    ]
    for _ in range(random.randrange(4)):
        line = f"{random.choice(keys)} = {random.choice(_TOML)}"
        lines = [kept for kept in lines if kept.split(" ")[0] != line.split(" ")[0]] + [line]
    if random.random() < 0.4:
        name, model = random.choice(["1", '"../.."', '"mine"']), random.choice([*_TOML, '"ignn"'])
        grid = random.choice(["{ kappa = 0.9 }", "{ kappa = 3 }", "1", ""])
        lines = [
            f"name = {name}",
            "seeds = [1, 2]",
            '[[tasks]]\nname = "counting"',
            f"[[models]]\nname = {model}",
            f"options = [{grid}]",
            "[training]",
            lines[-1],
        ]
    text = "\n".join(lines).encode()
    path = folder / "run.toml"
    path.write_bytes(damaged_bytes(random, text) if random.random() < 0.3 else text)
    if b"seeds" in text:
        for config in Sweep.load(path).configs()[:3]:
            config.payload()
    else:
        config = TrainingConfig.read(path)
        build_model(config.model.name, COMMUNITY, **config.model.options)
        TrainingConfig.parse(config.payload())


def options(random: Random, folder: Path) -> None:
    """Options of models and tasks, of any type and size."""
    from sheafdeq.data.catalogue import entries, load_task
    from sheafdeq.registry import COMMUNITY, MODELS, build_model

    if random.random() < 0.7:
        name = random.choice([*MODELS, "shefdeq", ""])
        known = list(MODELS[name].options) if name in MODELS else []
        given = {
            random.choice([*known, "steps", "dropout"]): _option(random)
            for _ in range(random.randrange(3))
        }
        build_model(name, COMMUNITY, **given)
        return
    small: dict[str, dict[str, Any]] = {
        "counting": {"chains": 6},
        "community": {"nodes": 90, "k": 3},
        "sums": {"chains": 6, "length": 4},
        "coordinates": {"graphs": 10},
    }
    name = random.choice([*small, *(entry.name for entry in entries())])
    known = [key for entry in entries() if entry.name == name for key in entry.options]
    given = {
        random.choice([*known, "sedd"]): _option(random) for _ in range(random.randrange(1, 3))
    }
    load_task(name, root=folder, **{**small.get(name, {}), **given})


def _option(random: Random) -> Any:
    return random.choice(
        [
            hostile(random),
            0.5,
            1.5,
            3,
            7,
            100,
            True,
            "implicit",
            "full",
            "truncated:3",
            "truncated:-1",
            [3, 2],
            1e-3,
        ]
    )


def commands(random: Random, folder: Path) -> None:
    """Command lines with a wrong word or two, and commands over damaged files."""
    from sheafdeq.cli import main

    run = folder / "run"
    run.mkdir()
    for name in ("record.json", "checkpoint.json", "checkpoint.safetensors"):
        (run / name).write_bytes((PREPARED["run"] / name).read_bytes())
    if random.random() < 0.3:
        write_damaged(random, run / "record.json", damaged_json(random, PREPARED["record"]))
    (folder / "file").write_text("")
    train = [
        "train",
        "--task",
        "counting",
        "--task-set",
        "chains=6",
        "--model",
        "sheafdeq",
        "--epochs",
        "0",
    ]
    words = random.choice(
        [
            train,
            [*train, "--out", "runs"],
            ["tasks", "show", "counting", "--option", "chains=6"],
            ["tasks"],
            ["models", "gcn"],
            ["tables", "all", "--results", "run"],
            ["diagnose", "run", "--iterations", "2", "--no-spectrum", "--graph", "all"],
            ["figures", "--results", ".", "--out", "drawn"],
            ["sweep", "status", "smoke", "--out", "runs"],
            ["sweep", "list"],
            ["settle", "run", "--out", "runs", "--stage", "epochs=0"],
            ["certify", "run", "--effort", "quick", "--graph", "0"],
            ["doctor"],
        ]
    ).copy()
    for _ in range(random.randrange(3)):
        word = random.choice(
            [
                "--seed",
                "--epochs",
                "--level",
                "--threads",
                "--out",
                "--set",
                "--config",
                "--json",
                "--npz",
                "--damping",
                "--nothing",
                "-x",
            ]
        )
        value = random.choice(
            [
                "file",
                "file/below",
                "n" * 300,
                "shift=abc",
                "=",
                "a=b",
                "é",
                *WORDS[:-1],
                *map(str, NUMBERS[5:]),
            ]
        )
        # where to write is the user's to say: stay at home
        if word in ("--out", "--config", "--npz"):
            value = random.choice(
                ["file", "file/below", "n" * 300, "run", "new", "run/record.json"]
            )
        if random.random() < 0.5:
            words += [word, value]
        else:
            words[random.randrange(len(words))] = value if "/" not in value else "a b"
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    if code not in (0, 1, 2) or "unexpected" in said.getvalue() or "Traceback" in said.getvalue():
        raise AssertionError(f"{words}: exit code {code}: {said.getvalue()[-200:]}")
