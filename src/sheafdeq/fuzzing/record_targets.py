"""Doors for what runs left: records, studies, checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from random import Random
from typing import Any

from sheafdeq.fuzzing.hostile import damaged_bytes, damaged_json, hostile

__all__ = ["PREPARED", "checkpoints", "figures", "prepare", "records", "write_damaged"]


PREPARED: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Make one run, checkpoints, and the records of a study, to be damaged later."""
    import torch_geometric  # noqa: F401 - its first import opens a socket to see whether there is IPv6

    from sheafdeq.cli import main
    from sheafdeq.records import read_sealed
    from sheafdeq.registry import COMMUNITY, MODELS, build_model
    from sheafdeq.training.checkpoint import save_checkpoint
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.run import train

    folder.mkdir(parents=True)
    config = TrainingConfig.parse(
        {
            "task": {"name": "counting", "options": {"chains": 6}},
            "model": "sheafdeq",
            "max_epochs": 1,
            "test_every": 1,
        }
    )
    run = train(config, out=folder / "runs").path
    assert run is not None
    PREPARED["run"] = run
    PREPARED["record"] = read_sealed(run / "record.json")
    PREPARED["checkpoints"] = []
    for name in ("sheafdeq", "sheaf-cascade", "ignn", "mlp", "gat"):
        place = folder / f"checkpoint-{name}"
        place.mkdir()
        save_checkpoint(
            place, build_model(name, COMMUNITY).state_dict(), name, MODELS[name].options, COMMUNITY
        )
        PREPARED["checkpoints"].append(
            (
                read_sealed(place / "checkpoint.json"),
                (place / "checkpoint.safetensors").read_bytes(),
            )
        )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for command, extra in (
            ("diagnose", ["--iterations", "3", "--no-spectrum"]),
            ("async", ["--samples", "1", "--work", "3"]),
        ):
            main([command, str(run), *extra, "--graph", "all", "--out", str(folder / command)])
    PREPARED["studies"] = {
        "diagnostics": read_sealed(next((folder / "diagnose").glob("*.json"))),
        "async": read_sealed(next((folder / "async").glob("*.json"))),
    }


def write_damaged(random: Random, path: Path, payload: Any) -> None:
    """Write a record: usually sealed, sometimes damaged afterwards."""
    from sheafdeq.records import seal

    try:
        data = seal(payload)
    except (ValueError, TypeError, RecursionError):  # NaN, infinity
        data = json.dumps({"payload": 1}).encode()
    path.write_bytes(data if random.random() < 0.85 else damaged_bytes(random, data))


def records(random: Random, folder: Path) -> None:
    """Run records, through every table in every format."""
    from sheafdeq.records import read_records
    from sheafdeq.report.selection import select, summarise
    from sheafdeq.report.tables import FORMATS, overview_table, paper_table, render

    for number in range(random.randrange(1, 4)):
        payload = {**PREPARED["record"], "id": f"{number:064x}"}
        if random.random() < 0.3:
            payload["task"] = {**payload["task"], "name": "community", "level": 7}
        write_damaged(random, folder / f"{number}.run.json", damaged_json(random, payload))
    summaries = summarise(read_records(folder))
    full, metric = random.random() < 0.5, random.choice([None, None, "mse", "nothing"])
    for table in (
        overview_table(summaries, select, full=full, metric=metric),
        paper_table("community", summaries, select, full=full),
    ):
        render(table, random.choice(FORMATS)).encode("utf-8")


def figures(random: Random, folder: Path) -> None:
    """Records of studies, drawn."""
    import matplotlib.pyplot as plt

    from sheafdeq.report.figures import draw_all, read_sources

    kind = random.choice(["diagnostics", "async"])
    (folder / kind).mkdir()
    for number in range(random.randrange(1, 3)):
        payload = PREPARED["studies"][kind]
        write_damaged(
            random, folder / kind / f"{number}.json", damaged_json(random, payload, changes=3)
        )
    chosen = {"diagnostics": ["continued", "settling", "frontier"], "async": ["async"]}[kind]
    try:
        for drawing in draw_all(read_sources(folder), [random.choice(chosen)]):
            drawing.figure.draw_without_rendering()  # lays out and parses every text
    finally:
        plt.close("all")


def checkpoints(random: Random, folder: Path) -> None:
    """Checkpoints with sizes nobody stored, and damaged tensors under the right seal."""
    from sheafdeq.training.checkpoint import load_model

    facts, tensors = random.choice(PREPARED["checkpoints"])
    facts = json.loads(json.dumps(facts))
    if random.random() < 0.4:
        start = 8 + int.from_bytes(tensors[:8], "little")  # of the numbers, after the header
        tensors = damaged_bytes(random, tensors[:start]) + tensors[start:]
        facts["tensors"] = hashlib.sha256(tensors).hexdigest()
    if random.random() < 0.5:
        facts["shape"][random.choice(list(facts["shape"]))] = random.choice(
            [10**4, 10**5, 10**6, 10**9, hostile(random)]
        )
    facts = damaged_json(random, facts, changes=1)
    write_damaged(random, folder / "checkpoint.json", facts)
    (folder / "checkpoint.safetensors").write_bytes(tensors)
    load_model(folder)
