"""Masks of dropout from sixteen random bits an entry."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dropout_mask"]

BITS = 1 << 16


def dropout_mask(like: Tensor, rate: float, training: bool) -> Tensor | None:
    """Shape, type and device of ``like``: zero with probability p, else 1 / (1 - p); None in
    evaluation mode.

    p is the multiple of 2^-16 nearest to the rate, so that one draw of PyTorch's generator serves
    four entries; ``torch.nn.functional.dropout`` draws for each. Multiplying by a fixed nonnegative
    mask keeps a nonnegative drive nonnegative, so what is proved for every drive B >= 0 holds of a
    masked solve, too.
    """
    if not training or rate == 0.0:
        return None
    dropped = min(round(rate * BITS), BITS - 1)
    drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (-(-like.numel() // 4),), device=like.device)
    bits = drawn.view(torch.int16)[: like.numel()].view(like.shape)
    kept = bits >= dropped - BITS // 2
    return kept.to(like.dtype).mul_(BITS / (BITS - dropped))
