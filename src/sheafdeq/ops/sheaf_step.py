"""The whole sheaf step with state-dependent maps, as one differentiable function.

:func:`sheaf_step` computes T(H) = tanh(P) + beta + B from the state, with P the propagation of
:mod:`sheafdeq.ops.sheaf_propagate`. It saves the state and the tanh and recomputes everything on
edges: memory O(n c) a step instead of O(e c). ``sheaf_step_reference`` is the same in plain
PyTorch. The native function can be differentiated once, in every floating argument.
"""

from __future__ import annotations

import math
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

__all__ = [
    "PackedWeights",
    "StepOptions",
    "StepWeights",
    "sheaf_step",
    "sheaf_step_reference",
]


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

    def packed(self) -> PackedWeights:
        """The same in one row, for a solve of many steps: each step then hands one tensor to the
        kernel and one gradient back, not ten."""
        flat = plain(self.flat)
        h, inputs = flat[0].shape
        return PackedWeights(
            torch.cat([tensor.reshape(-1) for tensor in flat]),
            h,
            inputs,
            len(self.stalk_mixing),
            len(self.channel_mixing),
        )


class PackedWeights(NamedTuple):
    """:attr:`StepWeights.flat` one after the other, and the sizes that tell them apart."""

    values: Tensor  # (2h (inputs + 1) + 2d^2 (h + 1) + d^2 + q^2,)
    h: int
    inputs: int
    d: int
    q: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the ten tensors."""
        first, second = [(self.h, self.inputs), (self.h,)], [(self.d**2, self.h), (self.d**2,)]
        return [*first, *first, *second, *second, (self.d, self.d), (self.q, self.q)]

    @property
    def length(self) -> int:
        """Numbers that the sizes ask for."""
        dd = self.d**2
        return 2 * self.h * (self.inputs + 1) + 2 * dd * (self.h + 1) + dd + self.q**2

    @property
    def apart(self) -> StepWeights:
        """Views of the ten tensors."""
        parts = self.values.split([math.prod(shape) for shape in self.shapes])
        return StepWeights.of(
            [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        )


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
    weights: StepWeights | PackedWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> Tensor:
    """T(H) = tanh(P_{F(Z)} Y) + beta + B, with Z the row-normalised state and Y_v = W_1 H_v W_2;
    (n, c) -> (n, c).

    Args:
        state: (n, c) H, c = d*q, each row d stalk coordinates of q channels.
        drive: (n, c) B.
        weights: the parameters; of a solve, packed once.
        edge_hidden: (e, 2h) product of the edge features with the first layers, or None.
        options: the rest.
    """
    state, drive = plain_tensor(state, "state"), plain_tensor(drive, "drive")
    edge_hidden = None if edge_hidden is None else plain_tensor(edge_hidden, "edge_hidden")
    if isinstance(weights, StepWeights):
        _check_weights(weights, state, options)
        weights = weights.packed()
    _check_step(state, drive, weights, edge_hidden, options)
    native_edges = serves(state, options.d, options.edges)
    if native_edges and (options.norm_order == 2 or not options.pre_norm):
        result: Tensor = _Step.apply(  # type: ignore[no-untyped-call]
            state, drive, weights.values, edge_hidden, weights[1:3], options
        )
        return result
    propagate = sheaf_propagate if native_edges else sheaf_propagate_reference
    return _step(propagate, state, drive, weights.apart, edge_hidden, options)


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


def _check_weights(weights: StepWeights, state: Tensor, options: StepOptions) -> None:
    d, q = options.d, options.q
    h, inputs = weights.first.source_weight.shape
    if inputs < 2 * d * q:
        raise InputError(
            f"first source_weight must have at least {2 * d * q} columns, got {inputs}"
        )
    check_tensors(
        state,
        ("stalk_mixing", weights.stalk_mixing, (d, d)),
        ("channel_mixing", weights.channel_mixing, (q, q)),
    )
    check_layers("first", weights.first, h, inputs, state)
    check_layers("second", weights.second, d * d, h, state)


def _check_step(
    state: Tensor,
    drive: Tensor,
    weights: PackedWeights,
    edge_hidden: Tensor | None,
    options: StepOptions,
) -> None:
    edges, d, q = options.edges, options.d, options.q
    n, c = edges.num_targets, d * q
    if edges.num_sources != n:
        raise InputError(
            f"a step needs as many sources as targets, got {edges.num_sources} and {n}"
        )
    if (weights.d, weights.q) != (d, q) or weights.inputs < 2 * c:
        raise InputError(
            f"packed weights of d = {weights.d}, q = {weights.q} and {weights.inputs} inputs do "
            f"not fit a step of d = {d}, q = {q}, which needs {2 * c} inputs"
        )
    check_tensors(
        state,
        ("state", state, (n, c)),
        ("drive", drive, (n, c)),
        ("packed weights", weights.values, (weights.length,)),
        ("edge_hidden", edge_hidden, (edges.num_edges, 2 * weights.h)),
    )


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
    def forward(
        ctx: Any,
        state: Tensor,
        drive: Tensor,
        packed: Tensor,
        edge_hidden: Tensor | None,
        sizes: tuple[int, int],
        options: StepOptions,
    ) -> Tensor:
        calls = native(state.dtype)
        out = calls.empty(*state.shape)
        tanh = calls.empty(*state.shape) if any(ctx.needs_input_grad) else None
        calls.step_forward(
            step_layout(options.edges),
            options.d,
            options.q,
            *sizes,
            options.pre_norm,
            options.shift,
            state.detach().contiguous(),
            drive.detach().contiguous(),
            packed.detach().contiguous(),
            _edge_table(calls, edge_hidden, sizes[0], options),
            out,
            tanh,
            thread_count(),
        )
        ctx.save_for_backward(state, tanh, packed, edge_hidden)
        ctx.options, ctx.sizes = options, sizes
        return out

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        state, tanh, packed, edge_hidden = ctx.saved_tensors
        grad = plain_tensor(grad, "the gradient")
        options, sizes = ctx.options, ctx.sizes
        calls, h = native(state.dtype), sizes[0]
        state_grad = calls.empty(*state.shape)
        edge_hidden_grad = None
        if edge_hidden is not None and ctx.needs_input_grad[3]:
            width = calls.step_padding(options.d, options.q, h)
            edge_hidden_grad = calls.empty(len(edge_hidden), 2 * width)
        packed_grad = calls.empty(len(packed)) if ctx.needs_input_grad[2] else None
        calls.step_backward(
            step_layout(options.edges),
            options.d,
            options.q,
            *sizes,
            options.pre_norm,
            state.detach().contiguous(),
            tanh,
            packed.detach().contiguous(),
            _edge_table(calls, edge_hidden, h, options),
            calls.contiguous(grad),
            state_grad,
            edge_hidden_grad,
            packed_grad,
            thread_count(),
        )
        if edge_hidden_grad is not None:
            edge_hidden_grad = cut(edge_hidden_grad, 2, h)
        return state_grad, grad, packed_grad, edge_hidden_grad, None, None
