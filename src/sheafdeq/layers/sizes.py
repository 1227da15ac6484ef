"""The sizes of a node's state, which several models share: one row, d stalk coordinates, M heads.

A model takes them as ``*sizes`` or by name (``**options: Unpack[StalkSizes]``) and hands them on to
its base class here, which checks and keeps them; ``help`` shows them all.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

from sheafdeq.equilibrium import GraphModel, Solving
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.initialise import xavier

__all__ = [
    "HeadModel",
    "HeadOptions",
    "HeadSizes",
    "SizedModel",
    "StalkModel",
    "StalkSizes",
    "WideModel",
    "Width",
]


class Ends(TypedDict, total=False):
    """Features in, outputs out; a model needs both."""

    in_channels: int
    out_channels: int


class Width(Ends, total=False):
    """The sizes of a :class:`WideModel`."""

    width: int


class StalkSizes(Ends, total=False):
    """The sizes of a :class:`StalkModel`."""

    stalk_dim: int
    channels: int


class HeadSizes(Ends, total=False):
    """The sizes of a :class:`HeadModel`."""

    heads: int
    channels: int


class HeadOptions(HeadSizes, Solving, total=False):
    """Those of a :class:`HeadModel` that is an equilibrium."""


class SizedModel(GraphModel):
    """Features (n, f) in, outputs (n, o) out."""

    waits_for_features: ClassVar[bool] = False
    """Whether ``in_channels`` may be -1: the width of the first graph."""

    def __init__(self, in_channels: int, out_channels: int, **rest: Any) -> None:
        # set before the base classes are built, which need them
        lazy = self.waits_for_features and in_channels == -1 and not isinstance(in_channels, bool)
        checked_positive(in_channels=1 if lazy else in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        super().__init__(**rest)


class WideModel(SizedModel):
    """States (n, c) without further structure."""

    def __init__(self, in_channels: int, out_channels: int, width: int = 48, **rest: Any) -> None:
        checked_positive(width=width)
        self.width = width
        super().__init__(in_channels, out_channels, **rest)

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias."""
        xavier(self.parameters())


class StalkModel(SizedModel):
    """States (n, d*q), coordinate-major: d stalk coordinates of q channels each."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stalk_dim: int = 3,
        channels: int = 16,
        **rest: Any,
    ) -> None:
        checked_positive(stalk_dim=stalk_dim, channels=channels)
        self.stalk_dim, self.channels = stalk_dim, channels
        super().__init__(in_channels, out_channels, **rest)

    @property
    def width(self) -> int:
        """State width c = d*q (of one level of a cascade, of one message of a relay)."""
        return self.stalk_dim * self.channels


class HeadModel(SizedModel):
    """States (n, M*q): M heads of q channels each."""

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 3, channels: int = 16, **rest: Any
    ) -> None:
        checked_positive(heads=heads, channels=channels)
        self.heads, self.channels = heads, channels
        super().__init__(in_channels, out_channels, **rest)

    @property
    def width(self) -> int:
        """State width c = M*q."""
        return self.heads * self.channels
