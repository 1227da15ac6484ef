r"""Models that gather with fixed weights: their step over a box of states and features.

    IGNN    relu(A H W + B x)            APPNP   (1 - alpha) A H + alpha MLP(x), perhaps tanh + beta
    EIGNN   A H M + B x

A is the adjacency with its normalisation, enclosed together with its rounding; W and M are the
numbers of the prepared context. The rates (Propositions 32 to 35) are for every drive, so for all
features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates import Certificate
from sheafdeq.data.graph import Graph
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.predictions.arithmetic import EPSILON, Interval, contract, gathered, scaled_up
from sheafdeq.predictions.contracting import log_residual, reach_by_rate
from sheafdeq.predictions.edge_inputs import linear
from sheafdeq.predictions.lead import Centre, Lead

__all__ = ["GATHERING", "gathering_image", "gathering_reach", "plain_leads"]

GATHERING = (APPNP, EIGNN, IGNN)


def _gathered(state: Interval, context: Any, own: bool) -> Interval:
    """A H, with the weights as they are and as they would be without rounding."""
    edges = context.edges
    n = edges.num_targets
    deepest = int(edges.pointer.diff().max()) if n else 0

    def weights(values: Tensor) -> Interval:
        return Interval(values, scaled_up(8 * EPSILON * values.abs(), 2))

    arriving = contract("kc,k->kc", state[edges.source], weights(context.edge_weight))
    total = gathered(arriving, edges.target, n, deepest)
    if not own:
        return total
    return total + contract("nc,n->nc", state, weights(context.own_weight))


@torch.no_grad()
def gathering_image(model: Any, context: Any, graph: Graph, state: Interval, radius: float) -> Any:
    """(n, c) the step of a model for all ``state`` and all features within ``radius``."""
    x = Interval(graph.x, torch.full_like(graph.x, radius))
    if isinstance(model, APPNP):
        encoder: Any = model.encoder
        drive = linear(encoder[1], linear(encoder[0], x).relu())
        alpha = torch.full_like(drive.midpoint, model.alpha)
        mean = _gathered(state, context, own=True)
        # lerp: mean + alpha (drive - mean), which is the same number in exact arithmetic
        rest = Interval(1.0 - alpha, EPSILON * alpha)
        mixed = mean * rest + drive.scale(alpha)
        if model.shift is None:
            return mixed
        return mixed.tanh() + Interval.point(torch.full_like(alpha, model.shift))
    if isinstance(model, EIGNN):
        mean = _gathered(state, context, own=model.self_loops)
        return contract("ni,io->no", mean, context.mixing) + linear(model.drive, x)
    assert isinstance(model, IGNN)
    mean = _gathered(state, context, own=True)
    mixed = contract("ni,io->no", mean, model.recurrent.detach()) + linear(model.drive, x)
    return mixed.relu()


@torch.no_grad()
def gathering_reach(
    model: Any, graph: Graph, state: Tensor, radius: float, certificate: Certificate
) -> Tensor | str:
    """(n, c) how far the equilibrium is from ``state``, entry by entry (Proposition 41).

    The rate bounds it in the metric of the certificate; then the step of the whole box holds the
    equilibrium too, which is smaller where a ReLU is shut.
    """
    metric, rate = certificate.metric, certificate.rate
    assert metric is not None
    assert rate is not None
    rate = min(rate * (1 + 1e-13), 1 - 1e-15)  # the weights without their rounding
    context: Any = model.prepare(graph)
    image = gathering_image(model, context, graph, Interval.point(state), radius)
    if metric.kind == "thompson":
        if not bool((state > 0).all()) or not bool((image.lower > 0).all()):
            return "the state is not positive (rate)"
        x = Interval(graph.x, torch.full_like(graph.x, radius))
        drive = linear(model.encoder[1], linear(model.encoder[0], x).relu())
        if radius > 0 and not bool((drive.lower >= 0).all()):
            return "the drive is negative for some features, where no rate is proved (rate)"
        log = reach_by_rate(log_residual(image, state), rate, metric.weights)
        reach = scaled_up(state * torch.expm1(log) * (1 + 32 * EPSILON), 8)
    else:
        residual = (image - Interval.point(state)).magnitude
        if metric.kind == "block":
            length = torch.linalg.vector_norm(residual, dim=1, keepdim=True)
            residual = scaled_up(length, 2 * state.shape[1] + 4)
        reach = reach_by_rate(residual, rate, metric.weights).expand_as(state)
    whole = gathering_image(model, context, graph, Interval(state, reach), radius)
    return torch.minimum(reach, (whole - Interval.point(state)).magnitude)


@torch.no_grad()
def plain_leads(
    state: Tensor, reach: Tensor, weight: Tensor, bias: Tensor, *, unit_rows: bool
) -> Lead:
    """Leads for states within ``reach`` of ``state`` (n, c), which the readout reads as they are
    or divided by their length (``unit_rows``).

    Of two vectors x and y, x/|x| and y/|y| are at most 2 |x - y| / (|x| + |y|) apart.
    """
    n, c = state.shape
    z, moved, by_entry = Interval.point(state), reach, True
    if unit_rows:
        length = Interval.point(state).square().total(1).sqrt()
        wide = scaled_up(torch.linalg.vector_norm(reach, dim=1), 2 * c + 4)
        # A row that is zero, and known to be, stays zero.
        zero = (wide <= 1e-290) & (state == 0).all(1)
        least = (length.lower - wide) * (1 - 8 * EPSILON)
        low = torch.where(zero, 1.0, length.lower.clamp(min=1e-300))
        high = torch.where(zero, 1.0, length.upper.clamp(min=1e-300))
        shape = state.shape
        z = z.divide_between(low.unsqueeze(1).expand(shape), high.unsqueeze(1).expand(shape))
        turned = scaled_up(2 * wide / (2 * length.lower - wide).clamp(min=1e-300), 8)
        # Rows shorter than 1e-12 are divided by 1e-12: nothing is said of those.
        turned = torch.where(least > 1e-11, turned, torch.inf)
        moved, by_entry = torch.where(zero, 0.0, turned).unsqueeze(1), False
    centre = Centre.of(z, weight, Interval.point(bias.expand(n, -1)))
    size, lead = centre.apart.magnitude, centre.lead
    if by_entry:
        taken = scaled_up((size @ moved.unsqueeze(2)).squeeze(2), c + 2)
    else:
        taken = scaled_up(torch.linalg.vector_norm(size, dim=2) * moved, 2 * c + 4)
    least = lead.lower - torch.where(centre.own, 0.0, taken)
    return centre.keeping(least - 4e-16 * (least.abs() + lead.magnitude) - 1e-300)
