"""Distances between two states, one value for each node.

A distance takes ``(new, old)``, both ``(n, c)``, and returns ``(n,)``. It is not always a norm of
the difference (Thompson's is not), and asynchronous theory wants block maxima, so nothing is
reduced over nodes here.

A distance that decides convergence must see every entry. ``relative-sup`` (the paper's) does not:
one entry of 1e8 in a row hides every change below 1e2 in the others. Models with positive states
are judged by ``thompson``, all others by ``relative-entry``, unless their solver names another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.errors import InputError

__all__ = [
    "DISTANCES",
    "EUCLIDEAN",
    "RELATIVE_ENTRY",
    "RELATIVE_SUP",
    "SUP",
    "THOMPSON",
    "Distance",
    "distance_by_name",
    "resolution",
]

EPSILON = 1e-12  # keeps the relative distance of a zero row finite


@dataclass(frozen=True)
class Distance:
    """A named per-node distance; call it with ``(new, old)``."""

    name: str
    measure: Callable[[Tensor, Tensor], Tensor]
    # whether it compares with the state; if not, rounding errors grow with the state
    relative: bool = True

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


def _relative_entry(new: Tensor, old: Tensor) -> Tensor:
    # An entry is compared with itself, or with the row where that is smaller than one: a row of
    # small numbers keeps a relative measure, and a large entry hides no other.
    floor = _row_max(old.abs()).clamp(max=1.0).unsqueeze(1) + EPSILON
    return _row_max((new - old).abs() / torch.maximum(old.abs(), floor))


def _euclidean(new: Tensor, old: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(new - old, dim=1)
    return result


def _thompson(new: Tensor, old: Tensor) -> Tensor:
    # log(new / old) by log1p of the relative change, which loses nothing where the two are close;
    # by logarithms where they are far
    change = (new - old) / old
    # The logarithm rises, so the extremes of a row decide; and a positive state is known by its
    # least entry. Entry by entry this took longer than the step that was judged.
    if change.numel() and bool((new.min() > 0) & (old.min() > 0)):
        low, high = change.amin(dim=1), change.amax(dim=1)
        if bool((low.min() > -0.5) & (high.max() < 0.5)):
            return torch.maximum(torch.log1p(low).abs(), torch.log1p(high).abs())
    # Outside the open positive cone the metric is not defined: infinity, never a silent number.
    inside = ((new > 0) & (old > 0)).all(dim=1)
    logarithms = torch.log1p(change.clamp(-0.5, 0.5))
    far = ~(change.abs() < 0.5)
    if bool(far.any()):
        logarithms = torch.where(far, new.log() - old.log(), logarithms)
    values = _row_max(logarithms.abs())
    return torch.where(inside, values, torch.full_like(values, torch.inf))


SUP = Distance("sup", _sup, relative=False)
"""||new - old||_inf of every row."""
RELATIVE_SUP = Distance("relative-sup", _relative_sup)
"""||new - old||_inf / (||old||_inf + eps): the paper's rho before its maximum over nodes."""
RELATIVE_ENTRY = Distance("relative-entry", _relative_entry)
"""max_j |new_j - old_j| / max(|old_j|, min(1, ||old||_inf)) of every row: each entry against
itself, with a floor. At least ``relative-sup`` everywhere, so a tolerance met here is met there."""
EUCLIDEAN = Distance("euclidean", _euclidean, relative=False)
"""||new - old||_2 of every row."""
THOMPSON = Distance("thompson", _thompson)
"""||log new - log old||_inf of every row, infinite unless both rows are strictly positive."""

DISTANCES = {d.name: d for d in (SUP, RELATIVE_SUP, RELATIVE_ENTRY, EUCLIDEAN, THOMPSON)}

ROUNDINGS = 64
"""Units in the last place that a step may lose to rounding: what was observed of models of this
package in float32, judged in float64, stays below (``tests/solvers/test_truth.py``)."""


def resolution(dtype: torch.dtype) -> float:
    """The residual that a step computed in ``dtype`` can still tell from zero: 64 eps, 7.6e-06 in
    float32, 1.4e-14 in float64.

    A smaller tolerance is not a promise that can be kept: solvers stop where it was asked for and
    judge by this instead.
    """
    return ROUNDINGS * float(torch.finfo(dtype).eps)


def distance_by_name(name: str | Distance) -> Distance:
    """Look a distance up by its name; a :class:`Distance` passes through."""
    if isinstance(name, Distance):
        return name
    if name not in DISTANCES:
        raise InputError(f"unknown distance {name!r}: choose one of {', '.join(sorted(DISTANCES))}")
    return DISTANCES[name]
