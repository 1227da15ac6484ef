"""The paper's initialisation: Xavier uniform for matrices, zero for biases; also of a linear map
whose input width is not known yet."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parameter import is_lazy

from sheafdeq.layers.dense import Dense

__all__ = ["linear", "xavier"]


def xavier(parameters: Iterable[nn.Parameter]) -> None:
    """Xavier uniform for everything with two or more axes, zero for vectors; what has no shape yet
    waits for it."""
    for parameter in parameters:
        if is_lazy(parameter):
            continue
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)


class _LazyLinear(nn.LazyLinear):
    """A linear map that starts as the others do, once it has seen its input."""

    cls_to_become = Dense

    def reset_parameters(self) -> None:
        if self.in_features:  # zero until the input is seen
            xavier(self.parameters())


def linear(in_channels: int, out_channels: int, bias: bool = True) -> nn.Linear:
    """A linear map; with ``in_channels`` -1 its input width is that of the first input."""
    if in_channels == -1:
        return _LazyLinear(out_channels, bias=bias)
    return Dense(in_channels, out_channels, bias=bias)
