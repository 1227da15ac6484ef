"""Readings of the paper's SheafDEQ that its text does not give, for runs that ask what they would
change (docs/results.md says what came out).

    PYTHONPATH=benchmarks sheafdeq train --model readings:ChannelMixers \\
        --task community --level 7 --set shift=1.3 --out runs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq import SheafDEQ
from sheafdeq.ops.sheaf_step import StepWeights

__all__ = ["ChannelMixers", "TorchBiases"]


class ChannelMixers(SheafDEQ):
    """Both mixers act on channels, H -> P_F(H) H V W_2 with V and W_2 (q, q), and none on stalks.

    The one reading found that has the printed number of parameters, 11,045 at f = 3: the text's
    W_1 (d, d) makes it 10,798, and q^2 - d^2 = 247.
    """

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        del self.stalk_mixing
        self.register_buffer("stalk_mixing", torch.eye(self.stalk_dim), persistent=False)
        self.second_mixing = self.channel_mixing
        del self.channel_mixing
        self.first_mixing = nn.Parameter(torch.empty(self.channels, self.channels))
        self.reset_parameters()

    def _weights(self) -> StepWeights:
        mixing = self.first_mixing @ self.second_mixing
        return StepWeights(*self._layers(), self.stalk_mixing, mixing)

    def _values(self, state: Tensor) -> Tensor:
        rows = state.view(-1, self.stalk_dim, self.channels)
        return rows @ self.first_mixing @ self.second_mixing


class TorchBiases(SheafDEQ):
    """Xavier uniform for matrices, as the paper says; biases as PyTorch starts them, of which it
    says nothing (ours are zero)."""

    def reset_parameters(self) -> None:
        """Biases uniform in +-1/sqrt(width of the input)."""
        super().reset_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                bound = module.in_features**-0.5
                nn.init.uniform_(module.bias, -bound, bound)
