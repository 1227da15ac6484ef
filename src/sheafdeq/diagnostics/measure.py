"""Small things every study needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sheafdeq.full_precision import full_precision

__all__ = ["EPSILON", "Score", "evaluating", "json_number", "json_numbers"]

EPSILON = 1e-12
"""Keeps a relative discrepancy from a zero reference finite."""

Score = Callable[[Tensor], float]
"""Outputs (n, o) -> the task's score, higher is better."""


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode (dropout off), no gradients and full precision inside, the former mode
    afterwards."""
    before = model.training
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        with torch.no_grad(), full_precision(device):
            yield
    finally:
        model.train(before)


def json_number(value: float | None) -> float | None:
    """Six significant digits; null for what JSON cannot hold."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def json_numbers(values: Sequence[float]) -> list[float | None]:
    """:func:`json_number` of every entry."""
    return [json_number(value) for value in values]
