"""Interval matrices known by their weighted row sums, and sums of intervals over edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafdeq.certificates.interval import EPSILON, Interval, scaled_up

__all__ = ["EdgeSum", "Slope", "choose", "mean_value", "scaled_by_inverse", "stacked"]


@dataclass(frozen=True, eq=False)
class Slope:
    """All matrices M (batch, m, c) with sum_j |M_ij - midpoint_ij| w_j <= spread_i."""

    midpoint: Tensor  # (k, m, c)
    spread: Tensor  # (k, m)
    weights: Tensor  # (k, c)

    @cached_property
    def size(self) -> Tensor:
        """(k, m) upper bound of |midpoint| w."""
        return scaled_up(
            torch.bmm(self.midpoint.abs(), self.weights.unsqueeze(2)).squeeze(2),
            self.weights.shape[1],
        )

    @property
    def reach(self) -> Tensor:
        """(k, m) upper bound of |M| w."""
        return scaled_up(self.size + self.spread, 2)

    def times(self, left: Interval) -> Slope:
        """L M for an interval matrix L (k, l, m)."""
        k = left.shape[-1]
        vector = self.spread + self.size * ((k + 4) * EPSILON)
        spread = torch.bmm(left.midpoint.abs(), vector.unsqueeze(2)) + torch.bmm(
            left.radius, self.reach.unsqueeze(2)
        )
        return Slope(
            torch.bmm(left.midpoint, self.midpoint),
            scaled_up(spread.squeeze(2), 2 * k + 8),
            self.weights,
        )

    def __getitem__(self, index: Tensor) -> Slope:
        return Slope(self.midpoint[index], self.spread[index], self.weights[index])

    def rows(self, part: slice) -> Slope:
        """Some of the m rows."""
        return Slope(self.midpoint[:, part], self.spread[:, part], self.weights)

    @staticmethod
    def of(matrix: Interval, weights: Tensor) -> Slope:
        """From an interval matrix (k, m, c)."""
        spread = torch.bmm(matrix.radius, weights.unsqueeze(2)).squeeze(2)
        return Slope(matrix.midpoint, scaled_up(spread, weights.shape[1]), weights)


@dataclass(frozen=True, eq=False)
class EdgeSum:
    """Edge intervals added up at their targets; every term brings its share of the rounding of at
    most ``terms`` additions."""

    total: Tensor
    radius: Tensor
    terms: int

    def add(self, target: Tensor, values: Interval) -> None:
        """Add edge values at their targets."""
        self.total.index_add_(0, target, values.midpoint)
        self.radius.index_add_(
            0, target, values.radius + (self.terms + 4) * EPSILON * values.midpoint.abs()
        )

    @property
    def interval(self) -> Interval:
        """The sums, rounding included."""
        return Interval(self.total, scaled_up(self.radius, 2 * self.terms))


def mean_value(middle: Interval, reach: Tensor, radius: float) -> Interval:
    """Value at the centre plus weighted slope bound times the radius of the box."""
    return Interval(middle.midpoint, scaled_up(middle.radius + reach * radius, 8))


def choose(condition: Tensor, yes: Interval, no: Interval) -> Interval:
    """Entry by entry."""
    return Interval(
        torch.where(condition, yes.midpoint, no.midpoint),
        torch.where(condition, yes.radius, no.radius),
    )


def stacked(parts: list[Slope]) -> Slope:
    """Rows of several slopes in the same variables."""
    return Slope(
        torch.cat([p.midpoint for p in parts], 1),
        torch.cat([p.spread for p in parts], 1),
        parts[0].weights,
    )


def scaled_by_inverse(x: Interval, divisor: Tensor) -> Interval:
    """x / divisor, for positive floats."""
    midpoint = x.midpoint / divisor
    return Interval(midpoint, scaled_up(x.radius / divisor + EPSILON * midpoint.abs(), 4))
