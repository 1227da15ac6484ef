"""Solving in full precision inside an autocast region.

An equilibrium is judged by residuals of 1e-6; bfloat16 resolves 1e-2. So a model leaves autocast
at its door, whatever surrounds it, and returns float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["autocasting", "full_precision"]


def autocasting(device: torch.device) -> bool:
    """Whether an autocast region is open for this kind of device."""
    return torch.is_autocast_enabled(device.type)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast inside."""
    if not autocasting(device):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield
