r"""A dense layer on many rows, x W^T + b: native when it can be, PyTorch otherwise.

The layers of the models have a thousand rows or more and a few dozen columns. The extension's
register tiles (``ops/native/dense.hpp``) run such products near the rate of the registers; the
library behind PyTorch does not on every processor (``docs/kernel.md`` has the figures). Gradients
of the weights are summed over blocks of a thousand rows and then in double precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.ops.native_calls import dense, native
from sheafdeq.ops.native_module import native_serves
from sheafdeq.threads import thread_count

__all__ = ["linear"]

FEWEST_ROWS = 256
"""Below, calling costs more than computing."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(n, i), (o, i), (o,) -> (n, o)  x W^T + b, as ``torch.nn.functional.linear``."""
    if not _fits(x, weight):
        return functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the widths fill whole vectors and nothing asks for PyTorch's own operation."""
    if not native_serves(x):  # first: what is traced may not ask for a number of rows
        return False
    if x.dim() != 2 or len(x) < FEWEST_ROWS or weight.dtype != x.dtype:
        return False
    if type(x) is not Tensor or torch.is_autocast_enabled("cpu"):
        return False
    lanes = native(x.dtype).lanes()
    return weight.shape[0] % lanes == 0 and weight.shape[1] % lanes == 0 and x.stride(1) == 1


class _Linear(torch.autograd.Function):
    """Saves its arguments. Derivatives of the derivative are PyTorch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        kernel = native(x.dtype)
        out = kernel.empty(len(x), len(weight))
        given = None if bias is None else dense(bias)
        kernel.dense_forward(x.detach(), dense(weight.detach().T), given, out, thread_count())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # the derivative will be differentiated
            return (
                grad @ weight if for_x else None,
                grad.T @ x if for_weight else None,
                grad.sum(0) if for_bias else None,
            )
        kernel, threads = native(x.dtype), thread_count()
        grad = kernel.contiguous(grad)
        x_grad = weight_grad = bias_grad = None
        if for_x:
            x_grad = kernel.empty(*x.shape)
            kernel.dense_forward(grad, dense(weight), None, x_grad, threads)
        if for_weight:
            weight_grad = torch.empty_like(weight, memory_format=torch.contiguous_format)
            bias_grad = weight.new_empty(len(weight)) if for_bias else None
            kernel.dense_gradient(x.detach(), grad, weight_grad, bias_grad, threads)
        elif for_bias:
            bias_grad = grad.sum(0)
        return x_grad, weight_grad, bias_grad
