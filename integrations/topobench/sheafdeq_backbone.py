"""A TopoBench backbone: ``forward(x, edge_index, batch=None, edge_weight=None) -> x``.

Copy this file to ``topobench/nn/backbones/graph/`` and ``sheafdeq.yaml`` to
``configs/model/graph/``. TopoBench exports every public class it finds in that folder, so nothing
has to be registered; its ``GNNWrapper`` calls a graph backbone with encoded features, edges, the
batch vector and the weights of the edges, if the data has any, adds the features to the returned
states (same width) and normalises, and its readout does the rest. Edges are used as they are
given: for the sheaf of an undirected graph they must be stored both ways, as TopoBench's data sets
do.

The file needs nothing but torch (2.4 or newer) and ``pip install sheafdeq``. TopoBench pins torch
2.3.0 (as of its commit 671074ab): lift that pin in the environment you run this in.
"""

from __future__ import annotations

import torch

from sheafdeq import SheafCascadeLayer, SheafDEQLayer

LAYERS = {"sheafdeq": SheafDEQLayer, "sheaf-cascade": SheafCascadeLayer}


class SheafBackbone(torch.nn.Module):
    """Equilibria stacked: every layer settles, then the next one starts from its states.

    Args:
        in_channels: width of the encoded features.
        hidden_channels: width of the node states that are returned, a multiple of ``stalk_dim``.
        num_layers: how many equilibria.
        layer: ``"sheafdeq"`` or ``"sheaf-cascade"`` (proved to settle for every weight).
        stalk_dim: stalk dimension d.
        dropout: on the states between layers.
        options: of the layer (``steps``, ``shift``, ``levels``, ...).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int = 1,
        layer: str = "sheafdeq",
        stalk_dim: int = 2,
        dropout: float = 0.0,
        **options: object,
    ) -> None:
        super().__init__()
        if layer not in LAYERS:
            raise ValueError(f"there is no layer {layer!r}: choose from {', '.join(LAYERS)}")
        widths = [in_channels, *[hidden_channels] * (num_layers - 1)]
        self.layers = torch.nn.ModuleList(
            LAYERS[layer](width, hidden_channels, stalk_dim, **options) for width in widths
        )
        self.dropout = torch.nn.Dropout(dropout)
        self.out_channels = hidden_channels

    def forward(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        batch: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(n, in_channels) -> (n, hidden_channels)."""
        for number, layer in enumerate(self.layers):
            if number:
                x = self.dropout(x)
            x = layer(x, edge_index, batch=batch, edge_weight=edge_weight)
        return x
