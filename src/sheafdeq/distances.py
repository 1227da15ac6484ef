"""Distances between two states, one value for each node.

A distance takes ``(new, old)``, both ``(n, c)``, and returns ``(n,)``. It is not always a norm of the difference
(Thompson's is not), and asynchronous theory wants block maxima, so nothing is reduced over nodes here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.errors import InputError

__all__ = ["DISTANCES", "EUCLIDEAN", "RELATIVE_SUP", "SUP", "THOMPSON", "Distance", "distance_by_name"]

EPSILON = 1e-12  # keeps the relative distance of a zero row finite


@dataclass(frozen=True)
class Distance:
    """A named per-node distance; call it with ``(new, old)``."""

    name: str
    measure: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, new: Tensor, old: Tensor) -> Tensor:
        """(n, c), (n, c) -> (n,)."""
        return self.measure(new, old)

    def __repr__(self) -> str:
        return f"Distance({self.name})"


def _row_max(values: Tensor) -> Tensor:
    return values.amax(dim=1) if values.shape[1] else values.new_zeros(values.shape[0])


def _sup(new: Tensor, old: Tensor) -> Tensor:
    return _row_max((new - old).abs())


def _relative_sup(new: Tensor, old: Tensor) -> Tensor:
    return _sup(new, old) / (_row_max(old.abs()) + EPSILON)


def _euclidean(new: Tensor, old: Tensor) -> Tensor:
    return torch.linalg.vector_norm(new - old, dim=1)


def _thompson(new: Tensor, old: Tensor) -> Tensor:
    # Outside the open positive cone the metric is not defined: infinity, never a silent number.
    inside = ((new > 0) & (old > 0)).all(dim=1)
    values = _row_max((new.clamp(min=1e-300).log() - old.clamp(min=1e-300).log()).abs())
    return torch.where(inside, values, torch.full_like(values, torch.inf))


SUP = Distance("sup", _sup)
"""||new - old||_inf of every row."""
RELATIVE_SUP = Distance("relative-sup", _relative_sup)
"""||new - old||_inf / (||old||_inf + eps): the paper's rho before its maximum over nodes."""
EUCLIDEAN = Distance("euclidean", _euclidean)
"""||new - old||_2 of every row."""
THOMPSON = Distance("thompson", _thompson)
"""||log new - log old||_inf of every row, infinite unless both rows are strictly positive."""

DISTANCES = {d.name: d for d in (SUP, RELATIVE_SUP, EUCLIDEAN, THOMPSON)}


def distance_by_name(name: str | Distance) -> Distance:
    """Look a distance up by its name; a :class:`Distance` passes through."""
    if isinstance(name, Distance):
        return name
    if name not in DISTANCES:
        raise InputError(f"unknown distance {name!r}: choose one of {', '.join(sorted(DISTANCES))}")
    return DISTANCES[name]
