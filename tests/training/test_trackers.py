"""What TensorBoard and Weights & Biases are told: every epoch once, whatever happened."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sheafdeq.cli import main
from sheafdeq.training import train
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.progress import SilentProgress
from sheafdeq.training.trackers import CURVES, TensorBoardTracker, WandbTracker

WORDS = [
    *["train", "--task", "community", "--level", "10", "--model", "sheafdeq", "--epochs", "4"],
    *["--task-set", "nodes=30", "--task-set", "k=3", "--task-set", "train_seeds=[1]"],
    *["--task-set", "test_seeds=[2]", "--set", "channels=2", "--set", "steps=3"],
]


def stop_at(epoch: int):
    return lambda metrics: "enough" if metrics.epoch >= epoch else None


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Points as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(point.step, point.value) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_sees_every_epoch_once(small, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    config = small(max_epochs=6)
    train(config, progress=TensorBoardTracker(tmp_path / "direct", SilentProgress()))
    expected = curves(tmp_path / "direct")
    assert set(expected) == set(CURVES)
    assert [step for step, _ in expected["loss"]] == list(range(7))
    folder, store = tmp_path / "resumed", tmp_path / "runs"
    with pytest.raises(Suspended):
        train(
            config,
            out=store,
            suspend_when=stop_at(2),
            progress=TensorBoardTracker(folder, SilentProgress()),
        )
    # a process that was killed had logged more than it had saved
    killed = SummaryWriter(str(folder))
    for step in range(3, 6):
        killed.add_scalar("loss", 1e9, step)
    killed.close()
    train(config, out=store, progress=TensorBoardTracker(folder, SilentProgress()))
    assert curves(folder) == expected
    files = len(list(folder.iterdir()))
    train(config, out=store, progress=TensorBoardTracker(folder, SilentProgress()))
    assert len(list(folder.iterdir())) == files  # found in the store: nothing to log


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_writes_a_folder_for_each_run(tmp_path: Path, capsys) -> None:
    pytest.importorskip("tensorboard")
    place = ["--out", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "boards")]
    for seed in ("1", "2", "2"):
        assert main([*WORDS, *place, "--seed", seed]) == 0
    folders = sorted((tmp_path / "boards").iterdir())
    assert len(folders) == 2
    for folder in folders:
        points = curves(folder)
        assert [step for step, _ in points["validation"]] == list(range(5))
        assert {"kept/test", "kept/validation", "kept/residual"} <= set(points)


class Service:
    """The documented part of wandb that is used: ``init`` with an id resumes it, a step that is
    not above the last one is dropped with a warning."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.opened: list[dict[str, Any]] = []
        self.summaries: dict[str, dict[str, Any]] = {}
        self.open = 0

    def module(self) -> types.ModuleType:
        module = types.ModuleType("wandb")
        module.init = self.init  # type: ignore[attr-defined]
        return module

    def init(self, *, project, entity, name, config, id, resume) -> Any:
        assert resume in (None, "allow")
        service, key = self, id or f"anonymous{len(self.opened)}"
        self.opened.append({"project": project, "entity": entity, "name": name, "config": config})
        history = self.runs.setdefault(key, [])
        known = bool(history)

        class Run:
            resumed = known
            step = history[-1][0] + 1 if history else 0
            summary = service.summaries.setdefault(key, {})

            def log(self, values: dict[str, float], step: int) -> None:
                assert not history or step > history[-1][0], "logged twice"
                history.append((step, values))

            def finish(self) -> None:
                service.open -= 1

        self.open += 1
        return Run()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service()
    monkeypatch.setitem(sys.modules, "wandb", found.module())
    return found


def test_wandb_sees_every_epoch_once(small, tmp_path: Path, service: Service) -> None:
    config = small(max_epochs=6)

    def tracker(run_id: str | None) -> WandbTracker:
        return WandbTracker("me/curves", SilentProgress(), run_id=run_id)

    train(config, progress=tracker(None))
    (expected,) = service.runs.values()
    assert [step for step, _ in expected] == list(range(7))
    store = tmp_path / "runs"
    with pytest.raises(Suspended):
        train(config, out=store, suspend_when=stop_at(2), progress=tracker("abc"))
    # a process that was killed had logged more than it had saved: the same values, by resuming
    service.runs["abc"] = expected[:5]
    train(config, out=store, progress=tracker("abc"))
    assert service.runs["abc"] == expected
    count = len(service.opened)
    train(config, out=store, progress=tracker("abc"))
    assert len(service.opened) == count  # found in the store: nothing to log
    assert service.opened[0]["entity"] == "me"
    assert service.open == 0


def test_the_command_tells_wandb(tmp_path: Path, service: Service, capsys) -> None:
    words = [*WORDS, "--out", str(tmp_path / "runs"), "--wandb", "curves", "--json"]
    assert main(words) == 0
    (key,) = service.runs
    assert (tmp_path / "runs" / key).is_dir()  # the run's own id
    assert len(service.runs[key]) == 5
    assert set(service.summaries[key]) >= {"kept/test", "kept/validation", "kept/epoch"}
    assert service.opened[0]["config"]["model"]["options"] == {"channels": 2, "steps": 3}
    assert str(tmp_path) not in repr(service.opened)
    assert main(words) == 0
    assert len(service.opened) == 1
    assert service.open == 0
    capsys.readouterr()
    for name in ("", "/curves", "me/"):
        assert main([*WORDS, "--wandb", name]) == 2 or name == ""
    assert "ENTITY/PROJECT" in capsys.readouterr().err


def test_wandb_in_offline_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The package itself, where it is installed."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main([*WORDS, "--out", "runs", "--wandb", "curves", "--json"]) == 0
    (run,) = (tmp_path / "runs").glob("*/record.json")
    (file,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{run.parent.name}.wandb")
    content = file.read_bytes()
    assert b"validation" in content
    assert b"kept/test" in content


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for name in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    for flag, extra in (("--wandb", "wandb"), ("--tensorboard", "tensorboard")):
        assert main([*WORDS, flag, str(tmp_path / "x")]) == 2
        said = capsys.readouterr().err
        assert f"{flag} needs the package {extra}" in said
        assert f"sheafdeq[{extra}]" in said
        assert said.count("\n") == 1
