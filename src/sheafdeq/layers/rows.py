"""Rows of any size a float can hold, brought to a size whose squares and sums it can hold, too.

Scaling is by powers of two, so that no bit of a normalised row changes; it only keeps squares from
overflowing (above 1e19 in float32) or vanishing (below 1e-23), where a guaranteed model must still
start from *every* positive state.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["bounded_rows", "scaled_rows", "unit_rows"]

BOUND_EXPONENT = 40
"""Rows are left alone by :func:`bounded_rows` up to 2^40 (1e12)."""


def scaled_rows(rows: Tensor) -> Tensor:
    """``rows`` (..., c) times a power of two each, with largest entries in [1/2, 1) (zero and
    non-finite rows as they are)."""
    return _times_power_of_two(rows, -_exponent(rows))


def bounded_rows(rows: Tensor) -> Tensor:
    """``rows`` with those beyond 2^40 scaled down to it: for what is scale invariant there, such as
    a LayerNorm, whose own eps is nothing beside such a variance."""
    return _times_power_of_two(rows, (BOUND_EXPONENT - _exponent(rows)).clamp(max=0))


def unit_rows(rows: Tensor) -> Tensor:
    """Rows (n, c) at unit Euclidean norm."""
    rows = scaled_rows(rows)
    result: Tensor = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return result


def _exponent(rows: Tensor) -> Tensor:
    """k with the largest entry of each row in [2^(k-1), 2^k)."""
    if not rows.shape[-1]:
        return torch.zeros((*rows.shape[:-1], 1), dtype=torch.int32, device=rows.device)
    return torch.frexp(rows.detach().abs().amax(-1, keepdim=True)).exponent


def _times_power_of_two(rows: Tensor, exponent: Tensor) -> Tensor:
    # In two factors: one alone would leave the range of floats where the exponent of a tiny number
    # is turned round.
    half = torch.div(exponent, 2, rounding_mode="floor")
    one = torch.ones(exponent.shape, dtype=rows.dtype, device=rows.device)
    return rows * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)
