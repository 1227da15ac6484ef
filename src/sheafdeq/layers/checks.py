"""Checks that the constructors of several models share."""

from __future__ import annotations

from typing import Any

from sheafdeq.errors import InputError

__all__ = ["checked_dropout", "checked_positive"]


def checked_positive(**sizes: Any) -> None:
    """Raise unless every named size is a positive integer."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a positive integer, got {value!r}")


def checked_dropout(dropout: float, name: str = "dropout") -> float:
    """A probability below one."""
    if not 0.0 <= float(dropout) < 1.0:
        raise InputError(f"{name} must be in [0, 1), got {dropout!r}")
    return float(dropout)
