"""Attention recomputed from the state at every step: the matrices its models share."""

from __future__ import annotations

from typing import Any

from torch import nn

from sheafdeq.layers.dense import Dense
from sheafdeq.layers.gathering import GatheringModel
from sheafdeq.layers.sizes import HeadModel

__all__ = ["AttentionModel"]


class AttentionModel(HeadModel, GatheringModel):
    """A drive f -> c, and Q, K, V and W, bias-free c x c."""

    def __init__(self, *sizes: int, **rest: Any) -> None:
        super().__init__(*sizes, **rest)
        c = self.width
        self.drive = nn.Linear(self.in_channels, c)
        self.query = Dense(c, c, bias=False)
        self.key = Dense(c, c, bias=False)
        self.value = Dense(c, c, bias=False)
        self.mixing = Dense(c, c, bias=False)
