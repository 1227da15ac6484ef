r"""LayerNorm over a box of rows: its value at the centre and its Jacobian anywhere in the box.

    x^ = (x - mean x) / s,  s = sqrt(var x + eps),  z = gamma x^ + b,
    dz_i / dx_j = gamma_i (delta_ij - 1/c - x^_i x^_j / c) / s.

Over |x - centre| <= rad (entrywise):  |x^|_2 <= sqrt(c)  gives  |ds| <= |x^ . dx| / c <= |rad|_2 /
sqrt(c),  and the matrix in brackets has norm at most one, so  |dx^|_2 <= |rad|_2 / min s  and

    |dx^_i| <= (rad_i + mean rad + sup|x^_i| |rad|_2 / sqrt(c)) / min s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.predictions.arithmetic import Interval, contract, divided, mean_value, scaled_up

__all__ = ["LARGEST_ROW", "NormalisedRows", "normalised_rows"]

LARGEST_ROW = 2.0**39
"""Models rescale rows beyond 2^40 before a LayerNorm; below, the formula here is theirs."""


@dataclass(frozen=True, eq=False)
class NormalisedRows:
    """LayerNorm of (n, c) rows in a box."""

    centre: Interval  # (n, c) z at the centre
    jacobian: Interval  # (n, c, c) dz / dx anywhere in the box


def normalised_rows(x: Interval, radius: Tensor, norm: nn.LayerNorm) -> NormalisedRows:
    """``x`` (n, c) holds the centre (up to rounding), ``radius`` (n, c) how far rows reach from it.

    Raises ``ArithmeticError`` where the box is too wide to bound the spread of a row away from
    zero, or where rows are beyond :data:`LARGEST_ROW`.
    """
    c = x.shape[1]
    if not bool(((x.magnitude + radius) < LARGEST_ROW).all()):
        raise ArithmeticError(
            f"rows beyond {LARGEST_ROW:g} are rescaled before they are normalised"
        )
    gamma, bias = norm.weight.detach(), norm.bias.detach()
    mean = divided(x.total(1), float(c))
    deviation = x - mean.map(lambda t: t.unsqueeze(1).expand(-1, c))
    variance = divided(deviation.square().total(1), float(c))
    eps = torch.full_like(variance.midpoint, norm.eps)
    spread = (variance + Interval.point(eps)).sqrt()  # (n,) s
    column = spread.map(lambda t: t.unsqueeze(1).expand(-1, c))
    unit = deviation.divide_by_positive(column)
    centre = unit.scale(gamma) + Interval.point(bias.expand_as(unit.midpoint))

    width = scaled_up(x.radius + radius, 2)
    length = scaled_up(torch.linalg.vector_norm(width, dim=1), 2 * c)  # (n,) |rad|_2
    share = scaled_up(length / math.sqrt(c), 4)
    least = spread.lower - scaled_up(share, 2)
    least = least - 4e-16 * least.abs()
    if not bool((least > 0).all()):
        raise ArithmeticError("the box is wider than the rows that a LayerNorm divides by")
    largest = scaled_up(unit.magnitude + (length / least).unsqueeze(1), 4)
    change = width + scaled_up(width.mean(1), c).unsqueeze(1) + largest * share.unsqueeze(1)
    box = mean_value(unit, scaled_up(change / least.unsqueeze(1), 8))
    outer = divided(contract("ni,nj->nij", box, box), float(c))
    eye = torch.eye(c, dtype=gamma.dtype)
    # 1/c is rounded; the widening of the difference covers it.
    bracket = Interval.point((eye - 1.0 / c).expand_as(outer.midpoint)) - outer
    bracket = Interval(bracket.midpoint, scaled_up(bracket.radius + 2.0**-52, 2))
    most = scaled_up(spread.upper + share, 2)
    jacobian = bracket.divide_between(
        least.view(-1, 1, 1).expand_as(outer.midpoint),
        most.view(-1, 1, 1).expand_as(outer.midpoint),
    )
    return NormalisedRows(centre, jacobian.scale(gamma.view(1, c, 1).expand_as(outer.midpoint)))
