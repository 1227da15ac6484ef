"""The machine a number was measured on, for the record."""

from __future__ import annotations

import contextlib
import platform
import sys
from functools import cache
from pathlib import Path

try:
    import resource
except ImportError:  # pragma: no cover - Windows
    resource = None  # type: ignore[assignment]

__all__ = ["peak_memory", "processor_name"]


@cache
def processor_name() -> str:
    """The model of the processor where the system tells it, else its kind."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def peak_memory() -> int | None:
    """Largest resident size of this process so far, in bytes, where the system tells."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
