"""Scalar functions of intervals that the guaranteed models use, rounded outward."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.predictions.arithmetic import EPSILON, Interval

__all__ = ["positive_part", "sigmoid", "softplus"]

SLACK = 32 * EPSILON
"""Relative; exp, log1p and a division, each within 8 * 2^-52."""


def sigmoid(x: Interval) -> Interval:
    """1 / (1 + e^-x), increasing."""
    low, high = torch.sigmoid(x.lower) * (1 - SLACK), torch.sigmoid(x.upper) * (1 + SLACK)
    return Interval.between(low.clamp(min=0), high.clamp(max=1))


def softplus(x: Interval) -> Interval:
    """log(1 + e^x), increasing; the library takes x itself above 20, which is enclosed too."""

    def value(t: Tensor) -> Tensor:
        return t.clamp(min=0) + torch.log1p(torch.exp(-t.abs()))

    low = torch.minimum(value(x.lower), torch.where(x.lower > 20, x.lower, torch.inf))
    return Interval.between((low * (1 - SLACK)).clamp(min=0), value(x.upper) * (1 + SLACK))


def positive_part(x: Interval, sign: int = 1) -> Interval:
    """max(x, 0), or max(-x, 0) with ``sign=-1``."""
    return (x if sign > 0 else -x).relu()
