"""The sheaf step with state-dependent maps: one signature, native when it can be, pure PyTorch otherwise.

For a stored edge e = (u -> v), with first-layer products A (sources), B (targets, bias included) and E (edges),

    hidden_e = relu(A_u + B_v + E_e)                        (2h: source generator | target generator)
    F_src(e) = Pi(W_src hidden_e[:h] + b_src),   F_tgt(e) = Pi(W_tgt hidden_e[h:] + b_tgt),   Pi(F) = F / ||F||_F
    P_v = Y_v - (1/deg_v) sum_e F_tgt^T F_tgt Y_v + sum_e w_e F_tgt^T F_src Y_u.

:func:`sheaf_propagate` computes P from the tables; :func:`sheaf_step` computes the whole update
T(H) = tanh(P) + beta + B from the state, as one differentiable function that saves the state and the tanh and recomputes
everything on edges: memory O(n c) a step instead of O(e c). ``*_reference`` are the same in plain PyTorch.

The native functions can be differentiated once, in every floating argument. Results are bitwise equal from run to run for a given
number of threads (``torch.get_num_threads()``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sheafdeq.errors import InputError
from sheafdeq.kernels.layout import EdgeLayout
from sheafdeq.kernels.native_module import native_module, native_serves

__all__ = [
    "LARGEST_NATIVE_STALK",
    "sheaf_propagate",
    "sheaf_propagate_reference",
    "sheaf_step",
    "sheaf_step_reference",
    "unit_or_zero",
]

NORM_FLOOR = 1e-12
"""Rows of the state are divided by at least this. A generated map of smaller Frobenius norm counts as zero: it does not propagate
and passes no gradient (all hidden units of an edge can be dead at once; dividing by a floor would then return a gradient of 1e12)."""
LARGEST_NATIVE_STALK = 16


# ---------------------------------------------------------------------- propagation from tables


def sheaf_propagate(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    source_values: Tensor,
    own_values: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> Tensor:
    """P (n, d*q) of the module's equation.

    Args:
        source_hidden: (m, 2h) A, a row for each source.
        target_hidden: (n, 2h) B, a row for each target.
        edge_hidden: (e, 2h) E, or None.
        source_values: (m, d*q) Y at the sources.
        own_values: (n, d*q) Y at the targets.
        second_source_weight: (d*d, h) second layer of the source maps; with its bias (d*d,).
        second_source_bias: see above.
        second_target_weight: (d*d, h) second layer of the target maps; with its bias (d*d,).
        second_target_bias: see above.
        edges: the layout; m = ``edges.num_sources``, n = ``edges.num_targets``.
        d: stalk dimension.
        q: channels.
    """
    arguments = (
        source_hidden,
        target_hidden,
        edge_hidden,
        source_values,
        own_values,
        second_source_weight,
        second_source_bias,
        second_target_weight,
        second_target_bias,
    )
    _check_tables(*arguments, edges, d, q)
    if native_serves(own_values) and d <= LARGEST_NATIVE_STALK:
        return _Propagate.apply(*arguments, edges, d, q)
    return sheaf_propagate_reference(*arguments, edges, d, q)


def sheaf_propagate_reference(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    source_values: Tensor,
    own_values: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> Tensor:
    """:func:`sheaf_propagate` in plain PyTorch, on any device and differentiable any number of times."""
    h = second_source_weight.shape[1]
    hidden = source_hidden.index_select(0, edges.source) + target_hidden.index_select(0, edges.target)
    if edge_hidden is not None:
        hidden = hidden + edge_hidden
    hidden = hidden.relu()
    maps = []
    for part, weight, bias in (
        (hidden[:, :h], second_source_weight, second_source_bias),
        (hidden[:, h:], second_target_weight, second_target_bias),
    ):
        raw = functional.linear(part, weight, bias)
        maps.append(unit_or_zero(raw).view(-1, d, d))
    source_maps, target_maps = maps
    own = own_values.view(-1, d, q)
    gram = target_maps.transpose(1, 2) @ target_maps / edges.degree.to(own.dtype)[edges.target, None, None]
    diagonal = gram.new_zeros(edges.num_targets, d, d).index_add(0, edges.target, gram)
    blocks = target_maps.transpose(1, 2) @ source_maps * edges.weight.to(own.dtype)[:, None, None]
    messages = blocks @ source_values.view(-1, d, q).index_select(0, edges.source)
    return (own - diagonal @ own).index_add(0, edges.target, messages).view(-1, d * q)


def unit_or_zero(rows: Tensor) -> Tensor:
    """Rows of unit Euclidean norm; rows of norm below :data:`NORM_FLOOR` are zero and pass no gradient."""
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    # ~(norm < floor) keeps NaN alive
    alive = ~(norm < NORM_FLOOR)
    return torch.where(alive, rows / torch.where(alive, norm, torch.ones_like(norm)), torch.zeros_like(rows))


def _check_tables(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    source_values: Tensor,
    own_values: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> None:
    h = second_source_weight.shape[-1]
    m, n, e, c = edges.num_sources, edges.num_targets, edges.num_edges, d * q
    for name, tensor, shape in (
        ("source_hidden", source_hidden, (m, 2 * h)),
        ("target_hidden", target_hidden, (n, 2 * h)),
        ("edge_hidden", edge_hidden, (e, 2 * h)),
        ("source_values", source_values, (m, c)),
        ("own_values", own_values, (n, c)),
        ("second_source_weight", second_source_weight, (d * d, h)),
        ("second_source_bias", second_source_bias, (d * d,)),
        ("second_target_weight", second_target_weight, (d * d, h)),
        ("second_target_bias", second_target_bias, (d * d,)),
    ):
        if tensor is not None:
            _check(name, tensor, shape, own_values)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    if tensor.shape != shape:
        raise InputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise InputError(f"{name} is {tensor.dtype} on {tensor.device}, the state {like.dtype} on {like.device}: convert one")


class _Native:
    """The native functions of one scalar type, with the padding they need."""

    def __init__(self, dtype: torch.dtype) -> None:
        module: Any = native_module()
        suffix = "float" if dtype == torch.float32 else "double"
        self.edge_forward = getattr(module, f"edge_forward_{suffix}")
        self.edge_backward = getattr(module, f"edge_backward_{suffix}")
        self.step_forward = getattr(module, f"step_forward_{suffix}")
        self.step_backward = getattr(module, f"step_backward_{suffix}")
        self.lanes: int = getattr(module, f"lanes_{suffix}")()

    def padded(self, width: int) -> int:
        return -(-width // self.lanes) * self.lanes

    def edge_table(self, edge_hidden: Tensor | None, h: int) -> Tensor | None:
        return None if edge_hidden is None else _pad(edge_hidden, 2, self.padded(h))


def _pad(tensor: Tensor, parts: int, width: int) -> Tensor:
    """Every one of ``parts`` equal parts of the rows padded with zeros to ``width``; rows contiguous, detached."""
    tensor = tensor.detach()
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
    return functional.pad(tensor.reshape(-1, parts, part), (0, width - part)).view(-1, parts * width)


def _cut(tensor: Tensor, parts: int, width: int) -> Tensor:
    """The inverse of :func:`_pad` for a gradient."""
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor
    return tensor.reshape(-1, parts, part)[..., :width].reshape(-1, parts * width)


class _Propagate(torch.autograd.Function):
    """The native edge pass; saves its arguments, keeps nothing of size e, recomputes in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        source_hidden: Tensor,
        target_hidden: Tensor,
        edge_hidden: Tensor | None,
        source_values: Tensor,
        own_values: Tensor,
        second_source_weight: Tensor,
        second_source_bias: Tensor,
        second_target_weight: Tensor,
        second_target_bias: Tensor,
        edges: EdgeLayout,
        d: int,
        q: int,
    ) -> Tensor:
        tensors = (
            source_hidden,
            target_hidden,
            edge_hidden,
            source_values,
            own_values,
            second_source_weight,
            second_source_bias,
            second_target_weight,
            second_target_bias,
        )
        ctx.save_for_backward(*tensors)
        ctx.edges, ctx.d, ctx.q = edges, d, q
        native = _Native(own_values.dtype)
        out = own_values.new_empty(edges.num_targets, d * native.padded(q))
        native.edge_forward(*_edge_arguments(native, tensors, edges, d, q), out, torch.get_num_threads())
        return _cut(out, d, q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, edges, d, q = ctx.saved_tensors, ctx.edges, ctx.d, ctx.q
        native = _Native(grad.dtype)
        gradients = _edge_backward(native, tensors, edges, d, q, _pad(grad, d, native.padded(q)))
        return (*gradients, None, None, None)


def _edge_arguments(native: _Native, tensors: Any, edges: EdgeLayout, d: int, q: int) -> tuple[Any, ...]:
    source_hidden, target_hidden, edge_hidden, source_values, own_values, *second = tensors
    hidden, channels = native.padded(second[0].shape[1]), native.padded(q)
    return (
        edges.native,
        d,
        channels,
        hidden,
        _pad(source_hidden, 2, hidden),
        _pad(target_hidden, 2, hidden),
        native.edge_table(edge_hidden, second[0].shape[1]),
        _pad(source_values, d, channels),
        _pad(own_values, d, channels),
        _pad(second[0], 1, hidden).contiguous(),
        second[1].detach().contiguous(),
        _pad(second[2], 1, hidden).contiguous(),
        second[3].detach().contiguous(),
    )


def _edge_backward(
    native: _Native, tensors: Any, edges: EdgeLayout, d: int, q: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of the nine tensors of :func:`sheaf_propagate`."""
    h = tensors[5].shape[1]
    hidden, channels = native.padded(h), native.padded(q)
    width = d * channels
    threads = torch.get_num_threads()
    m, n, e = edges.num_sources, edges.num_targets, edges.num_edges
    source_grad = grad.new_empty(m + edges.native.ghosts(threads), 2 * hidden + width)
    target_hidden_grad = grad.new_empty(n, 2 * hidden)
    own_values_grad = grad.new_empty(n, width)
    edge_hidden_grad = None if tensors[2] is None else grad.new_empty(e, 2 * hidden)
    parameter_grad = grad.new_empty(2 * d * d * (hidden + 1))
    native.edge_backward(
        *_edge_arguments(native, tensors, edges, d, q),
        grad,
        source_grad,
        target_hidden_grad,
        own_values_grad,
        edge_hidden_grad,
        parameter_grad,
        threads,
    )
    weights = parameter_grad[: 2 * d * d * hidden].view(2, d * d, hidden)[:, :, :h]
    biases = parameter_grad[2 * d * d * hidden :].view(2, d * d)
    return (
        _cut(source_grad[:m, : 2 * hidden], 2, h),
        _cut(target_hidden_grad, 2, h),
        None if edge_hidden_grad is None else _cut(edge_hidden_grad, 2, h),
        _cut(source_grad[:m, 2 * hidden :], d, q),
        _cut(own_values_grad, d, q),
        weights[0],
        biases[0],
        weights[1],
        biases[1],
    )


# ---------------------------------------------------------------------- the whole step


def sheaf_step(
    state: Tensor,
    drive: Tensor,
    first_source_weight: Tensor,
    first_source_bias: Tensor,
    first_target_weight: Tensor,
    first_target_bias: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    stalk_mixing: Tensor,
    channel_mixing: Tensor,
    edge_hidden: Tensor | None,
    shift: float,
    norm_order: float,
    pre_norm: bool,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> Tensor:
    """T(H) = tanh(P_{F(Z)} Y) + beta + B, with Z the row-normalised state and Y_v = W_1 H_v W_2; (n, c) -> (n, c).

    Args:
        state: (n, c) H, c = d*q, each row d stalk coordinates of q channels.
        drive: (n, c) B.
        first_source_weight: (h, 2c + d_e) first layer of the source maps: source state, target state, edge features. Columns
            from 2c on are not read here (``edge_hidden`` carries their product) and get a zero gradient.
        first_source_bias: (h,).
        first_target_weight: (h, 2c + d_e) first layer of the target maps.
        first_target_bias: (h,).
        second_source_weight: (d*d, h), with its bias (d*d,).
        second_source_bias: see above.
        second_target_weight: (d*d, h), with its bias (d*d,).
        second_target_bias: see above.
        stalk_mixing: (d, d) W_1.
        channel_mixing: (q, q) W_2.
        edge_hidden: (e, 2h) product of the edge features with the first layers, or None.
        shift: beta.
        norm_order: p of the row normalisation; the native step is used for p = 2.
        pre_norm: normalise the rows of the state before the generators.
        edges: the layout of a whole graph (as many sources as targets).
        d: stalk dimension.
        q: channels.
    """
    arguments = (
        state,
        drive,
        first_source_weight,
        first_source_bias,
        first_target_weight,
        first_target_bias,
        second_source_weight,
        second_source_bias,
        second_target_weight,
        second_target_bias,
        stalk_mixing,
        channel_mixing,
        edge_hidden,
    )
    options = (shift, norm_order, pre_norm, edges, d, q)
    _check_step(*arguments, edges, d, q)
    if native_serves(state) and d <= LARGEST_NATIVE_STALK:
        if norm_order == 2 or not pre_norm:
            return _Step.apply(*arguments, *options)
        return _step(sheaf_propagate, *arguments, *options)
    return sheaf_step_reference(*arguments, *options)


def sheaf_step_reference(
    state: Tensor,
    drive: Tensor,
    first_source_weight: Tensor,
    first_source_bias: Tensor,
    first_target_weight: Tensor,
    first_target_bias: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    stalk_mixing: Tensor,
    channel_mixing: Tensor,
    edge_hidden: Tensor | None,
    shift: float,
    norm_order: float,
    pre_norm: bool,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> Tensor:
    """:func:`sheaf_step` in plain PyTorch, on any device and differentiable any number of times."""
    return _step(
        sheaf_propagate_reference,
        state,
        drive,
        first_source_weight,
        first_source_bias,
        first_target_weight,
        first_target_bias,
        second_source_weight,
        second_source_bias,
        second_target_weight,
        second_target_bias,
        stalk_mixing,
        channel_mixing,
        edge_hidden,
        shift,
        norm_order,
        pre_norm,
        edges,
        d,
        q,
    )


def _step(
    propagate: Any,
    state: Tensor,
    drive: Tensor,
    first_source_weight: Tensor,
    first_source_bias: Tensor,
    first_target_weight: Tensor,
    first_target_bias: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    stalk_mixing: Tensor,
    channel_mixing: Tensor,
    edge_hidden: Tensor | None,
    shift: float,
    norm_order: float,
    pre_norm: bool,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> Tensor:
    """The step around either propagation."""
    c = d * q
    rows = state.view(-1, d, q)
    normalised = state
    if pre_norm:
        norm = torch.linalg.vector_norm(rows, ord=norm_order, dim=-1, keepdim=True)
        normalised = (rows / norm.clamp(min=NORM_FLOOR)).view_as(state)
    first = torch.cat([first_source_weight, first_target_weight])
    values = (stalk_mixing @ rows @ channel_mixing).view_as(state)
    propagated = propagate(
        normalised @ first[:, :c].T,
        functional.linear(normalised, first[:, c : 2 * c], torch.cat([first_source_bias, first_target_bias])),
        edge_hidden,
        values,
        values,
        second_source_weight,
        second_source_bias,
        second_target_weight,
        second_target_bias,
        edges,
        d,
        q,
    )
    return torch.tanh(propagated) + shift + drive


def _check_step(
    state: Tensor,
    drive: Tensor,
    first_source_weight: Tensor,
    first_source_bias: Tensor,
    first_target_weight: Tensor,
    first_target_bias: Tensor,
    second_source_weight: Tensor,
    second_source_bias: Tensor,
    second_target_weight: Tensor,
    second_target_bias: Tensor,
    stalk_mixing: Tensor,
    channel_mixing: Tensor,
    edge_hidden: Tensor | None,
    edges: EdgeLayout,
    d: int,
    q: int,
) -> None:
    n, c = edges.num_targets, d * q
    h, inputs = first_source_weight.shape
    if edges.num_sources != n:
        raise InputError(f"a step needs as many sources as targets, got {edges.num_sources} and {n}")
    if inputs < 2 * c:
        raise InputError(f"first_source_weight must have at least {2 * c} columns, got {inputs}")
    for name, tensor, shape in (
        ("state", state, (n, c)),
        ("drive", drive, (n, c)),
        ("first_source_bias", first_source_bias, (h,)),
        ("first_target_weight", first_target_weight, (h, inputs)),
        ("first_target_bias", first_target_bias, (h,)),
        ("second_source_weight", second_source_weight, (d * d, h)),
        ("second_source_bias", second_source_bias, (d * d,)),
        ("second_target_weight", second_target_weight, (d * d, h)),
        ("second_target_bias", second_target_bias, (d * d,)),
        ("stalk_mixing", stalk_mixing, (d, d)),
        ("channel_mixing", channel_mixing, (q, q)),
        ("edge_hidden", edge_hidden, (edges.num_edges, 2 * h)),
    ):
        if tensor is not None:
            _check(name, tensor, shape, state)


class _Step(torch.autograd.Function):
    """The whole native step. Saved for backward: the state and the tanh, nothing of size e."""

    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        drive: Tensor,
        first_source_weight: Tensor,
        first_source_bias: Tensor,
        first_target_weight: Tensor,
        first_target_bias: Tensor,
        second_source_weight: Tensor,
        second_source_bias: Tensor,
        second_target_weight: Tensor,
        second_target_bias: Tensor,
        stalk_mixing: Tensor,
        channel_mixing: Tensor,
        edge_hidden: Tensor | None,
        shift: float,
        norm_order: float,
        pre_norm: bool,
        edges: EdgeLayout,
        d: int,
        q: int,
    ) -> Tensor:
        native = _Native(state.dtype)
        parameters = (
            first_source_weight,
            first_source_bias,
            first_target_weight,
            first_target_bias,
            second_source_weight,
            second_source_bias,
            second_target_weight,
            second_target_bias,
            stalk_mixing,
            channel_mixing,
        )
        out = torch.empty_like(state, memory_format=torch.contiguous_format)
        tanh = torch.empty_like(out) if any(ctx.needs_input_grad) else None
        native.step_forward(
            edges.native,
            d,
            q,
            pre_norm,
            shift,
            state.detach().contiguous(),
            drive.detach().contiguous(),
            *(parameter.detach().contiguous() for parameter in parameters),
            native.edge_table(edge_hidden, len(first_source_bias)),
            out,
            tanh,
            torch.get_num_threads(),
        )
        ctx.save_for_backward(state, tanh, *parameters, edge_hidden)
        ctx.options = (pre_norm, edges, d, q)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        state, tanh, *parameters, edge_hidden = ctx.saved_tensors
        pre_norm, edges, d, q = ctx.options
        native = _Native(state.dtype)
        h = len(parameters[1])
        state_grad = torch.empty_like(state, memory_format=torch.contiguous_format)
        edge_hidden_grad = None
        if edge_hidden is not None and ctx.needs_input_grad[12]:
            edge_hidden_grad = state.new_empty(len(edge_hidden), 2 * native.padded(h))
        sizes = [parameter.numel() for parameter in parameters]
        parameter_grad = state.new_empty(sum(sizes)) if any(ctx.needs_input_grad[2:12]) else None
        native.step_backward(
            edges.native,
            d,
            q,
            pre_norm,
            state.detach().contiguous(),
            tanh,
            *(parameter.detach().contiguous() for parameter in parameters),
            native.edge_table(edge_hidden, h),
            grad.contiguous(),
            state_grad,
            edge_hidden_grad,
            parameter_grad,
            torch.get_num_threads(),
        )
        gradients: list[Tensor | None] = [None] * len(parameters)
        if parameter_grad is not None:
            parts = parameter_grad.split(sizes)
            gradients = [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
        if edge_hidden_grad is not None:
            edge_hidden_grad = _cut(edge_hidden_grad, 2, h)
        return (state_grad, grad, *gradients, edge_hidden_grad, *(None,) * 6)
