r"""What the features give a cascade, over all features within R of the stored ones.

    base_v  = E x_v + b                                   (the rows the first level reads)
    hidden_e = W_2 relu(W_1 [x_u - x_v, |x_u - x_v|, a_e] + b_1) + b_2        (all levels)
    drive_v = N x_v                                                          (all levels)

The base and the drive are linear in x_v. The hidden share of an edge depends on the difference
alone, d hidden = slope (dx_u - dx_v), and its slope is enclosed over the box. Edge features a_e are
exact and are not perturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade
from sheafdeq.predictions.arithmetic import Interval, contract, mean_value, scaled_up
from sheafdeq.predictions.edge_inputs import LENGTH_FLOOR, about_edges

__all__ = ["CascadeInputs", "cascade_inputs"]


@dataclass(frozen=True, eq=False)
class CascadeInputs:
    """Enclosures of the features' shares; slopes are exact matrices or enclosed over the box."""

    radius: float  # R
    base: Interval  # (n, c) at the stored features
    base_slope: Tensor  # (c, f)
    edge: Interval  # (e, groups * h) at the stored features
    edge_slope: Interval | None  # (e, groups * h, f); None where nothing depends on the features
    drive: Interval  # (n, groups * c) at the stored features
    drive_slope: Tensor  # (groups * c, f)


def cascade_inputs(model: SheafCascade, graph: Graph, radius: float) -> CascadeInputs:
    """Everything in float64; ``radius`` is R >= 0 in the maximum norm."""
    x = graph.x
    layers: Any = (model.encoder, model.feature_drive, model.edge_encoder[0], model.edge_encoder[2])
    encoder, feature_drive, first, second = layers
    base = contract("nf,cf->nc", x, encoder.weight.detach())
    base = base + Interval.point(encoder.bias.detach().expand_as(base.midpoint))
    drive = contract("nf,cf->nc", x, feature_drive.weight.detach())
    edge, slope = _edges(model, graph, radius, first, second)
    return CascadeInputs(
        radius,
        base,
        encoder.weight.detach(),
        edge,
        slope,
        drive,
        feature_drive.weight.detach(),
    )


def _edges(
    model: SheafCascade, graph: Graph, radius: float, first: Any, second: Any
) -> tuple[Interval, Interval | None]:
    x, f = graph.x, graph.x.shape[1]
    weight, bias = first.weight.detach(), first.bias.detach()
    if not model.differences:
        own = graph.edge_attr if graph.edge_attr is not None else x.new_ones(graph.num_edges, 1)
        pre = contract("ei,oi->eo", own, weight) + Interval.point(bias.expand(len(own), -1))
        return _second(pre, second), None
    about = about_edges(graph, 0.0)
    difference, length = about[:, :f], about[:, f : f + 1]
    pre = contract("ei,oi->eo", about, weight)
    pre = pre + Interval.point(bias.expand_as(pre.midpoint))
    if radius == 0:
        return _second(pre, second), None
    # Over the box the difference moves by at most 2R an entry and the length by 2R sqrt(f).
    wide = 2.0 * radius * (1 + 1e-12)
    direction = mean_value(difference, torch.full_like(difference.midpoint, wide))
    longest = scaled_up(length.upper + wide * f**0.5, 8)
    shortest = (length.lower - scaled_up(torch.as_tensor(wide * f**0.5), 8)).clamp(
        min=(LENGTH_FLOOR**0.5) * (1 - 1e-12)
    )
    direction = direction.divide_between(shortest, longest)
    unit = Interval.between(direction.lower.clamp(min=-1.0), direction.upper.clamp(max=1.0))
    through_length = contract("o,ef->eof", weight[:, f], unit)
    slope = Interval.point(weight[:, :f].expand_as(through_length.midpoint)) + through_length
    reach = scaled_up(slope.magnitude.sum(2) * wide, f + 2)
    active = mean_value(pre, reach).step_function()
    through = active.map(lambda t: t.unsqueeze(2).expand_as(slope.midpoint)) * slope
    return _second(pre, second), contract("oh,ehf->eof", second.weight.detach(), through)


def _second(pre: Interval, second: Any) -> Interval:
    out = contract("eh,oh->eo", pre.relu(), second.weight.detach())
    return out + Interval.point(second.bias.detach().expand_as(out.midpoint))
