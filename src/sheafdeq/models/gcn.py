"""GCN: the graph convolution everybody expects to see."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.feature_encoder import EncodedModel, Encoding
from sheafdeq.layers.sizes import WideModel, Width

__all__ = ["GCN"]


class GCNOptions(Width, Encoding, total=False):
    """What :class:`GCN` shares with other models."""


class GCN(WideModel, EncodedModel, ExplicitModel):
    r"""Layers :math:`H \leftarrow \mathrm{ReLU}(\hat A_+ H W + b)`, the last without ReLU.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017:
    two layers, dropout 0.5 on the input of every layer. Each layer equals PyG's ``GCNConv`` (a
    test). Not a model of the paper.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        layers: number of convolutions.
        dropout: on the input of every layer but the first, while training (raw features are few
            here and are kept).
        options: ``encoder`` and ``input_dropout``, what the features pass first
            (:class:`~sheafdeq.layers.feature_encoder.EncodedModel`).

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    edge_input = "ignored"
    weighted = True

    def __init__(
        self,
        *sizes: int,
        layers: int = 2,
        dropout: float = 0.5,
        **options: Unpack[GCNOptions],
    ) -> None:
        super().__init__(*sizes, dropout=dropout, **options)
        checked_positive(layers=layers)
        widths = [self.inputs.out_channels, *[self.width] * (layers - 1), self.out_channels]
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
