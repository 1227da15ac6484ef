r"""EnergyGNN: the minimiser is within |grad E|_2 / beta of every state (Proposition 36b).

The gradient of every graph is enclosed for all features within the radius; E is beta-strongly
convex for each of them. Weights are the positive numbers of the prepared context.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.predictions.arithmetic import Interval, contract, gathered, scaled_up
from sheafdeq.predictions.edge_inputs import linear
from sheafdeq.predictions.scalar import sigmoid, softplus

__all__ = ["energy_gradient", "energy_reach"]

STRAIGHT = 20.0
"""Beyond this the library's softplus is the identity, whose slope is one."""


def _slope(z: Interval) -> Interval:
    """The slope of softplus, as it is and as the library computes it."""
    exact = sigmoid(z)
    return Interval.between(exact.lower, torch.where(z.upper > STRAIGHT, 1.0, exact.upper))


def _edge_share(layer: nn.Linear, graph: Graph, x: Interval, f: int) -> Interval:
    """(e, h) what the features of both ends and of the edge give one layer."""
    weight, bias = layer.weight.detach(), layer.bias.detach()
    target = contract("ni,oi->no", x, weight[:, :f])
    source = contract("ni,oi->no", x, weight[:, f : 2 * f])
    value = target[graph.target] + source[graph.source]
    value = value + Interval.point(bias.expand_as(value.midpoint))
    if weight.shape[1] > 2 * f and graph.edge_attr is not None:
        value = value + contract("ei,oi->eo", graph.edge_attr, weight[:, 2 * f :])
    return value


@torch.no_grad()
def energy_gradient(
    model: EnergyGNN, context: Any, graph: Graph, state: Tensor, radius: float
) -> Interval:
    """(n, s) the gradient of E at ``state`` for all features within ``radius``."""
    n, s, f = len(state), model.state_width, model.in_channels
    source, target = graph.source, graph.target
    arriving = int(graph.pointer.diff().max()) if n else 0
    leaving = int(torch.bincount(source, minlength=n).max()) if n else 0
    x = Interval(graph.x, torch.full_like(graph.x, radius))
    h = Interval.point(state)
    first, out, skip = context.message
    own_first, own_out, own_skip = context.own
    top_first, top_out, top_skip = context.update
    width = len(out)

    def through(values: Interval, matrix: Tensor) -> Interval:
        return contract("ni,oi->no", values, matrix)

    def back(values: Interval, matrix: Tensor) -> Interval:
        return contract("no,oi->ni", values, matrix)

    def rows(value: Tensor, like: Interval) -> Interval:
        return Interval.point(value.expand_as(like.midpoint))

    z = through(h, first[:, :s])[target] + through(h, first[:, s:])[source]
    z = z + _edge_share(model.message.free_hidden, graph, x, f)
    gate = _edge_share(model.message.free_gate, graph, x, f).relu()
    own_z = through(h, own_first) + linear(model.own.free_hidden, x)
    own_gate = linear(model.own.free_gate, x).relu()
    message = through(gathered(softplus(z) * gate, target, n, arriving), out)
    each = through(h, skip[:, :s])
    each = each + rows(context.message_bias, each)
    message = message + each.scale(context.count.expand_as(each.midpoint))
    message = message + gathered(through(h, skip[:, s:])[source], target, n, arriving)
    message = message + through(softplus(own_z) * own_gate, own_out) + through(h, own_skip)
    message = message + rows(context.own_bias, message)
    inputs = Interval(
        torch.cat([message.midpoint, state], 1),
        torch.cat([message.radius, torch.zeros_like(state)], 1),
    )
    top_z = through(inputs, top_first) + linear(model.update.free_hidden, x)
    top_gate = linear(model.update.free_gate, x).relu()
    steep = (_slope(top_z) * top_gate).scale(top_out.expand_as(top_z.midpoint))
    total = back(steep, top_first)
    total = total + rows(top_skip, total)
    by_message, gradient = total[:, :width], total[:, width:]
    gradient = gradient + h.scale(torch.full_like(state, model.beta))
    gradient = gradient + back(back(by_message, own_out) * _slope(own_z) * own_gate, own_first)
    gradient = gradient + back(by_message, own_skip)
    edge = back(by_message, out)[target] * _slope(z) * gate
    gradient = gradient + back(gathered(edge, target, n, arriving), first[:, :s])
    gradient = gradient + back(gathered(edge, source, n, leaving), first[:, s:])
    each = back(by_message, skip[:, :s])
    gradient = gradient + each.scale(context.count.expand_as(each.midpoint))
    heard = back(by_message, skip[:, s:])[target]
    return gradient + gathered(heard, source, n, leaving)


@torch.no_grad()
def energy_reach(
    model: EnergyGNN, context: Any, graph: Graph, state: Tensor, radius: float
) -> Tensor:
    """(n, s) |H - H*| at most: the same number for all entries of a graph."""
    size = energy_gradient(model, context, graph, state, radius).magnitude
    squares = size.square().sum(1)
    part = graph.graph_of_node
    part = torch.zeros_like(squares, dtype=torch.int64) if part is None else part
    total = squares.new_zeros(graph.num_graphs).index_add(0, part, squares)
    length = scaled_up(total, state.numel() + 8).sqrt() / model.beta
    return scaled_up(length, 8)[part].unsqueeze(1).expand_as(state).contiguous()
