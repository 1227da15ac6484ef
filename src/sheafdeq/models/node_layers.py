"""Equilibria as layers: models that hand over their node states instead of reading them out.

``layer(x, edge_index, edge_attr=None, batch=None)`` returns (n, out_channels), so that layers can
be stacked, put into PyG's ``Sequential`` and pooled. They are the models themselves without their
readout, so whatever is measured, simulated or certified of a model can be of a layer. A layer of
your own is a :class:`~sheafdeq.equilibrium.EquilibriumLayer`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sheafdeq.equilibrium import EquilibriumLayer
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_positive
from sheafdeq.models.sheaf_cascade import CascadeContext, SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["SheafCascadeLayer", "SheafDEQLayer"]


class SheafDEQLayer(SheafDEQ, EquilibriumLayer):
    """:class:`SheafDEQ` without a readout: x (n, f) -> positive states (n, out_channels).

    Args:
        in_channels: width f of the features; -1: that of the first graph.
        out_channels: width c of the states, a multiple of ``stalk_dim``.
        stalk_dim: stalk dimension d; there are q = c / d channels.
        options: as for :class:`SheafDEQ` (``shift``, ``steps``, ``edge_dim``, ``solver``, ...).
    """

    def __init__(
        self, in_channels: int, out_channels: int, stalk_dim: int = 3, **options: Any
    ) -> None:
        channels = _channels(out_channels, stalk_dim, options)
        super().__init__(in_channels, out_channels, stalk_dim, channels, **options)
        del self.readout

    def __repr__(self) -> str:
        return _shown(self)


class SheafCascadeLayer(SheafCascade, EquilibriumLayer):
    """:class:`SheafCascade` without a readout: x (n, f) -> states of the last level (n,
    out_channels).

    Args:
        in_channels: width f of the features; -1: that of the first graph.
        out_channels: width c of a level, a multiple of ``stalk_dim``.
        stalk_dim: stalk dimension d; there are q = c / d channels.
        options: as for :class:`SheafCascade` (``levels``, ``gate``, ``edge_dim``, ``solver``, ...).
    """

    def __init__(
        self, in_channels: int, out_channels: int, stalk_dim: int = 3, **options: Any
    ) -> None:
        channels = _channels(out_channels, stalk_dim, options)
        super().__init__(in_channels, out_channels, stalk_dim, channels, **options)
        del self.readout_norm, self.output

    def readout(self, state: Tensor, context: CascadeContext) -> Tensor:
        """The last level."""
        return state[:, -self.width :]

    def __repr__(self) -> str:
        return _shown(self)


def _channels(out_channels: int, stalk_dim: int, options: dict[str, Any]) -> int:
    checked_positive(out_channels=out_channels, stalk_dim=stalk_dim)
    for name in ("skip", "readout_norm"):
        if options.get(name):
            raise InputError(f"a layer has no readout, so {name} means nothing here: leave it out")
    if out_channels % stalk_dim:
        raise InputError(
            f"out_channels must be a multiple of stalk_dim ({stalk_dim}), got {out_channels}: "
            f"take {out_channels - out_channels % stalk_dim + stalk_dim}"
        )
    return out_channels // stalk_dim


def _shown(layer: SheafDEQ | SheafCascade) -> str:
    return (
        f"{type(layer).__name__}({layer.in_channels}, {layer.out_channels}, "
        f"stalk_dim={layer.stalk_dim}, shift={layer.shift:g}, steps={layer.steps})"
    )
