"""The state of a run in progress: saved so that a crash leaves the old one or the new, and read
back."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch

from sheafdeq.errors import RecordError
from sheafdeq.records import read_sealed, write_sealed
from sheafdeq.tensor_files import load_tensors, save_tensors
from sheafdeq.training.loop import Trainer
from sheafdeq.training.store import RunStore

__all__ = ["STATE_FILE", "Clock", "StateWarning", "save_state", "saved_state"]


STATE_FILE = "state.json"


class StateWarning(UserWarning):
    """The saved state of a run in progress is damaged: the run starts over."""


class Clock:
    """Wall and CPU seconds, over all attempts."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic(), time.process_time()
        self.spent = {"wall_seconds": 0.0, "cpu_seconds": 0.0}

    def total(self) -> dict[str, float]:
        """Rounded, for the record."""
        return {
            "wall_seconds": round(self.spent["wall_seconds"] + time.monotonic() - self.wall, 3),
            "cpu_seconds": round(self.spent["cpu_seconds"] + time.process_time() - self.cpu, 3),
        }


def save_state(trainer: Trainer, store: RunStore, work: Path, clock: Clock) -> None:
    """Write the state so that a crash at any moment leaves the old or the new one complete."""
    store.folder(work.parent.name)
    tensors, values = trainer.state()
    name = f"state-{trainer.epoch}.safetensors"
    with store.guarded():
        work.mkdir(exist_ok=True)
        digest = save_tensors(work / name, tensors)
        write_sealed(
            work / STATE_FILE,
            {"tensors": name, "sha256": digest, "values": values, "spent": clock.total()},
        )
        for other in work.iterdir():
            if other.name not in (name, STATE_FILE):
                other.unlink(missing_ok=True)


def saved_state(
    work: Path,
) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, float]] | None:
    """Tensors, values and seconds spent of the saved state; None without one, or (with a warning)
    with a damaged one.

    Starting over gives the same result, so a damaged state costs time alone.
    """
    if not (work / STATE_FILE).is_file():
        return None
    try:
        state = read_sealed(work / STATE_FILE)
        tensors = load_tensors(work / Path(state["tensors"]).name, state["sha256"])
        return tensors, state["values"], state["spent"]
    except (RecordError, KeyError, TypeError) as error:
        warnings.warn(
            f"the saved state of the run is damaged, so it starts over: {error}",
            StateWarning,
            stacklevel=2,
        )
        return None
