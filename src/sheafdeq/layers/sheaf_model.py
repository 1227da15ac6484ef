"""Positive equilibria on a sheaf, with what real graphs ask for: what SheafDEQ and the cascade
share."""

from __future__ import annotations

from typing import Any

from sheafdeq.distances import THOMPSON
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.layers.feature_encoder import EncodedModel, EncodingDropout
from sheafdeq.layers.sizes import StalkModel, StalkSizes

__all__ = ["SheafModel", "SheafModelOptions"]


class SheafModelOptions(StalkSizes, EncodingDropout, total=False):
    """The options of every :class:`SheafModel`."""

    edge_dim: int | None
    skip: bool


class SheafModel(StalkModel, EncodedModel, EquilibriumModel):
    """States (n, d*q), every entry positive; features may be wide, edges weighted.

    Args:
        sizes: ``in_channels`` f (-1: that of the first graph), ``out_channels`` o, ``stalk_dim`` d,
            ``channels`` q.
        edge_dim: width of the edge features; None without.
        skip: the readout also has a linear map of the (encoded) features.
        rest: ``encoder``, ``input_dropout`` and ``dropout``
            (:class:`~sheafdeq.layers.feature_encoder.EncodedModel`), and how it is solved.
    """

    distance = THOMPSON  # states are positive
    weighted = True
    waits_for_features = True

    def __init__(
        self, *sizes: int, edge_dim: int | None = None, skip: bool = False, **rest: Any
    ) -> None:
        super().__init__(*sizes, **rest)
        if edge_dim is not None and (
            isinstance(edge_dim, bool) or not isinstance(edge_dim, int) or edge_dim < 0
        ):
            raise InputError(f"edge_dim must be a non-negative integer or None, got {edge_dim!r}")
        self.edge_dim, self.skip = edge_dim or None, bool(skip)
