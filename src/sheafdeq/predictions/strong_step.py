r"""One step of the models with a proven global rate, at one state and all features within a radius.

    T(z) = beta + B(x) + phi(y+, y-),

every quantity an interval. Nothing is differentiated: with a global rate q the size of
log T(z) - log z is all that the distance to the equilibrium needs (``docs/theory.md``,
Proposition 41).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.models import StrongSheafDEQ
from sheafdeq.models.strong_attention import StrongAttentionContext, StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafContext
from sheafdeq.predictions.arithmetic import (
    EPSILON,
    Interval,
    contract,
    divided,
    gathered,
    scaled_up,
)
from sheafdeq.predictions.edge_inputs import about_edges, linear, perceptron
from sheafdeq.predictions.gate_ranges import gate_range
from sheafdeq.predictions.scalar import positive_part, sigmoid, softplus

__all__ = ["attention_image", "sheaf_image"]


def _deepest(graph: Graph) -> int:
    return int(graph.pointer.diff().max()) if graph.num_nodes else 0


def _features(graph: Graph, radius: float) -> Interval:
    return Interval(graph.x, torch.full_like(graph.x, radius))


def _image(model: Any, drive: Interval, plus: Interval, minus: Interval) -> Interval:
    """beta + B + phi(y+, y-), never below beta - 1."""
    gate = gate_range(model.gate.name, model.gate.floor, plus, minus).value
    shift = torch.full_like(drive.midpoint, model.shift)
    image = drive + Interval.point(shift) + gate
    return Interval.between(torch.maximum(image.lower, (shift - 1) * (1 - EPSILON)), image.upper)


@torch.no_grad()
def sheaf_image(
    model: StrongSheafDEQ, context: StrongSheafContext, graph: Graph, state: Tensor, radius: float
) -> Interval:
    """(n, c) T(state) of a StrongSheafDEQ; its rescaled second layer is taken from the context."""
    d, q, n = model.stalk_dim, model.channels, graph.num_nodes
    about = about_edges(graph, radius)
    drive = linear(model.drive, _features(graph, radius)).relu()
    sizes = softplus(perceptron(model.sizes, about)).view(-1, d * d)
    norm = sizes.square().total(1).sqrt().view(-1, 1)
    sizes = sizes.divide_between(norm.lower.clamp(min=1e-12), norm.upper).view(-1, 2, d, d)
    rows = Interval.point(state).view(-1, d, q)
    total = rows.total(2).map(lambda t: t.unsqueeze(2).expand(-1, -1, q))
    normal = rows.divide_by_positive(total).view(n, d * q)
    hidden = linear(model.logit_inputs, about)
    hidden = hidden + linear(model.logit_source, normal)[graph.source]
    hidden = (hidden + linear(model.logit_target, normal)[graph.target]).relu()
    second = context.budgeted if context.budgeted is not None else model.budgeted_logits()
    raw = contract("eh,oh->eo", hidden, second)
    raw = (raw + Interval.point(model.logits.bias.detach().expand_as(raw.midpoint))).view(
        -1, 2, d, d
    )
    kept, turned = sizes * sigmoid(raw), sizes * sigmoid(-raw)  # F+ and F-, (e, 2, d, d)
    return _image(model, drive, *_sheaf_parts(model, graph, kept, turned, state))


def _sheaf_parts(
    model: StrongSheafDEQ, graph: Graph, kept: Interval, turned: Interval, state: Tensor
) -> tuple[Interval, Interval]:
    """y+ and y- (n, c) from the two nonnegative parts of every map."""
    d, q, n, deepest = model.stalk_dim, model.channels, graph.num_nodes, _deepest(graph)
    degree = graph.in_degree.clamp(min=1).to(state.dtype)
    weight = (degree[graph.source] * degree[graph.target]).sqrt().reciprocal()
    edge_weight = Interval(weight, weight * (2 * EPSILON))

    def product(left: Interval, right: Interval) -> Interval:
        return contract("kia,kib->kab", left, right)

    def of_nodes(blocks: Interval) -> Interval:
        return divided(gathered(blocks, graph.target, n, deepest), degree.view(-1, 1, 1))

    (source_plus, target_plus), (source_minus, target_minus) = (
        (part[:, 0], part[:, 1]) for part in (kept, turned)
    )
    equal = product(target_plus, source_plus) + product(target_minus, source_minus)
    unequal = product(target_plus, source_minus) + product(target_minus, source_plus)
    edges = [contract("kab,k->kab", blocks, edge_weight) for blocks in (equal, unequal)]
    crossed = of_nodes(product(target_plus, target_minus) + product(target_minus, target_plus))
    squares = product(target_plus, target_plus) + product(target_minus, target_minus)
    eye = Interval.point(torch.eye(d, dtype=state.dtype).expand(n, d, d))
    nodes = [eye + crossed, of_nodes(squares)]  # the diagonal is I - (F+ - F-)^T (F+ - F-)
    stalks, channels = model.stalk_mixing.detach(), model.channel_mixing.detach()
    h = state.view(n, d, q)
    signs = (1, -1)
    mixed = [
        [
            contract("ab,nbq->naq", (s * stalks).clamp(min=0), contract("nbr,rq->nbq", h, w))
            for w in ((t * channels).clamp(min=0) for t in signs)
        ]
        for s in signs
    ]
    values = (mixed[0][0] + mixed[1][1], mixed[0][1] + mixed[1][0])  # X+ and X-
    parts = []
    for first, second in ((values[0], values[1]), (values[1], values[0])):
        arriving = contract("kab,kbq->kaq", edges[0], first[graph.source])
        arriving = arriving + contract("kab,kbq->kaq", edges[1], second[graph.source])
        own = contract("kab,kbq->kaq", nodes[0], first)
        own = own + contract("kab,kbq->kaq", nodes[1], second)
        parts.append((gathered(arriving, graph.target, n, deepest) + own).view(n, d * q))
    return parts[0], parts[1]


@torch.no_grad()
def attention_image(
    model: StrongAttnDEQ,
    context: StrongAttentionContext,
    graph: Graph,
    state: Tensor,
    radius: float,
) -> Interval:
    """(n, c) T(state) of a StrongAttnDEQ; its rescaled query matrix is taken from the context."""
    heads, w, n = model.heads, model.channels, graph.num_nodes
    drive = linear(model.drive, _features(graph, radius)).relu()
    bias = perceptron(model.bias, about_edges(graph, radius))  # (e, M)
    rows = Interval.point(state)
    norm = rows.square().total(1).sqrt().map(lambda t: t.unsqueeze(1).expand_as(state))
    unit = rows.divide_by_positive(norm)
    query = contract("ni,oi->no", unit, context.query_weight)
    query = divided(query, math.sqrt(w)).view(n, heads, w)
    query = Interval(
        query.midpoint, scaled_up(query.radius + 4 * EPSILON * query.midpoint.abs(), 2)
    )
    key = linear(model.key, unit).view(n, heads, w)
    scores = contract("kmw,kmw->km", query[graph.target], key[graph.source]) + bias
    own = contract("kmw,kmw->km", query, key)
    own = own + Interval.point(model.own_bias.detach().expand_as(own.midpoint))
    averages = _averages(scores, own, graph, state)  # (n, M, c)
    mixing = model.mixing.weight.detach().view(model.width, heads, w)
    values = model.value.weight.detach().view(heads, w, model.width)
    coefficients = contract("omw,mwc->moc", mixing, values)
    plus, minus = (
        contract("moc,nmc->no", positive_part(coefficients, sign), averages) for sign in (1, -1)
    )
    return _image(model, drive, plus, minus)


def _averages(scores: Interval, own: Interval, graph: Graph, state: Tensor) -> Interval:
    """(n, M, c) softmax averages over a node and its sources, scores (e, M) and (n, M)."""
    n, heads = own.shape
    top = own.midpoint.clone()
    index = graph.target.unsqueeze(1).expand(-1, heads)
    top = top.scatter_reduce(0, index, scores.midpoint, "amax")
    terms = _deepest(graph) + 2

    def size(values: Interval, base: Tensor) -> Interval:
        return (values - Interval.point(base)).exp()

    edge, self_ = size(scores, top[graph.target]), size(own, top)
    total = gathered(edge, graph.target, n, terms) + self_

    def column(x: Interval) -> Interval:
        return x.map(lambda t: t.unsqueeze(2))

    weighted = contract("nm,nc->nmc", edge, state[graph.source])
    summed = gathered(weighted, graph.target, n, terms) + contract("nm,nc->nmc", self_, state)
    wide = column(total).map(lambda t: t.expand_as(summed.midpoint))
    return summed.divide_between(wide.lower.clamp(min=1e-300), wide.upper)
