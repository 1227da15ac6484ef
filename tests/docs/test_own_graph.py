"""The guide from two tables to a certificate: its commands run, in their order, as they stand."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from sheafdeq.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_graph.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def tables(folder: Path, prefix: str, n: int, labelled: bool) -> None:
    rng = np.random.default_rng(n)
    words = ["coffee", "tea"]
    rows = [
        [f"person{k}", *map(str, rng.normal(size=2) + 2 * (k % 2)), *[words[k % 2]][:labelled]]
        for k in range(n)
    ]
    head = ["node", "size", "colour", *["label"][:labelled]]
    for name, lines in (
        ("nodes", [head, *rows]),
        (
            "edges",
            [["source", "target"], *([f"person{k}", f"person{(k + 2) % n}"] for k in range(n))],
        ),
    ):
        text = "\n".join(",".join(line) for line in lines) + "\n"
        (folder / f"{prefix}{name}.csv").write_text(text)


def test_the_guide_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tables(tmp_path, "", 30, labelled=True)
    tables(tmp_path, "new_", 12, labelled=False)
    blocks = FENCE.findall(PAGE.read_text(encoding="utf-8"))
    (sweep,) = [text for kind, text in blocks if not kind and text.startswith("name =")]
    (tmp_path / "mine.toml").write_text(sweep)
    commands = [
        line.removeprefix("$ sheafdeq ")
        for kind, text in blocks
        if kind == "console"
        for line in text.splitlines()
    ]
    assert len(commands) == 8
    run = ""
    for command in commands:
        words = [run if word == "RUN" else word for word in shlex.split(command)]
        assert main(words) == 0, (command, capsys.readouterr().err)
        if words[0] == "runs":
            capsys.readouterr()
            assert main(["runs", "--json"]) == 0
            (row,) = json.loads(capsys.readouterr().out)["runs"]
            run = row["id"][:8]
    said = capsys.readouterr().out
    assert "certified" in said  # a cascade has one equilibrium whatever its weights
    assert re.search(r"\d+ of \d+ proved", said)
    rows = list(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))
    assert [row["node"] for row in rows] == [f"person{k}" for k in range(12)]
    assert {row["label"] for row in rows} <= {"coffee", "tea"}
    assert {row["status"] for row in rows} == {"converged"}
    assert all(float(row["residual"]) < 1e-5 for row in rows)
    # nothing the guide writes tells where it was written
    for record in (tmp_path / "runs").glob("*/*.json"):
        assert str(tmp_path) not in record.read_text()
