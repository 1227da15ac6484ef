"""Graph convolutions one after the other, each with its own weights: what GCN and GAT share."""

from __future__ import annotations

from typing import Any

from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.feature_encoder import EncodedModel, EncodingDropout

__all__ = ["LayeredModel", "LayeredOptions"]


class LayeredOptions(EncodingDropout, total=False):
    """The options of every :class:`LayeredModel`."""

    layers: int


class LayeredModel(EncodedModel, ExplicitModel):
    """``depth`` layers that read edges and their weights, not their features.

    Args:
        layers: how many.
        dropout: on the input of every layer but the first, while training (raw features are few
            in the paper's tasks and are kept), and in the encoder.
        rest: ``encoder`` and ``input_dropout``, what the features pass first.
    """

    edge_input = "ignored"
    weighted = True

    def __init__(self, *, layers: int = 2, dropout: float = 0.5, **rest: Any) -> None:
        super().__init__(dropout=dropout, **rest)
        checked_positive(layers=layers)
        self.depth = layers
