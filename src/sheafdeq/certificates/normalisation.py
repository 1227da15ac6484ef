"""Enclosures of the two normalisations of a SheafDEQ: rows by their p-norm, maps by their Frobenius
norm."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.certificates.interval import EPSILON, Interval
from sheafdeq.errors import InputError
from sheafdeq.ops.native_module import NORM_FLOOR

__all__ = ["jumps_inside", "normalised_rows", "unit_map", "unit_map_slope"]


def normalised_rows(rows: Interval, order: float) -> tuple[Interval, Interval]:
    """z = h / ||h||_p of positive rows (n, d, q), and t = z^p; each entry is monotone in every h,
    so the ends are exact."""
    low, high = rows.lower, rows.upper
    if not bool((low > NORM_FLOOR).all()):
        raise InputError(
            f"the box reaches {float(low.min()):.3g}: enclosures need states above {NORM_FLOOR:g}"
        )
    q = low.shape[-1]
    if order == float("inf"):
        others_low, others_high = _largest_other(low), _largest_other(high)
        z = Interval.between(
            (low / torch.maximum(low, others_high)) * (1 - 4 * EPSILON),
            (high / torch.maximum(high, others_low)).mul(1 + 4 * EPSILON).clamp(max=1.0),
        )
        share = Interval.between(
            (low > others_high).to(low.dtype), (high >= others_low).to(low.dtype)
        )
        return z, share
    others = torch.ones(q, q, dtype=low.dtype) - torch.eye(q, dtype=low.dtype)
    powers = rows.power(order)
    power_low, power_high = powers.lower, powers.upper
    rest_low = (power_low @ others) * (1 - (q + 4) * EPSILON)
    rest_high = (power_high @ others) * (1 + (q + 4) * EPSILON)
    share = Interval.between(
        (power_low / (power_low + rest_high)) * (1 - 8 * EPSILON),
        ((power_high / (power_high + rest_low)) * (1 + 8 * EPSILON)).clamp(max=1.0),
    )
    root = share.root(order)
    return Interval.between(root.lower.clamp(min=0), root.upper.clamp(max=1.0)), share


def _largest_other(values: Tensor) -> Tensor:
    """For every entry of the last axis the largest of the others (0 when there is none)."""
    if values.shape[-1] == 1:
        return torch.zeros_like(values)
    top = values.topk(2, dim=-1)
    first = torch.arange(values.shape[-1]) == top.indices[..., :1]
    return torch.where(first, top.values[..., 1:2], top.values[..., :1])


def _norm(raw: Interval) -> Interval:
    """(k, 1) ||A||_F."""
    return raw.square().total(1).sqrt().view(-1, 1)


def jumps_inside(raw: Interval) -> Tensor:
    """(k,) whether the norm may be on either side of the guard within the box."""
    norm = _norm(raw).view(-1)
    return (norm.lower < NORM_FLOOR * (1 + 1e-9)) & (norm.upper > NORM_FLOOR * (1 - 1e-9))


def _silent(raw: Interval) -> Tensor:
    """(k, 1) whether the map is zero on the whole box."""
    return _norm(raw).upper <= NORM_FLOOR * (1 - 1e-9)


def unit_map(raw: Interval) -> Interval:
    """F = A / ||A||_F, zero below the guard: the exact range of every entry, given the ranges of
    all.

    A_a / sqrt(A_a^2 + r) increases in A_a; it falls with r where A_a > 0 and grows where A_a < 0.
    """
    size = raw.shape[1]
    others = torch.ones(size, size, dtype=raw.midpoint.dtype) - torch.eye(
        size, dtype=raw.midpoint.dtype
    )
    rest_low = (raw.mignitude.square() @ others) * (1 - (size + 8) * EPSILON)
    rest_high = (raw.magnitude.square() @ others) * (1 + (size + 8) * EPSILON)
    low, high = raw.lower, raw.upper

    def quotient(value: Tensor, rest: Tensor) -> Tensor:
        return value / (value.square() + rest).sqrt().clamp(min=0.5 * NORM_FLOOR)

    lower = torch.where(low >= 0, quotient(low, rest_high), quotient(low, rest_low))
    upper = torch.where(high >= 0, quotient(high, rest_low), quotient(high, rest_high))
    slack = 16 * EPSILON
    lower = (lower - slack * lower.abs()).clamp(min=-1.0, max=1.0)
    upper = (upper + slack * upper.abs()).clamp(min=-1.0, max=1.0)
    jumps, silent = jumps_inside(raw).unsqueeze(1), _silent(raw)
    lower = torch.where(jumps, lower.clamp(max=0), lower).masked_fill(silent, 0.0)
    upper = torch.where(jumps, upper.clamp(min=0), upper).masked_fill(silent, 0.0)
    return Interval.between(lower, upper)


def unit_map_slope(raw: Interval, unit: Interval) -> Interval:
    """(k, m, m) the derivative (I - F F^T) / ||A||_F of the normalisation, zero where the map
    is."""
    size = raw.shape[1]
    eye = Interval.point(
        torch.eye(size, dtype=raw.midpoint.dtype).expand(len(raw.midpoint), size, size)
    )
    outer = unit.map(lambda t: t.unsqueeze(2)) * unit.map(lambda t: t.unsqueeze(1))
    diagonal = torch.eye(size, dtype=torch.bool)
    squares = unit.square()
    outer = Interval(
        torch.where(diagonal, torch.diag_embed(squares.midpoint), outer.midpoint),
        torch.where(diagonal, torch.diag_embed(squares.radius), outer.radius),
    )
    norm = _norm(raw)
    least, most = (
        norm.lower.clamp(min=0.5 * NORM_FLOOR).view(-1, 1, 1),
        norm.upper.clamp(min=NORM_FLOOR).view(-1, 1, 1),
    )
    silent = _silent(raw).unsqueeze(2)
    return (eye - outer).divide_between(least, most).map(lambda t: t.masked_fill(silent, 0.0))
