"""A readout with what real graphs ask for: dropout, a norm, and the features themselves."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sheafdeq.equilibrium import Readout

__all__ = ["MaskedReadout"]


class MaskedReadout(Readout):
    r"""A linear readout :math:`r(M \odot N(H)) + s(X)` with options: a LayerNorm N, a linear map s
    of the features, and a dropout mask M.

    The context has the fields ``readout_mask`` (n, c) and ``features`` (n, f), None where unused.
    """

    def __init__(
        self, width: int, out_channels: int, *, norm: bool = False, skip: int | None = None
    ) -> None:
        super().__init__(width, out_channels)
        self.norm = nn.LayerNorm(width) if norm else None
        self.skip = None if skip is None else nn.Linear(skip, out_channels, bias=False)

    @property
    def plain(self) -> bool:
        """Whether it is a linear map of the state alone."""
        return self.norm is None and self.skip is None

    def forward(self, state: Tensor, context: Any = None) -> Tensor:
        """(n, c) -> (n, o)."""
        if self.norm is not None:
            state = self.norm(state)
        if context is not None and context.readout_mask is not None:
            state = state * context.readout_mask
        output = super().forward(state)
        if self.skip is not None:
            output = output + self.skip(context.features)
        return output
