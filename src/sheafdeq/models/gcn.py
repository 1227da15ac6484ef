"""GCN: the graph convolution everybody expects to see."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.layered_model import LayeredModel, LayeredOptions
from sheafdeq.layers.sizes import WideModel, Width

__all__ = ["GCN"]


class GCNOptions(Width, LayeredOptions, total=False):
    """What :class:`GCN` shares with other models."""


class GCN(WideModel, LayeredModel):
    r"""Layers :math:`H \leftarrow \mathrm{ReLU}(\hat A_+ H W + b)`, the last without ReLU.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017:
    two layers, dropout 0.5 on the input of every layer. Each layer equals PyG's ``GCNConv`` (a
    test). Not a model of the paper.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        options: ``layers``, ``dropout``, ``encoder`` and ``input_dropout``
            (:class:`~sheafdeq.layers.layered_model.LayeredModel`).

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    def __init__(self, *sizes: int, **options: Unpack[GCNOptions]) -> None:
        super().__init__(*sizes, **options)
        widths = [self.inputs.out_channels, *[self.width] * (self.depth - 1), self.out_channels]
        self.mixings = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(torch.empty(b) for b in widths[1:])
        self.reset_parameters()

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        weights, edges = gcn_weights(graph.edges, self_loops=True), graph.edges
        state = graph.x
        for k, (mixing, bias) in enumerate(zip(self.mixings, self.biases, strict=True)):
            if k:
                state = functional.dropout(state.relu(), self.dropout, self.training)
            mixed = mixing(state) if k else self.inputs.first(mixing, graph)
            state = propagate(weights.edge, weights.own, mixed, mixed, edges) + bias
        return state
