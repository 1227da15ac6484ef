"""Sound sums and products of interval tensors, beyond what :class:`Interval` itself offers.

Every function returns an enclosure of the exact result for all members of its operands, with the
rounding of float64 included (the rules are those of :mod:`sheafdeq.certificates.interval`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.certificates.interval import EPSILON, TINY, Interval, scaled_up
from sheafdeq.certificates.slope import Slope

__all__ = [
    "EPSILON",
    "Interval",
    "Slope",
    "added",
    "contract",
    "divided",
    "down",
    "gathered",
    "mean_value",
    "rows_scaled",
    "scaled_up",
    "up",
]


def up(x: Tensor, terms: int = 0) -> Tensor:
    """Above the exact value of a float64 result with ``terms`` rounded additions, of any sign."""
    return x + (x.abs() * ((terms + 4) * EPSILON) + TINY)


def down(x: Tensor, terms: int = 0) -> Tensor:
    """Below the exact value of a float64 result of *nonnegative* terms; never below zero."""
    return (x * (1.0 - (terms + 4) * EPSILON) - TINY).clamp(min=0)


def _halves(x: Interval | Tensor) -> tuple[Tensor, Tensor | None]:
    return (x.midpoint, x.radius) if isinstance(x, Interval) else (x, None)


def contract(equation: str, a: Interval | Tensor, b: Interval | Tensor) -> Interval:
    """``torch.einsum`` of two factors, each exact or an interval.

    midpoint = A B,  radius = |A| (rad B + g |B|) + rad A (|B| + rad B),  g = (k + 4) 2^-52, with k
    the number of products in one sum.
    """
    (a_mid, a_rad), (b_mid, b_rad) = _halves(a), _halves(b)
    inputs, output = equation.split("->")
    sizes: dict[str, int] = {}
    for names, tensor in zip(inputs.split(","), (a_mid, b_mid), strict=True):
        sizes.update(zip(names, tensor.shape, strict=True))
    terms = 1
    for name, size in sizes.items():
        terms *= 1 if name in output else size
    b_abs = b_mid.abs()
    b_wide = b_abs * ((terms + 4) * EPSILON)
    if b_rad is not None:
        b_wide = b_wide + b_rad
    radius = torch.einsum(equation, a_mid.abs(), b_wide)
    if a_rad is not None:
        radius = radius + torch.einsum(equation, a_rad, b_abs if b_rad is None else b_abs + b_rad)
    return Interval(torch.einsum(equation, a_mid, b_mid), scaled_up(radius, 2 * terms + 8))


def divided(x: Interval, divisor: Tensor | float) -> Interval:
    """x / divisor for an exact positive divisor."""
    midpoint = x.midpoint / divisor
    return Interval(midpoint, scaled_up(x.radius / divisor + EPSILON * midpoint.abs(), 4))


def gathered(values: Interval, target: Tensor, count: int, terms: int) -> Interval:
    """(k, ...) -> (count, ...): intervals added up at ``target``, at most ``terms`` each."""
    shape = (count, *values.shape[1:])
    midpoint, radius = values.midpoint.new_zeros(shape), values.midpoint.new_zeros(shape)
    midpoint.index_add_(0, target, values.midpoint)
    wide = values.radius + (terms + 4) * EPSILON * values.midpoint.abs()
    radius.index_add_(0, target, wide)
    return Interval(midpoint, scaled_up(radius, 2 * terms))


def mean_value(centre: Interval, reach: Tensor) -> Interval:
    """Value at the centre plus what the variables can change it by."""
    return Interval(centre.midpoint, scaled_up(centre.radius + reach, 4))


def added(a: Slope, b: Slope) -> Slope:
    """The sum of two slopes of the same variables."""
    rounding = EPSILON * (a.size + b.size)
    spread = scaled_up(a.spread + b.spread + rounding, 4)
    return Slope(a.midpoint + b.midpoint, spread, a.weights)


def rows_scaled(slope: Slope, factor: Interval) -> Slope:
    """diag(factor) M for an interval ``factor`` (k, m) on the rows of M (k, m, variables)."""
    size = factor.midpoint.abs()
    spread = (slope.spread + 4 * EPSILON * slope.size) * size + factor.radius * slope.reach
    return Slope(slope.midpoint * factor.midpoint.unsqueeze(2), scaled_up(spread, 6), slope.weights)
