"""Graph neural networks that settle: sheaf equilibria, solvers, certificates and asynchronous inference.

The names most people need are here; see ``docs/flow.md`` for how the parts fit together.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sheafdeq")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
