"""What stands between raw features and a model: input dropout, harmonics and a perceptron, once a
solve.

Bags of words are wide (1,433 words on Cora) and nearly empty. A perceptron makes them narrow before
drive, maps and edge networks read them, and its first product touches stored entries only. A few
coordinates are the opposite: a perceptron of them is smooth, and harmonics let it tell places apart
that lie close together (Tancik et al., Fourier features, NeurIPS 2020).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import GraphModel
from sheafdeq.layers.checks import checked_dropout, checked_positive
from sheafdeq.layers.initialise import linear, xavier
from sheafdeq.layers.sizes import Width
from sheafdeq.ops.sparse import aggregate

__all__ = [
    "EncodedModel",
    "EncodedWidth",
    "Encoding",
    "EncodingDropout",
    "FeatureEncoder",
    "harmonic_features",
]


class FeatureEncoder(nn.Module):
    r"""Features as the model reads them, :math:`x \leftarrow M_k \odot \mathrm{ReLU}(W_k (M_{k-1}
    \odot \dots W_1 (M_0 \odot x) + b_1 \dots) + b_k)`.

    The masks M are dropout while training, drawn once for each call, that is once for each solve,
    and absent in evaluation mode. With harmonics M_0 x is replaced by :func:`harmonic_features` of
    it. Without widths, harmonics and input dropout it returns the graph itself and has no
    parameters.

    Args:
        in_channels: width f of the raw features; -1: that of the first graph.
        widths: of the layers; empty: the features themselves.
        input_dropout: share of the features that are set to zero (M_0).
        dropout: share of the hidden values that are set to zero (the other masks).
        harmonics: k of :func:`harmonic_features`; 0: the features as they are.
    """

    def __init__(
        self,
        in_channels: int,
        widths: Sequence[int] = (),
        *,
        input_dropout: float = 0.0,
        dropout: float = 0.0,
        harmonics: int = 0,
    ) -> None:
        super().__init__()
        widths = tuple(widths)
        for width in widths:
            checked_positive(encoder=width)
        if harmonics:
            checked_positive(harmonics=harmonics)
        self.harmonics = harmonics
        if in_channels > 0:
            in_channels *= 1 + 2 * harmonics
        self.out_channels = widths[-1] if widths else in_channels
        self.input_dropout = checked_dropout(input_dropout, "input_dropout")
        self.dropout = checked_dropout(dropout) if widths else 0.0
        self.layers = nn.ModuleList(linear(a, b) for a, b in pairwise([in_channels, *widths]))

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias."""
        xavier(self.parameters())

    def forward(self, graph: Graph) -> Graph:
        """The same graph with encoded features (n, out_channels)."""
        if not self.layers and not self.input_dropout and not self.harmonics:
            return graph
        if not self.layers:
            return graph.with_features(self.raw(graph))
        hidden = graph.x
        for k, layer in enumerate(self.layers):
            hidden = layer(hidden) if k else self.product(layer, graph)
            hidden = functional.dropout(hidden.relu(), self.dropout, self.training)
        return graph.with_features(hidden)

    def raw(self, graph: Graph) -> Tensor:
        """The features before the perceptron, after input dropout: (n, f (1 + 2 k))."""
        x = functional.dropout(graph.x, self.input_dropout, self.training)
        return harmonic_features(x, self.harmonics)

    def first(self, layer: nn.Module, graph: Graph) -> Tensor:
        """``layer`` of the encoded features: what a model without a perceptron of its own begins
        with."""
        if not self.layers and self.input_dropout and not self.harmonics:
            return self.product(layer, graph)
        result: Tensor = layer(self(graph).x)
        return result

    def product(self, layer: nn.Module, graph: Graph) -> Tensor:
        """``layer`` of the features before the perceptron: (n, f (1 + 2 k)) -> (n, width).

        Where most features are zero, only the others are dropped and multiplied.
        """
        assert isinstance(layer, nn.Linear)
        weight, bias = layer.weight, layer.bias
        entries = None if self.harmonics else graph.sparse_features
        if entries is None or is_lazy(weight):
            dense: Tensor = layer(self.raw(graph))
            return dense
        values, places = entries
        values = functional.dropout(values, self.input_dropout, self.training)
        product = aggregate(values, weight.T, places)
        return product if bias is None else product + bias


def harmonic_features(x: Tensor, harmonics: int) -> Tensor:
    r"""x and :math:`\sin(2^j \pi x), \cos(2^j \pi x)` for j = 0 to k - 1, meant for features in
    [0, 1]: (n, f) -> (n, f (1 + 2 k))."""
    if not harmonics:
        return x
    angles = torch.cat([2.0**j * math.pi * x for j in range(harmonics)], dim=1)
    return torch.cat([x, angles.sin(), angles.cos()], dim=1)


class Encoding(TypedDict, total=False):
    """What the features pass first; :class:`EncodedModel` explains it."""

    encoder: Sequence[int]
    harmonics: int
    input_dropout: float


class EncodingDropout(Encoding, total=False):
    """All options of :class:`EncodedModel`."""

    dropout: float


class EncodedWidth(Width, EncodingDropout, total=False):
    """Those of an :class:`EncodedModel` that is a :class:`~sheafdeq.layers.sizes.WideModel`."""


class EncodedModel(GraphModel):
    """A model that reads its features through ``self.inputs``.

    Args:
        encoder: widths of a perceptron on the features (:class:`FeatureEncoder`); empty: none.
        harmonics: sines and cosines of every feature at this many frequencies, one octave apart
            (:func:`harmonic_features`), beside the feature itself.
        input_dropout: share of the raw features dropped while training, drawn once a pass.
        dropout: share of the hidden values of the encoder, and of whatever else the model says,
            dropped while training.
        rest: what the next base class takes.
    """

    def __init__(
        self,
        *,
        encoder: Sequence[int] = (),
        harmonics: int = 0,
        input_dropout: float = 0.0,
        dropout: float = 0.0,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.dropout = checked_dropout(dropout)
        self.inputs = FeatureEncoder(
            self.in_channels,
            encoder,
            input_dropout=input_dropout,
            dropout=dropout,
            harmonics=harmonics,
        )
