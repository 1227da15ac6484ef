"""The sheaf step with state-dependent maps: one signature, native when it can be, pure PyTorch
otherwise.

For a stored edge e = (u -> v), with first-layer products A (sources), B (targets, bias included)
and E (edges),

    hidden_e = relu(A_u + B_v + E_e)   (2h: source generator | target generator)
    F_src(e) = Pi(W_src hidden_e[:h] + b_src),   F_tgt(e) = Pi(W_tgt hidden_e[h:] + b_tgt),   Pi(F)
        = F / ||F||_F
    P_v = Y_v - (1/deg_v) sum_e F_tgt^T F_tgt Y_v + sum_e w_e F_tgt^T F_src Y_u.

:func:`sheaf_propagate` computes P from the tables; :func:`sheaf_step` computes the whole update
T(H) = tanh(P) + beta + B from the state, as one differentiable function that saves the state and
the tanh and recomputes everything on edges: memory O(n c) a step instead of O(e c). ``*_reference``
are the same in plain PyTorch.

The native functions can be differentiated once, in every floating argument. Results are bitwise
equal from run to run for a given number of threads (``torch.get_num_threads()``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sheafdeq.errors import InputError
from sheafdeq.ops.layout import EdgeLayout
from sheafdeq.ops.native_module import NORM_FLOOR, native_module, native_serves
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.threads import thread_count

__all__ = [
    "LARGEST_NATIVE_STALK",
    "Layers",
    "StepOptions",
    "StepWeights",
    "Tables",
    "sheaf_propagate",
    "sheaf_propagate_reference",
    "sheaf_step",
    "sheaf_step_reference",
    "taming_factor",
    "unit_or_zero",
]

LARGEST_NATIVE_STALK = 16
ADVISE_BYTES = 32 << 20
"""Tensors from this size on ask for huge pages. The C library maps them anew every time, and with
small pages the system then spends longer on page faults than some passes take; smaller ones it
keeps and hands out again."""


class Layers(NamedTuple):
    """One layer of both generators: source maps and target maps, each weight (rows, inputs) and
    bias (rows,)."""

    source_weight: Tensor
    source_bias: Tensor
    target_weight: Tensor
    target_bias: Tensor


class Tables(NamedTuple):
    """What the edges read. m sources and n targets; for a whole graph both are its nodes."""

    source_hidden: Tensor  # (m, 2h) A, a row for each source
    target_hidden: Tensor  # (n, 2h) B, a row for each target
    edge_hidden: Tensor | None  # (e, 2h) E
    source_values: Tensor  # (m, d*q) Y at the sources
    own_values: Tensor  # (n, d*q) Y at the targets


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
    edges: EdgeLayout
    d: int
    q: int


# ---------------------------------------------------------------------- propagation from tables


def sheaf_propagate(tables: Tables, second: Layers, edges: EdgeLayout, d: int, q: int) -> Tensor:
    """P (n, d*q) of the module's equation, from tables and the second layers (d*d, h); m and n are
    those of ``edges``."""
    tables, second = _plain(tables), _plain(second)
    _check_tables(tables, second, edges, d, q)
    if native_serves(tables.own_values) and d <= LARGEST_NATIVE_STALK:
        return _Propagate.apply(*tables, *second, edges, d, q)
    return sheaf_propagate_reference(tables, second, edges, d, q)


def sheaf_propagate_reference(
    tables: Tables, second: Layers, edges: EdgeLayout, d: int, q: int
) -> Tensor:
    """:func:`sheaf_propagate` in plain PyTorch, on any device and differentiable any number of
    times."""
    h = second.source_weight.shape[1]
    hidden = tables.source_hidden.index_select(0, edges.source) + tables.target_hidden.index_select(
        0, edges.target
    )
    if tables.edge_hidden is not None:
        hidden = hidden + tables.edge_hidden
    hidden = hidden.relu()
    source_maps = unit_or_zero(
        functional.linear(hidden[:, :h], second.source_weight, second.source_bias)
    ).view(-1, d, d)
    target_maps = unit_or_zero(
        functional.linear(hidden[:, h:], second.target_weight, second.target_bias)
    ).view(-1, d, d)
    own = tables.own_values.view(-1, d, q)
    gram = (
        target_maps.transpose(1, 2)
        @ target_maps
        / edges.degree.to(own.dtype)[edges.target, None, None]
    )
    diagonal = gram.new_zeros(edges.num_targets, d, d).index_add(0, edges.target, gram)
    blocks = target_maps.transpose(1, 2) @ source_maps * edges.weight.to(own.dtype)[:, None, None]
    messages = blocks @ tables.source_values.view(-1, d, q).index_select(0, edges.source)
    return (own - diagonal @ own).index_add(0, edges.target, messages).view(-1, d * q)


def taming_factor(peak: Tensor) -> Tensor:
    """One, or a power of two that keeps squares of numbers up to ``peak`` finite; normalised
    results do not change by a bit.

    Applied only where a norm is so large that it stays far above every floor afterwards.
    """
    single = peak.dtype == torch.float32
    largest, factor = (2.0**48, 2.0**-80) if single else (2.0**490, 2.0**-530)
    return torch.where(peak > largest, torch.full_like(peak, factor), torch.ones_like(peak))


def unit_or_zero(rows: Tensor) -> Tensor:
    """Rows of unit Euclidean norm; rows of norm below :data:`NORM_FLOOR` are zero and pass no
    gradient."""
    if rows.numel():
        rows = rows * taming_factor(rows.detach().abs().amax(1, keepdim=True))
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    # ~(norm < floor) keeps NaN alive
    alive = ~(norm < NORM_FLOOR)
    return torch.where(
        alive, rows / torch.where(alive, norm, torch.ones_like(norm)), torch.zeros_like(rows)
    )


Group = TypeVar("Group", bound="tuple[Any, ...]")


def _plain(group: Group) -> Group:
    """The same tuple of plain tensors; Nones stay."""
    parts: list[Any] = [
        None if tensor is None else plain_tensor(tensor, "an argument of the step")
        for tensor in group
    ]
    return type(group)(*parts) if hasattr(group, "_fields") else tuple(parts)  # type: ignore[return-value]


def _check_tables(tables: Tables, second: Layers, edges: EdgeLayout, d: int, q: int) -> None:
    h = second.source_weight.shape[-1]
    m, n, e, c = edges.num_sources, edges.num_targets, edges.num_edges, d * q
    like = tables.own_values
    for name, shape in (
        ("source_hidden", (m, 2 * h)),
        ("target_hidden", (n, 2 * h)),
        ("edge_hidden", (e, 2 * h)),
        ("source_values", (m, c)),
        ("own_values", (n, c)),
    ):
        _check(name, getattr(tables, name), shape, like)
    _check_layers("second", second, d * d, h, like)


def _check_layers(name: str, layers: Layers, rows: int, inputs: int, like: Tensor) -> None:
    for part, tensor in layers._asdict().items():
        _check(
            f"{name} {part}", tensor, (rows, inputs) if part.endswith("weight") else (rows,), like
        )


def _check(name: str, tensor: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    if tensor is None:
        return
    if tensor.shape != shape:
        raise InputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise InputError(
            f"{name} is {tensor.dtype} on {tensor.device}, the state {like.dtype} on "
            f"{like.device}: convert one"
        )


class _Native:
    """The native functions of one scalar type, with the padding they need."""

    def __init__(self, dtype: torch.dtype) -> None:
        module: Any = native_module()
        self.dtype = dtype
        suffix = "float" if dtype == torch.float32 else "double"
        self.edge_forward = getattr(module, f"edge_forward_{suffix}")
        self.edge_backward = getattr(module, f"edge_backward_{suffix}")
        self.step_forward = getattr(module, f"step_forward_{suffix}")
        self.step_backward = getattr(module, f"step_backward_{suffix}")
        self.lanes: int = getattr(module, f"lanes_{suffix}")()
        self.advise = module.advise

    def padded(self, width: int) -> int:
        return -(-width // self.lanes) * self.lanes

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor; a large one asks for huge pages before it is first written."""
        tensor = torch.empty(shape, dtype=self.dtype)
        if tensor.nbytes >= ADVISE_BYTES:
            self.advise(tensor)
        return tensor

    def contiguous(self, tensor: Tensor) -> Tensor:
        """``tensor`` itself, or a copy whose rows lie one after the other."""
        return tensor if tensor.is_contiguous() else self.empty(*tensor.shape).copy_(tensor)

    def edge_table(self, edge_hidden: Tensor | None, h: int) -> Tensor | None:
        return None if edge_hidden is None else _pad(edge_hidden, 2, self.padded(h))


