r"""SheafRelay: an affine step, m -> F (gathered m) + B, with the rate of Theorem 38.

The numbers are those of the prepared context, as for the certificate. Transports depend on the
features, and with them the weights of the norm, so nothing is said of a radius.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates import Certificate
from sheafdeq.models.sheaf_relay import SheafRelay
from sheafdeq.predictions.arithmetic import EPSILON, Interval, contract, scaled_up
from sheafdeq.predictions.contracting import reach_by_rate
from sheafdeq.predictions.lead import Centre, Lead

__all__ = ["relay_image", "relay_leads", "relay_reach"]


def relay_image(model: SheafRelay, context: Any, state: Tensor) -> Interval:
    """(n, D c) the step in exact arithmetic."""
    slots, c, d = context.slots, model.width, model.stalk_dim
    n, edges = len(state), context.edges
    received = state[edges.source].view(-1, slots, c)
    total = contract("ks,ksc->kc", context.heard, received).view(-1, d, c // d)
    message = contract("kab,kbq->kaq", context.transport, total).view(-1, c)
    message = message + Interval.point(context.origin)
    place = edges.target * slots + context.slot

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(n * slots, c).index_copy(0, place, values).view(n, slots * c)

    return message.map(placed)


@torch.no_grad()
def relay_reach(model: SheafRelay, context: Any, state: Tensor, certificate: Certificate) -> Tensor:
    """(n, D c) how far the equilibrium is from ``state`` (Proposition 41, plain coordinates)."""
    assert certificate.rate is not None
    assert certificate.metric is not None
    residual = (relay_image(model, context, state) - Interval.point(state)).magnitude
    return reach_by_rate(residual, certificate.rate, certificate.metric.weights)


@torch.no_grad()
def relay_leads(model: SheafRelay, context: Any, state: Tensor, reach: Tensor) -> Lead:
    """Leads of y = R (sum of the messages) + what the features say."""
    n, c = len(state), model.width
    output: Any = model.output
    weight = output.weight.detach()  # (o, c)
    total = Interval.point(state.view(n, -1, c)).total(1)
    wide = scaled_up(reach.view(n, -1, c).sum(1), context.slots)
    share = Interval(context.own, scaled_up(8 * EPSILON * context.own.abs(), 2))
    centre = Centre.of(total, weight, share)
    taken = (centre.apart.magnitude @ wide.unsqueeze(2)).squeeze(2)
    return centre.losing(scaled_up(taken, c + 2))
