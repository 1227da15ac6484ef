"""The doors, and what is thrown at them. A target takes a random source and an empty folder, and
does what a user would.

Most inputs begin as valid ones and are then damaged in a few places, because nonsense is refused at
the first byte and finds nothing. Damaged records and checkpoints are sealed again: an attacker can
compute a SHA-256 too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from sheafdeq.fuzzing.command_targets import commands, configurations, options
from sheafdeq.fuzzing.data_targets import cache, csv, npz, pickles
from sheafdeq.fuzzing.native_targets import layouts, native
from sheafdeq.fuzzing.record_targets import checkpoints, figures, records

__all__ = ["PREPARED_TARGETS", "TARGETS", "Target"]


Target = Callable[[Random, Path], None]

TARGETS: dict[str, Target] = {
    "npz": npz,
    "csv": csv,
    "pickle": pickles,
    "cache": cache,
    "record": records,
    "figure": figures,
    "checkpoint": checkpoints,
    "configuration": configurations,
    "options": options,
    "command": commands,
    "native": native,
    "layout": layouts,
}
"""Every door by name."""

PREPARED_TARGETS = {"record", "figure", "checkpoint", "command"}
"""Those that damage what :func:`prepare` made."""