def _pad(tensor: Tensor, parts: int, width: int) -> Tensor:
    """Every one of ``parts`` equal parts of the rows padded with zeros to ``width``; rows
    contiguous, detached."""
    tensor = tensor.detach()
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
    return functional.pad(tensor.reshape(-1, parts, part), (0, width - part)).view(
        -1, parts * width
    )


def _cut(tensor: Tensor, parts: int, width: int) -> Tensor:
    """The inverse of :func:`_pad` for a gradient."""
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor
    return tensor.reshape(-1, parts, part)[..., :width].reshape(-1, parts * width)


class _Propagate(torch.autograd.Function):
    """The native edge pass; saves its arguments, keeps nothing of size e, recomputes in
    backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, edges, d, q = arguments  # of Tables, then of Layers
        ctx.save_for_backward(*tensors)
        ctx.edges, ctx.d, ctx.q = edges, d, q
        native = _Native(tensors[4].dtype)
        out = native.empty(edges.num_targets, d * native.padded(q))
        native.edge_forward(*_edge_arguments(native, tensors, edges, d, q), out, thread_count())
        return _cut(out, d, q)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        native, grad = _Native(grad.dtype), plain_tensor(grad, "the gradient")
        gradients = _edge_backward(
            native,
            ctx.saved_tensors,
            ctx.edges,
            ctx.d,
            ctx.q,
            _pad(grad, ctx.d, native.padded(ctx.q)),
        )
        return (*gradients, None, None, None)


def _edge_arguments(
    native: _Native, tensors: Any, edges: EdgeLayout, d: int, q: int
) -> tuple[Any, ...]:
    tables, second = Tables(*tensors[:5]), Layers(*tensors[5:])
    h = second.source_weight.shape[1]
    hidden, channels = native.padded(h), native.padded(q)
    return (
        edges.native,
        d,
        channels,
        hidden,
        _pad(tables.source_hidden, 2, hidden),
        _pad(tables.target_hidden, 2, hidden),
        native.edge_table(tables.edge_hidden, h),
        _pad(tables.source_values, d, channels),
        _pad(tables.own_values, d, channels),
        _pad(second.source_weight, 1, hidden).contiguous(),
        second.source_bias.detach().contiguous(),
        _pad(second.target_weight, 1, hidden).contiguous(),
        second.target_bias.detach().contiguous(),
    )


def _edge_backward(
    native: _Native, tensors: Any, edges: EdgeLayout, d: int, q: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of the nine tensors of :func:`sheaf_propagate`."""
    h = tensors[5].shape[1]
    hidden, channels = native.padded(h), native.padded(q)
    width = d * channels
    threads = thread_count()
    m, n, e = edges.num_sources, edges.num_targets, edges.num_edges
    source_grad = native.empty(m + edges.native.ghosts(threads), 2 * hidden + width)
    target_hidden_grad = native.empty(n, 2 * hidden)
    own_values_grad = native.empty(n, width)
    edge_hidden_grad = None if tensors[2] is None else native.empty(e, 2 * hidden)
    parameter_grad = native.empty(2 * d * d * (hidden + 1))
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
    weights = StepWeights.of(_plain(weights.flat))
    if native_serves(state) and options.d <= LARGEST_NATIVE_STALK:
        if options.norm_order == 2 or not options.pre_norm:
            return _Step.apply(state, drive, *weights.flat, edge_hidden, options)
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
        _check(name, tensor, shape, state)
    _check_layers("first", weights.first, h, inputs, state)
    _check_layers("second", weights.second, d * d, h, state)


