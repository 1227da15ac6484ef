"""An exponential average of the parameters: what is scored and kept in place of the last update.

After update t (1, 2, ...) of parameters theta_t,

    average <- a_t average + (1 - a_t) theta_t,        a_t = min(a, t / (t + 9)),

so the first updates, which are far from the end, are forgotten faster than by a. Floating-point
buffers are averaged too; others are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sheafdeq.errors import InputError

__all__ = ["WeightAverage"]


class WeightAverage:
    """The average of one model's parameters with decay ``a`` in (0, 1)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise InputError(f"weight_average must be between 0 and 1, got {decay!r}")
        self.decay = decay
        self.updates = 0
        self.values: dict[str, Tensor] = {}
        self.reset(model)

    def reset(self, model: nn.Module) -> None:
        """Begin anew from the model's present parameters."""
        self.updates = 0
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the parameters after one more update."""
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 9))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.values[name].lerp_(value, 1 - decay)
            else:
                self.values[name].copy_(value)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged parameters; its own come back afterwards."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.values)
        try:
            yield
        finally:
            model.load_state_dict(own)
