"""The paper's initialisation: Xavier uniform for matrices, zero for biases."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

__all__ = ["xavier"]


def xavier(parameters: Iterable[nn.Parameter]) -> None:
    """Xavier uniform for everything with two or more axes, zero for vectors."""
    for parameter in parameters:
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