class _Step(torch.autograd.Function):
    """The whole native step. Saved for backward: the state and the tanh, nothing of size e."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, drive: Tensor, *arguments: Any) -> Tensor:
        *parameters, edge_hidden, options = arguments  # of StepWeights.flat
        native = _Native(state.dtype)
        out = native.empty(*state.shape)
        tanh = native.empty(*state.shape) if any(ctx.needs_input_grad) else None
        native.step_forward(
            options.edges.native,
            options.d,
            options.q,
            options.pre_norm,
            options.shift,
            state.detach().contiguous(),
            drive.detach().contiguous(),
            *(parameter.detach().contiguous() for parameter in parameters),
            native.edge_table(edge_hidden, len(parameters[1])),
            out,
            tanh,
            thread_count(),
        )
        ctx.save_for_backward(state, tanh, *parameters, edge_hidden)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        state, tanh, *parameters, edge_hidden = ctx.saved_tensors
        grad = plain_tensor(grad, "the gradient")
        options = ctx.options
        native = _Native(state.dtype)
        h = len(parameters[1])
        state_grad = native.empty(*state.shape)
        edge_hidden_grad = None
        if edge_hidden is not None and ctx.needs_input_grad[12]:
            edge_hidden_grad = native.empty(len(edge_hidden), 2 * native.padded(h))
        sizes = [parameter.numel() for parameter in parameters]
        parameter_grad = native.empty(sum(sizes)) if any(ctx.needs_input_grad[2:12]) else None
        native.step_backward(
            options.edges.native,
            options.d,
            options.q,
            options.pre_norm,
            state.detach().contiguous(),
            tanh,
            *(parameter.detach().contiguous() for parameter in parameters),
            native.edge_table(edge_hidden, h),
            native.contiguous(grad),
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
            edge_hidden_grad = _cut(edge_hidden_grad, 2, h)
        return (state_grad, grad, *gradients, edge_hidden_grad, None)
