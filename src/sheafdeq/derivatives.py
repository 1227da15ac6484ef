"""Functions that can be differentiated once, and say so when they are asked for more.

Torch's own decorator looks at the incoming gradient alone: where that is constant (a plain sum of
the outputs), second derivatives vanish without a word, and a gradient penalty trains nothing. Here
whatever was recorded for a second derivative raises when it is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import DerivativeError

__all__ = ["differentiable_once"]


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.clone() for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise DerivativeError(
            "second derivatives are not written for the native kernel, for implicit gradients, for "
            "training in parts and for NSD with full maps: compute inside `with "
            "sheafdeq.ops.use_kernel('reference')`, in one process, with gradient='unrolled'"
        )


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For the ``backward`` of a :class:`torch.autograd.Function`: differentiating its result is a
    :class:`~sheafdeq.errors.DerivativeError`."""

    @wraps(backward)
    def once(ctx: Any, *cotangents: Any) -> Any:
        with torch.no_grad():
            gradients = backward(ctx, *cotangents)
        if not torch.is_grad_enabled():  # nobody asked for a graph of this gradient
            return gradients
        several = isinstance(gradients, tuple)
        entries = list(gradients) if several else [gradients]
        places = [k for k, entry in enumerate(entries) if isinstance(entry, Tensor)]
        marked = [entries[k].detach().requires_grad_() for k in places]
        refusals = _Refusal.apply(*marked)  # type: ignore[no-untyped-call]
        for k, refused in zip(places, refusals, strict=True):
            entries[k] = refused
        return tuple(entries) if several else entries[0]

    return once
