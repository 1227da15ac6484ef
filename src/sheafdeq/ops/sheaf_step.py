"""The whole sheaf step with state-dependent maps, as one differentiable function.

:func:`sheaf_step` computes T(H) = tanh(P) + beta + B from the state, with P the propagation of
:mod:`sheafdeq.ops.sheaf_propagate`. It saves the state and the tanh and recomputes everything on
edges: memory O(n c) a step instead of O(e c). ``sheaf_step_reference`` is the same in plain
PyTorch. The native function can be differentiated once, in every floating argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.derivatives import differentiable_once
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops.native_calls import Native, check_tensors, cut, native, pad, serves
from sheafdeq.ops.native_module import NORM_FLOOR
from sheafdeq.ops.node_order import step_layout
from sheafdeq.ops.sheaf_propagate import (
    Layers,
    Tables,
    check_layers,
    plain,
    sheaf_propagate,
    sheaf_propagate_reference,
)
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.threads import thread_count

__all__ = ["StepOptions", "StepWeights", "sheaf_step", "sheaf_step_reference"]


class StepWeights(NamedTuple):
    """The parameters of a step.

    ``first`` (h, 2c + d_e) reads source state, target state and edge features; columns from 2c on
    are not read here (the step's ``edge_hidden`` carries their product) and get a zero gradient.
    ``second`` (d*d, h) gives the maps.
    """

    first: Layers
    second: Layers
    stalk_mixing: Tensor  # (d, d) W_1
    channel_mixing: Tensor  # (q, q) W_2

    @property
    def flat(self) -> tuple[Tensor, ...]:
        """The ten tensors, in the order in which the native step takes them and returns their
        gradients."""
        return (*self.first, *self.second, self.stalk_mixing, self.channel_mixing)

    @staticmethod
    def of(flat: Any) -> StepWeights:
        """The inverse of :attr:`flat`."""
        return StepWeights(Layers(*flat[:4]), Layers(*flat[4:8]), *flat[8:])


@dataclass(frozen=True)
class StepOptions:
    """What does not carry a gradient: ``shift`` beta, ``norm_order`` p of the row normalisation
    (the native step is used for p = 2), ``pre_norm`` whether rows are normalised at all before the
    generators, the ``edges`` of a whole graph, and d and q."""

    shift: float
    norm_order: float
    pre_norm: bool
    edges: Edges
    d: int
    q: int


def sheaf_step(
    state: Tensor,
    drive: Tensor,
    weights: StepWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> Tensor:
    """T(H) = tanh(P_{F(Z)} Y) + beta + B, with Z the row-normalised state and Y_v = W_1 H_v W_2;
    (n, c) -> (n, c).

    Args:
        state: (n, c) H, c = d*q, each row d stalk coordinates of q channels.
        drive: (n, c) B.
        weights: the parameters.
        edge_hidden: (e, 2h) product of the edge features with the first layers, or None.
        options: the rest.
    """
    state, drive = plain_tensor(state, "state"), plain_tensor(drive, "drive")
    edge_hidden = None if edge_hidden is None else plain_tensor(edge_hidden, "edge_hidden")
    _check_step(state, drive, weights, edge_hidden, options)
    weights = StepWeights.of(plain(weights.flat))
    if serves(state, options.d, options.edges):
        if options.norm_order == 2 or not options.pre_norm:
            result: Tensor = _Step.apply(state, drive, *weights.flat, edge_hidden, options)  # type: ignore[no-untyped-call]
            return result
        return _step(sheaf_propagate, state, drive, weights, edge_hidden, options)
    return sheaf_step_reference(state, drive, weights, edge_hidden, options)


def sheaf_step_reference(
    state: Tensor,
    drive: Tensor,
    weights: StepWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> Tensor:
    """:func:`sheaf_step` in plain PyTorch, on any device and differentiable any number of times."""
    return _step(sheaf_propagate_reference, state, drive, weights, edge_hidden, options)


def _step(
    propagate: Any,
    state: Tensor,
    drive: Tensor,
    weights: StepWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> Tensor:
    """The step around either propagation."""
    d, q = options.d, options.q
    c = d * q
    rows = state.view(-1, d, q)
    normalised = state
    if options.pre_norm:
        norm = torch.linalg.vector_norm(rows, ord=options.norm_order, dim=-1, keepdim=True)
        normalised = (rows / norm.clamp(min=NORM_FLOOR)).view_as(state)
    first = torch.cat([weights.first.source_weight, weights.first.target_weight])
    bias = torch.cat([weights.first.source_bias, weights.first.target_bias])
    values = (weights.stalk_mixing @ rows @ weights.channel_mixing).view_as(state)
    tables = Tables(
        normalised @ first[:, :c].T,
        functional.linear(normalised, first[:, c : 2 * c], bias),
        edge_hidden,
        values,
        values,
    )
    return (
        torch.tanh(propagate(tables, weights.second, options.edges, d, q)) + options.shift + drive
    )


def _check_step(
    state: Tensor,
    drive: Tensor,
    weights: StepWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> None:
    edges, d, q = options.edges, options.d, options.q
    n, c = edges.num_targets, d * q
    h, inputs = weights.first.source_weight.shape
    if edges.num_sources != n:
        raise InputError(
            f"a step needs as many sources as targets, got {edges.num_sources} and {n}"
        )
    if inputs < 2 * c:
        raise InputError(f"first source_weight must have at least {2 * c} columns, got {inputs}")
    for name, tensor, shape in (
        ("state", state, (n, c)),
        ("drive", drive, (n, c)),
        ("stalk_mixing", weights.stalk_mixing, (d, d)),
        ("channel_mixing", weights.channel_mixing, (q, q)),
        ("edge_hidden", edge_hidden, (edges.num_edges, 2 * h)),
    ):
        check_tensors(state, (name, tensor, shape))
    check_layers("first", weights.first, h, inputs, state)
    check_layers("second", weights.second, d * d, h, state)


def _edge_table(
    calls: Native, edge_hidden: Tensor | None, h: int, options: StepOptions
) -> Tensor | None:
    """(e, 2h) rows, both halves padded as the step of these sizes wants them."""
    if edge_hidden is None:
        return None
    return pad(edge_hidden, 2, calls.step_padding(options.d, options.q, h))


class _Step(torch.autograd.Function):
    """The whole native step. Saved for backward: the state and the tanh, nothing of size e."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, drive: Tensor, *arguments: Any) -> Tensor:
        *parameters, edge_hidden, options = arguments  # of StepWeights.flat
        calls = native(state.dtype)
        out = calls.empty(*state.shape)
        tanh = calls.empty(*state.shape) if any(ctx.needs_input_grad) else None
        calls.step_forward(
            step_layout(options.edges),
            options.d,
            options.q,
            options.pre_norm,
            options.shift,
            state.detach().contiguous(),
            drive.detach().contiguous(),
            *(parameter.detach().contiguous() for parameter in parameters),
            _edge_table(calls, edge_hidden, len(parameters[1]), options),
            out,
            tanh,
            thread_count(),
        )
        ctx.save_for_backward(state, tanh, *parameters, edge_hidden)
        ctx.options = options
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        state, tanh, *parameters, edge_hidden = ctx.saved_tensors
        grad = plain_tensor(grad, "the gradient")
        options = ctx.options
        calls = native(state.dtype)
        h = len(parameters[1])
        state_grad = calls.empty(*state.shape)
        edge_hidden_grad = None
        if edge_hidden is not None and ctx.needs_input_grad[12]:
            width = calls.step_padding(options.d, options.q, h)
            edge_hidden_grad = calls.empty(len(edge_hidden), 2 * width)
        sizes = [parameter.numel() for parameter in parameters]
        parameter_grad = calls.empty(sum(sizes)) if any(ctx.needs_input_grad[2:12]) else None
        calls.step_backward(
            step_layout(options.edges),
            options.d,
            options.q,
            options.pre_norm,
            state.detach().contiguous(),
            tanh,
            *(parameter.detach().contiguous() for parameter in parameters),
            _edge_table(calls, edge_hidden, h, options),
            calls.contiguous(grad),
            state_grad,
            edge_hidden_grad,
            parameter_grad,
            thread_count(),
        )
        gradients: list[Tensor | None] = [None] * len(parameters)
        if parameter_grad is not None:
            parts = parameter_grad.split(sizes)
            gradients = [
                part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)
            ]
        if edge_hidden_grad is not None:
            edge_hidden_grad = cut(edge_hidden_grad, 2, h)
        return (state_grad, grad, *gradients, edge_hidden_grad, None)
