"""GAT: additive graph attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.layered_model import LayeredModel, LayeredOptions
from sheafdeq.layers.sizes import HeadModel, HeadSizes
from sheafdeq.ops.attention import Attended, attention

__all__ = ["GAT", "GATLayer"]


class GATLayer(nn.Module):
    r"""Attention with scores :math:`\mathrm{LeakyReLU}_{0.2}(a_s^\top W h_j + a_t^\top W h_i)` over
    N(i) and i itself.

    Equals PyG's ``GATConv`` (a test).
    """

    def __init__(self, in_channels: int, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixing = Dense(in_channels, heads * channels, bias=False)
        self.source_score = nn.Parameter(torch.empty(heads, channels))
        self.target_score = nn.Parameter(torch.empty(heads, channels))
        self.bias = nn.Parameter(torch.empty(heads * channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every vector."""
        xavier(self.parameters())

    def forward(self, state: Tensor, edges: Edges) -> Tensor:
        """(n, f) -> (n, heads * channels)."""
        values = self.mixing(state)
        by_head = values.view(len(values), self.heads, values.shape[1] // self.heads)
        of_source, of_target = (
            (by_head * score).sum(2) for score in (self.source_score, self.target_score)
        )
        table = Attended(of_source, values)
        result = attention(
            of_target, table, edges, self.heads, own=table, slope=0.2, share=edges.share
        )
        return result + self.bias


class GATOptions(HeadSizes, LayeredOptions, total=False):
    """What :class:`GAT` shares with other models."""


class GAT(HeadModel, LayeredModel):
    """Two or more :class:`GATLayer` with ELU between them, the last with one head of the output
    width.

    Velickovic et al., "Graph Attention Networks", ICLR 2018. Deviations: dropout acts on layer
    inputs only, not on attention weights; the output layer has one head instead of an average of
    eight. Not a model of the paper. A stored self-loop counts beside the added one (PyG's layer
    replaces it).

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``heads`` of the hidden layers, and
            ``channels``, the width of each.
        options: ``layers``, ``dropout``, ``encoder`` and ``input_dropout``
            (:class:`~sheafdeq.layers.layered_model.LayeredModel`).

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    def __init__(self, *sizes: int, **options: Unpack[GATOptions]) -> None:
        super().__init__(*sizes, **options)
        widths = [self.inputs.out_channels, *[self.width] * (self.depth - 1)]
        self.layers = nn.ModuleList(
            GATLayer(width, self.channels, self.heads) for width in widths[:-1]
        )
        self.layers.append(GATLayer(widths[-1], self.out_channels, 1))

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        edges = graph.edges
        state: Tensor = self.inputs(graph).x
        for k, layer in enumerate(self.layers):
            if k:
                state = functional.dropout(functional.elu(state), self.dropout, self.training)
            state = layer(state, edges)
        return state
