"""Training: configurations, runs that resume bit for bit, a run store, sweeps and selection.

Names are loaded on first use, so that reading records does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "TrainingConfig": "config",
    "EpochMetrics": "loop",
    "Trainer": "loop",
    "TrainingError": "loop",
    "evaluate": "loop",
    "load_model": "checkpoint",
    "RunResult": "run",
    "Suspended": "interrupt",
    "identify": "run_identity",
    "train": "run",
    "RunStore": "store",
    "Sweep": "sweep",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
