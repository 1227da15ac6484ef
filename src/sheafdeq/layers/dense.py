"""A linear layer whose product is the extension's where that serves."""

from __future__ import annotations

from torch import Tensor, nn

from sheafdeq.ops.linear import linear

__all__ = ["Dense"]


class Dense(nn.Linear):
    """``torch.nn.Linear`` by :func:`sheafdeq.ops.linear.linear`: the same parameters and the same
    values to rounding."""

    def forward(self, input: Tensor) -> Tensor:  # the name is PyTorch's
        """(n, i) -> (n, o)  x W^T + b."""
        return linear(input, self.weight, self.bias)
