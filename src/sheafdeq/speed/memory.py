"""Memory of a training pass, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from sheafdeq.machine import peak_memory
from sheafdeq.speed.work import Work, community_batch

__all__ = [
    "high_water",
    "in_child",
    "memory_in_child",
    "memory_of",
]


def memory_in_child(name: str, quick: bool) -> int:
    """Peak memory of one training pass beyond what was held before it, in a process of its own."""
    return int(in_child(name, quick)["bytes"])


def in_child(name: str, quick: bool) -> dict[str, Any]:
    """What a process of its own measures."""
    command = [
        sys.executable,
        "-m",
        "sheafdeq",
        "bench",
        "--measure",
        name,
        *(["--quick"] if quick else []),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def memory_of(name: str, quick: bool) -> dict[str, int]:
    """The measurement of :func:`memory_in_child`, in the process it is about."""
    torch.set_num_threads(1)
    work = Work(community_batch(quick))
    step = work.step(name)
    with torch.no_grad():
        step(work.state, work.drive)  # load code and build the layout before the measurement starts
    _reset_high_water()
    held = _resident()
    work.training_pass(name)
    return {"bytes": max(high_water() - held, 0)}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def _resident() -> int:
    try:
        return _status("VmRSS")
    except (OSError, KeyError):
        return high_water()


def high_water() -> int:
    """Largest resident size since it was reset, in bytes; since the start where it cannot be."""
    try:
        return _status("VmHWM")
    except (OSError, KeyError):
        return peak_memory() or 0


def _reset_high_water() -> None:
    # where it cannot be reset, the peak includes start-up, which is the same for every row
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
