"""From a box of states to logits: which label leads, and by how much at least.

A linear readout of z, which is LayerNorm of the state or the state itself. The lead of label a over
label b is  (w_a - w_b) . z + (b_a - b_b);  its slope in log coordinates is taken as a whole before
absolute values are, so what the two logits share cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.predictions.arithmetic import Interval, contract, scaled_up
from sheafdeq.predictions.below import Box
from sheafdeq.predictions.layer_norm import normalised_rows

__all__ = ["Lead", "leads"]


@dataclass(frozen=True, eq=False)
class Lead:
    """Labels over a box."""

    size: Tensor  # (n,) the largest logit, by absolute value
    label: Tensor  # (n,) the largest logit at the centre
    at_centre: Tensor  # (n,) its lead over the next at the centre, rounded down
    least: Tensor  # (n,) its lead over every other label anywhere in the box, at least


@torch.no_grad()
def leads(
    state: Tensor, reach: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.LayerNorm | None
) -> Lead:
    """``state`` (n, c) positive, ``reach`` (n, c) in log coordinates, ``weight`` (o, c)."""
    box = Box.around(state, reach)
    n, c = state.shape
    offset = weight.new_zeros(len(weight)) if bias is None else bias
    if norm is None:
        z = Interval.point(state)
        positive = box.interval
        slope = positive.map(lambda t: torch.diag_embed(t))
    else:
        normal = normalised_rows(Interval.point(state), box.width, norm)
        z = normal.centre
        slope = normal.jacobian * box.interval.map(lambda t: t.unsqueeze(1).expand(-1, c, -1))

    def reached(rows: Interval) -> Tensor:
        """(n, o, c) slopes -> (n, o) what the box can change."""
        return scaled_up((rows.magnitude * reach.unsqueeze(1)).sum(2), c + 2)

    centre = contract("nc,oc->no", z, weight)
    centre = centre + Interval.point(offset.expand(n, -1))
    label = centre.midpoint.argmax(1)
    rows = Interval.point(weight[label].unsqueeze(1).expand(-1, len(weight), -1))
    apart = rows - Interval.point(weight.expand(n, -1, -1))  # (n, o, c)
    constant = Interval.point(offset[label].unsqueeze(1).expand(-1, len(weight)))
    constant = constant - Interval.point(offset.expand(n, -1))
    lead = contract("noc,nc->no", apart, z) + constant
    least = (lead.lower - reached(contract("noc,ncm->nom", apart, slope))) - 1e-300
    least = least - 4e-16 * least.abs()
    own = torch.zeros_like(least, dtype=torch.bool).scatter_(1, label.unsqueeze(1), True)
    infinite = least.new_full((), torch.inf)
    return Lead(
        centre.midpoint.abs().amax(1),
        label,
        torch.where(own, infinite, lead.lower).amin(1),
        torch.where(own, infinite, least).amin(1),
    )
