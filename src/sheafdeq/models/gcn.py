"""GCN: the graph convolution everybody expects to see."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.dense import Dense
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

    With ``residual`` the form in which Platonov et al., "A critical look at the evaluation of GNNs
    under heterophily", ICLR 2023, compare it (their block has one more linear map):

    .. math::
        H_0 = \mathrm{ReLU}(X W_0 + b_0), \qquad
        H \leftarrow H + \mathrm{ReLU}(\hat A_+ N(H) W + b), \qquad
        y = N(H) R + r

    with a LayerNorm N of its own everywhere, and dropout after every ReLU.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        residual: whether ``layers`` convolutions of width c stand between two linear maps, each
            added to what it reads.
        options: ``layers``, ``dropout``, ``encoder`` and ``input_dropout``
            (:class:`~sheafdeq.layers.layered_model.LayeredModel`).

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    def __init__(self, *sizes: int, residual: bool = False, **options: Unpack[GCNOptions]) -> None:
        super().__init__(*sizes, **options)
        features, c, o = self.inputs.out_channels, self.width, self.out_channels
        self.residual = bool(residual)
        widths = [c] * (self.depth + 1) if residual else [features, *[c] * (self.depth - 1), o]
        self.mixings = nn.ModuleList(Dense(a, b, bias=False) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(torch.empty(b) for b in widths[1:])
        if residual:
            self.enter, self.leave = nn.Linear(features, c), nn.Linear(c, o)
            self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in widths)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias, LayerNorm at the identity."""
        super().reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        if self.residual:
            return self._residual_logits(graph)
        weights, edges = gcn_weights(graph.edges, self_loops=True), graph.edges
        state = graph.x
        for k, (mixing, bias) in enumerate(zip(self.mixings, self.biases, strict=True)):
            if k:
                state = self._activated(state)
            mixed = mixing(state) if k else self.inputs.first(mixing, graph)
            state = propagate(weights.edge, weights.own, mixed, mixed, edges) + bias
        return state

    def _residual_logits(self, graph: Graph) -> Tensor:
        weights, edges = gcn_weights(graph.edges, self_loops=True), graph.edges
        state = self._activated(self.inputs.first(self.enter, graph))
        for mixing, bias, norm in zip(self.mixings, self.biases, self.norms, strict=False):
            mixed = mixing(norm(state))
            convolved = propagate(weights.edge, weights.own, mixed, mixed, edges) + bias
            state = state + self._activated(convolved)
        result: Tensor = self.leave(self.norms[-1](state))
        return result

    def _activated(self, state: Tensor) -> Tensor:
        return functional.dropout(state.relu(), self.dropout, self.training)
