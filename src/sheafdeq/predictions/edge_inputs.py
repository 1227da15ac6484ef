"""What the inputs say about edges, and small networks of it, for all features within a radius."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sheafdeq.data.graph import Graph
from sheafdeq.predictions.arithmetic import Interval, contract, scaled_up

__all__ = ["about_edges", "linear", "perceptron"]

LENGTH_FLOOR = 1e-12
"""Under the root of the length of a difference, as the models have it."""


def about_edges(graph: Graph, radius: float) -> Interval:
    """(e, f + 1 + d_e): x_u - x_v, its length, and the edge features (which are exact)."""
    x, f = graph.x, graph.x.shape[1]
    difference = Interval.point(x[graph.source]) - Interval.point(x[graph.target])
    squares = difference.square().total(1)
    floor = Interval.point(torch.full_like(squares.midpoint, LENGTH_FLOOR))
    length = (squares + floor).sqrt().view(-1, 1)
    if radius > 0:
        wide = difference.midpoint.new_full((1,), 2.0 * radius)
        difference = Interval(difference.midpoint, scaled_up(difference.radius + wide, 2))
        length = Interval(length.midpoint, scaled_up(length.radius + wide * f**0.5, 8))
    parts = [difference, length]
    if graph.edge_attr is not None:
        parts.append(Interval.point(graph.edge_attr))
    return Interval(
        torch.cat([part.midpoint for part in parts], 1),
        torch.cat([part.radius for part in parts], 1),
    )


def linear(layer: nn.Linear, x: Interval) -> Interval:
    """W x + b."""
    out = contract("ni,oi->no", x, layer.weight.detach())
    if layer.bias is None:
        return out
    return out + Interval.point(layer.bias.detach().expand_as(out.midpoint))


def perceptron(layers: Any, x: Interval) -> Interval:
    """Linear, ReLU, linear."""
    return linear(layers[2], linear(layers[0], x).relu())
