"""GCN: the graph convolution everybody expects to see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.checks import checked_dropout, checked_positive
from sheafdeq.layers.feature_encoder import FeatureEncoder
from sheafdeq.layers.initialise import xavier

__all__ = ["GCN"]


class GCN(ExplicitModel):
    r"""Layers :math:`H \leftarrow \mathrm{ReLU}(\hat A_+ H W + b)`, the last without ReLU.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017:
    two layers, dropout 0.5 on the input of every layer. Each layer equals PyG's ``GCNConv`` (a
    test). Not a model of the paper.

    Args:
        in_channels: f.
        out_channels: o.
        width: c.
        layers: number of convolutions.
        dropout: on the input of every layer but the first, while training (raw features are few
            here and are kept).
        encoder: widths of a perceptron on the features
            (:class:`~sheafdeq.layers.feature_encoder.FeatureEncoder`); empty: none.
        input_dropout: share of the raw features dropped while training, drawn once a pass.

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 48,
        *,
        layers: int = 2,
        dropout: float = 0.5,
        encoder: Sequence[int] = (),
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        checked_positive(
            in_channels=in_channels, out_channels=out_channels, width=width, layers=layers
        )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.dropout = checked_dropout(dropout)
        self.inputs = FeatureEncoder(
            in_channels, encoder, input_dropout=input_dropout, dropout=dropout
        )
        sizes = [self.inputs.out_channels, *[width] * (layers - 1), out_channels]
        self.mixings = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(torch.empty(b) for b in sizes[1:])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias."""
        xavier(self.parameters())

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

    def _uses_edge_features(self) -> bool:
        return False
