"""Graph neural networks that settle: sheaf equilibria, solvers, certificates and asynchronous
inference.

The names most people need are here; see ``docs/flow.md`` for how the parts fit together.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("sheafdeq")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

_HOME = {  # loaded on first use, so that the command line answers at once
    "Anderson": "solvers",
    "CellularSheaf": "layers",
    "Graph": "data",
    "Picard": "solvers",
    "SheafDEQ": "models",
    "SheafOperator": "layers",
    "Solution": "solvers",
    "Status": "solvers",
    "load_task": "data",
}

__all__ = ["__version__", *sorted(_HOME)]  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sheafdeq' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sheafdeq.{_HOME[name]}"), name)
