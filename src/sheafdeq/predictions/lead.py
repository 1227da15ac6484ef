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

__all__ = ["Centre", "Lead", "leads"]


@dataclass(frozen=True, eq=False)
class Lead:
    """Labels over a box."""

    size: Tensor  # (n,) the largest logit, by absolute value
    label: Tensor  # (n,) the largest logit at the centre
    at_centre: Tensor  # (n,) its lead over the next at the centre, rounded down
    least: Tensor  # (n,) its lead over every other label anywhere in the box, at least


@dataclass(frozen=True, eq=False)
class Centre:
    """A linear readout at one point z (n, c): logits, and how far the largest leads."""

    logits: Interval  # (n, o)
    label: Tensor  # (n,)
    apart: Interval  # (n, o, c) w_a - w_b for the label a
    lead: Interval  # (n, o) (w_a - w_b) . z + (b_a - b_b)

    @staticmethod
    def of(z: Interval, weight: Tensor, offset: Interval) -> Centre:
        """``weight`` (o, c), ``offset`` (n, o)."""
        logits = contract("nc,oc->no", z, weight) + offset
        label = logits.midpoint.argmax(1)
        rows = Interval.point(weight[label].unsqueeze(1).expand(-1, len(weight), -1))
        apart = rows - Interval.point(weight.expand(len(label), -1, -1))
        own = offset.map(lambda t: t.gather(1, label.unsqueeze(1)).expand_as(t))
        return Centre(logits, label, apart, contract("noc,nc->no", apart, z) + (own - offset))

    @property
    def own(self) -> Tensor:
        """(n, o) bool: the label itself, which has no lead over itself."""
        mask = torch.zeros_like(self.lead.lower, dtype=torch.bool)
        return mask.scatter_(1, self.label.unsqueeze(1), True)

    def losing(self, taken: Tensor) -> Lead:
        """The lead where at most ``taken`` (n, o) is lost from it."""
        least = self.lead.lower - taken
        return self.keeping(least - 4e-16 * (least.abs() + taken) - 1e-300)

    def keeping(self, least: Tensor) -> Lead:
        """The lead where at least ``least`` (n, o) is left of it."""
        infinite = least.new_full((), torch.inf)
        at_centre, anywhere = (
            torch.where(self.own, infinite, values).amin(1) for values in (self.lead.lower, least)
        )
        return Lead(self.logits.midpoint.abs().amax(1), self.label, at_centre, anywhere)


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

    centre = Centre.of(z, weight, Interval.point(offset.expand(n, -1)))
    taken = reached(contract("noc,ncm->nom", centre.apart, slope))
    least = (centre.lead.lower - taken) - 1e-300
    return centre.keeping(least - 4e-16 * least.abs())
