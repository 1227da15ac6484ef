"""Attaching a solution that was found without recording to the autograd graph, with an adjoint
solved by any means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sheafdeq.derivatives import differentiable_once
from sheafdeq.full_precision import full_precision

__all__ = ["attach"]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, attached: Tensor, value: Tensor, solve_adjoint: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.solve_adjoint = solve_adjoint
        return value.clone()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        with full_precision(cotangent.device):
            return ctx.solve_adjoint(cotangent), None, None


def attach(value: Tensor, attached: Tensor, solve_adjoint: Callable[[Tensor], Tensor]) -> Tensor:
    """``value`` with the gradient of ``attached``, whose cotangent g is first replaced by
    ``solve_adjoint(g)``.

    For z = f(z, theta) take ``attached = f(z, theta)`` with z detached and let ``solve_adjoint``
    return u = g + J^T u.
    """
    result: Tensor = _Attach.apply(attached, value, solve_adjoint)  # type: ignore[no-untyped-call]
    return result
