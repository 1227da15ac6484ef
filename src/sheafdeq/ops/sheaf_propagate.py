"""Propagation with state-dependent maps: one signature, native when it can be, PyTorch otherwise.

For a stored edge e = (u -> v), with first-layer products A (sources), B (targets, bias included)
and E (edges),

    hidden_e = relu(A_u + B_v + E_e)   (2h: source generator | target generator)
    F_src(e) = Pi(W_src hidden_e[:h] + b_src),   F_tgt(e) = Pi(W_tgt hidden_e[h:] + b_tgt),   Pi(F)
        = F / ||F||_F
    P_v = Y_v - (1/deg_v) sum_e F_tgt^T F_tgt Y_v + sum_e w_e F_tgt^T F_src Y_u.

:func:`sheaf_propagate` computes P from the tables, and its derivative from the same tables again:
memory O(n c) instead of O(e c). ``sheaf_propagate_reference`` is the same in plain PyTorch. The
native function can be differentiated once, in every floating argument. Results are bitwise equal
from run to run for a given number of threads (``torch.get_num_threads()``).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.derivatives import differentiable_once
from sheafdeq.edges import Edges
from sheafdeq.ops.native_calls import Native, check_tensors, cut, native, native_layout, pad, serves
from sheafdeq.ops.native_module import NORM_FLOOR
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.threads import thread_count

__all__ = [
    "Layers",
    "Tables",
    "check_layers",
    "plain",
    "sheaf_propagate",
    "sheaf_propagate_reference",
    "taming_factor",
    "unit_or_zero",
]


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


def sheaf_propagate(tables: Tables, second: Layers, edges: Edges, d: int, q: int) -> Tensor:
    """P (n, d*q) of the module's equation, from tables and the second layers (d*d, h); m and n are
    those of ``edges``."""
    tables, second = plain(tables), plain(second)
    _check_tables(tables, second, edges, d, q)
    if serves(tables.own_values, d, edges):
        result: Tensor = _Propagate.apply(*tables, *second, edges, d, q)  # type: ignore[no-untyped-call]
        return result
    return sheaf_propagate_reference(tables, second, edges, d, q)


def sheaf_propagate_reference(
    tables: Tables, second: Layers, edges: Edges, d: int, q: int
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
    if edges.share is not None:
        gram = gram * edges.share[:, None, None]
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


def plain(group: Group) -> Group:
    """The same tuple of plain tensors; Nones stay."""
    parts: list[Any] = [
        None if tensor is None else plain_tensor(tensor, "an argument of the step")
        for tensor in group
    ]
    return type(group)(*parts) if hasattr(group, "_fields") else tuple(parts)  # type: ignore[return-value]


def _check_tables(tables: Tables, second: Layers, edges: Edges, d: int, q: int) -> None:
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
        check_tensors(like, (name, getattr(tables, name), shape))
    check_layers("second", second, d * d, h, like)


def check_layers(name: str, layers: Layers, rows: int, inputs: int, like: Tensor) -> None:
    """Raise unless a layer of both generators has the shapes (rows, inputs) and (rows,)."""
    for part, tensor in layers._asdict().items():
        shape = (rows, inputs) if part.endswith("weight") else (rows,)
        check_tensors(like, (f"{name} {part}", tensor, shape))


class _Propagate(torch.autograd.Function):
    """The native edge pass; saves its arguments, keeps nothing of size e, recomputes in
    backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, edges, d, q = arguments  # of Tables, then of Layers
        ctx.save_for_backward(*tensors)
        ctx.edges, ctx.d, ctx.q = edges, d, q
        calls = native(tensors[4].dtype)
        out = calls.empty(edges.num_targets, d * calls.padded(q))
        calls.edge_forward(*_edge_arguments(calls, tensors, edges, d, q), out, thread_count())
        return cut(out, d, q)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        calls, grad = native(grad.dtype), plain_tensor(grad, "the gradient")
        gradients = _edge_backward(
            calls,
            ctx.saved_tensors,
            ctx.edges,
            ctx.d,
            ctx.q,
            pad(grad, ctx.d, calls.padded(ctx.q)),
        )
        return (*gradients, None, None, None)


def _edge_arguments(calls: Native, tensors: Any, edges: Edges, d: int, q: int) -> tuple[Any, ...]:
    tables, second = Tables(*tensors[:5]), Layers(*tensors[5:])
    h = second.source_weight.shape[1]
    hidden, channels = calls.padded(h), calls.padded(q)
    return (
        native_layout(edges),
        d,
        channels,
        hidden,
        pad(tables.source_hidden, 2, hidden),
        pad(tables.target_hidden, 2, hidden),
        calls.edge_table(tables.edge_hidden, h),
        pad(tables.source_values, d, channels),
        pad(tables.own_values, d, channels),
        pad(second.source_weight, 1, hidden).contiguous(),
        second.source_bias.detach().contiguous(),
        pad(second.target_weight, 1, hidden).contiguous(),
        second.target_bias.detach().contiguous(),
    )


def _edge_backward(
    calls: Native, tensors: Any, edges: Edges, d: int, q: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of the nine tensors of :func:`sheaf_propagate`."""
    h = tensors[5].shape[1]
    hidden, channels = calls.padded(h), calls.padded(q)
    width = d * channels
    threads = thread_count()
    m, n, e = edges.num_sources, edges.num_targets, edges.num_edges
    source_grad = calls.empty(m + native_layout(edges).ghosts(threads), 2 * hidden + width)
    target_hidden_grad = calls.empty(n, 2 * hidden)
    own_values_grad = calls.empty(n, width)
    edge_hidden_grad = None if tensors[2] is None else calls.empty(e, 2 * hidden)
    parameter_grad = calls.empty(2 * d * d * (hidden + 1))
    calls.edge_backward(
        *_edge_arguments(calls, tensors, edges, d, q),
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
        cut(source_grad[:m, : 2 * hidden], 2, h),
        cut(target_hidden_grad, 2, h),
        None if edge_hidden_grad is None else cut(edge_hidden_grad, 2, h),
        cut(source_grad[:m, 2 * hidden :], d, q),
        cut(own_values_grad, d, q),
        weights[0],
        biases[0],
        weights[1],
        biases[1],
    )
