r"""Restriction maps that are softly normalised, over a box: values and slopes.

    s = hidden of the edge,  A = M relu(s) + m  (two maps of d*d entries),
    F = A / sqrt(|A|^2 + eps^2),
    dF = (I - F F^T) / sqrt(|A|^2 + eps^2)  dA,      dA = M [s > 0] ds.

Entry a of F grows with A_a, falls with the sum of the other squares where A_a > 0 and grows with it
where A_a < 0: the range of every entry, given the ranges of all, is exact. It is intersected with
the mean value form (value at the centre plus slope bound).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.certificates.interval import EPSILON, Interval, scaled_up
from sheafdeq.certificates.slope import Slope
from sheafdeq.predictions.arithmetic import contract, mean_value

__all__ = ["EdgeMaps", "edge_maps"]


@dataclass(frozen=True, eq=False)
class EdgeMaps:
    """Source and target map of k edges, (k, 2, d, d), and their slopes (k, 2 d d, variables)."""

    centre: Interval
    box: Interval
    by_source: Slope
    by_target: Slope


def edge_maps(
    hidden: Interval,
    by_source: Slope,
    by_target: Slope,
    weight: Tensor,
    bias: Tensor,
    softening: float,
) -> EdgeMaps:
    """From the hidden layer: its value at the centre (k, h) and its slopes (k, h, variables)."""
    k, size = hidden.shape[0], weight.shape[0] // 2
    d = round(size**0.5)
    reach = scaled_up(by_source.reach + by_target.reach, 2)
    active = mean_value(hidden, reach).step_function()
    raw = contract("kh,oh->ko", hidden.relu(), weight) + Interval.point(bias.expand(k, -1))
    open_gates = active.map(lambda t: t.unsqueeze(1)).scale(weight.unsqueeze(0))  # (k, 2 d d, h)
    to_source, to_target = by_source.times(open_gates), by_target.times(open_gates)
    raw_box = mean_value(raw, scaled_up(to_source.reach + to_target.reach, 2))
    centres, boxes, brackets = [], [], []
    for part in (slice(0, size), slice(size, 2 * size)):
        centres.append(_unit(raw[:, part], softening))
        boxes.append(_unit(raw_box[:, part], softening))
        brackets.append(_projection(raw_box[:, part], boxes[-1], softening))
    slopes = []
    for slope in (to_source, to_target):
        halves = [
            slope.rows(part).times(bracket)
            for part, bracket in zip((slice(0, size), slice(size, 2 * size)), brackets, strict=True)
        ]
        slopes.append(
            Slope(
                torch.cat([half.midpoint for half in halves], 1),
                torch.cat([half.spread for half in halves], 1),
                slope.weights,
            )
        )
    centre = _stacked(centres)
    box = _stacked(boxes).intersect(
        mean_value(centre, scaled_up(slopes[0].reach + slopes[1].reach, 2))
    )
    return EdgeMaps(centre.view(k, 2, d, d), box.view(k, 2, d, d), slopes[0], slopes[1])


def _stacked(parts: list[Interval]) -> Interval:
    return Interval(
        torch.cat([part.midpoint for part in parts], 1),
        torch.cat([part.radius for part in parts], 1),
    )


def _unit(raw: Interval, softening: float) -> Interval:
    """F = A / sqrt(|A|^2 + eps^2) of (k, d*d) entries."""
    size = raw.shape[1]
    others = torch.ones(size, size, dtype=raw.midpoint.dtype) - torch.eye(
        size, dtype=raw.midpoint.dtype
    )
    floor = softening * softening
    slack = (size + 8) * EPSILON
    rest_low = (raw.mignitude.square() @ others + floor) * (1 - slack)
    rest_high = (raw.magnitude.square() @ others + floor) * (1 + slack)
    low, high = raw.lower, raw.upper

    def quotient(value: Tensor, rest: Tensor) -> Tensor:
        return value / (value.square() + rest).sqrt()

    lower = torch.where(low >= 0, quotient(low, rest_high), quotient(low, rest_low))
    upper = torch.where(high >= 0, quotient(high, rest_low), quotient(high, rest_high))
    return Interval.between(
        (lower - 16 * EPSILON * lower.abs()).clamp(min=-1.0, max=1.0),
        (upper + 16 * EPSILON * upper.abs()).clamp(min=-1.0, max=1.0),
    )


def _projection(raw: Interval, unit: Interval, softening: float) -> Interval:
    """(k, d d, d d) the derivative (I - F F^T) / sqrt(|A|^2 + eps^2)."""
    size = raw.shape[1]
    total = raw.square().total(1)
    floor = torch.full_like(total.midpoint, softening)
    norm = (total + Interval.point(floor).square()).sqrt()
    outer = contract("ki,kj->kij", unit, unit)
    eye = Interval.point(torch.eye(size, dtype=raw.midpoint.dtype).expand_as(outer.midpoint))
    least = norm.lower.clamp(min=softening * (1 - 1e-15)).view(-1, 1, 1)
    return (eye - outer).divide_between(least, norm.upper.view(-1, 1, 1))
