"""Softmax attention by the extension: padding, layouts with loops, and the derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops.native_calls import cut, dense, native, native_layout, pad
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.threads import thread_count

__all__ = ["native_attention"]


def native_attention(
    tables: tuple[Tensor, ...],
    terms: tuple[Tensor | None, ...],
    edges: Edges,
    heads: int,
    again: Callable[[tuple[Tensor, ...], tuple[Tensor | None, ...]], Tensor],
    *,
    loops: bool | None = None,
    slope: float | None = None,
    shared_value: bool = False,
) -> Tensor:
    """``ops.attention.attention`` natively, (n, M*u); arguments were checked.

    Args:
        tables: (query, key, value), or one table that holds them side by side.
        terms: edge key, edge value, edge bias, own bias.
        edges: without loops.
        heads: M.
        again: the same from (tables, terms) in PyTorch, for derivatives of the derivative.
        loops: None without; False: target i also reads row i; True: row ``num_sources + i``.
        slope: of additive scores.
        shared_value: one value row for all heads.
    """
    layout_edges = _unweighted(edges.wiring) if loops is None else with_loops(edges, loops)
    packed = len(tables) == 1
    if packed:
        width = value_width = tables[0].shape[1] // (3 * heads)
    else:
        width = tables[0].shape[1] // heads
        value_width = tables[2].shape[1] // (1 if shared_value else heads)
    scale = width**-0.5 if slope is None else slope
    options = (heads, width, value_width, slope is not None, shared_value, loops is not None, scale)
    rows = (*tables, None, None) if packed else tables
    edge_key, edge_value, *biases = terms
    same = edge_key is not None and edge_value is edge_key  # one table and one gradient
    result: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        *rows, edge_key, None if same else edge_value, *biases, layout_edges, options, same, again
    )
    return result


def with_loops(edges: Edges, apart: bool) -> Edges:
    """The same edges with one more into every target, last of those into it, which reads the row of
    the target: row i, or ``num_sources + i`` when ``apart``. Kept with the edges."""
    wiring = edges.wiring
    return wiring.kept(("attention loops", apart), lambda: _with_loops(wiring, apart))


def _unweighted(edges: Edges) -> Edges:
    """The edges themselves where they have a layout; attention has no weights of edges, so those
    that read another table and were given none get ones."""
    if edges.num_sources == edges.num_targets or edges.given_weight is not None:
        return edges
    ones = edges.source.new_ones(max(edges.num_edges, edges.num_targets), dtype=edges.dtype)
    return edges.kept(
        "attention",
        lambda: replace(
            edges, given_degree=ones[: edges.num_targets], given_weight=ones[: edges.num_edges]
        ),
    )


def _with_loops(edges: Edges, apart: bool) -> Edges:
    n, e, device = edges.num_targets, edges.num_edges, edges.source.device
    nodes = torch.arange(n, device=device)
    pointer = edges.pointer + torch.arange(n + 1, device=device)
    source = torch.empty(e + n, dtype=torch.int64, device=device)
    source[torch.arange(e, device=device) + edges.target] = edges.source
    source[pointer[1:] - 1] = nodes + edges.num_sources if apart else nodes
    ones = torch.ones(e + n, dtype=edges.dtype, device=device)
    return Edges(
        source,
        pointer,
        edges.num_sources + (n if apart else 0),
        edges.dtype,
        None,
        ones[:n],
        ones,
    )


class _Attention(torch.autograd.Function):
    """Saves its arguments, the result, and the largest score and sum of every target and head."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        edge_key: Tensor | None,
        edge_value: Tensor | None,
        bias: Tensor | None,
        own_bias: Tensor | None,
        edges: Edges,
        options: tuple[Any, ...],
        same: bool,
        again: Any,
    ) -> Tensor:
        heads, _, value_width = options[:3]
        n, kernel = edges.num_targets, native(query.dtype)
        padded = kernel.padded(value_width)
        tensors = (query, key, value, edge_key, edge_value, bias, own_bias)
        out = kernel.empty(n, heads * padded)
        statistics = kernel.empty(2 * n, heads)
        kernel.attention_forward(
            *_arguments(tensors, edges, options, same), out, statistics, thread_count()
        )
        ctx.save_for_backward(*tensors, out, statistics)
        ctx.shared, ctx.again = (edges, options, same), again
        if padded == value_width:
            return out
        return cut(out, heads, value_width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, statistics = ctx.saved_tensors
        query, key, _, edge_key, edge_value, bias, _ = tensors
        edges, options, same = ctx.shared
        if torch.is_grad_enabled():  # the derivative will be differentiated
            return _differentiable(ctx, tensors, same, grad)
        heads, width, value_width, additive, shared_value = options[:5]
        kernel, threads, m = native(query.dtype), thread_count(), edges.num_sources
        rows = m + native_layout(edges).ghosts(threads)
        wide = heads * (1 if additive else kernel.padded(width))
        value_wide = (1 if shared_value else heads) * kernel.padded(value_width)
        packed = key is None
        if packed:
            table_grad = kernel.empty(rows, 3 * wide)
            query_grad, key_grad, value_grad = table_grad.split(wide, dim=1)
        else:
            query_grad = kernel.empty(edges.num_targets, wide)
            key_grad = kernel.empty(rows, wide)
            value_grad = kernel.empty(rows, value_wide)
        by_edge_key, by_edge_value, by_bias, by_own_bias = ctx.needs_input_grad[3:7]
        edge_key_grad = kernel.empty(len(edge_key), wide) if by_edge_key else None
        edge_value_grad = edge_key_grad if same else None
        if by_edge_value:
            edge_value_grad = kernel.empty(len(edge_value), heads * kernel.padded(value_width))
        bias_grad = kernel.empty(*bias.shape) if by_bias else None
        own_bias_grad = kernel.empty(heads) if by_own_bias else None
        kernel.attention_backward(
            *_arguments(tensors, edges, options, same),
            out,
            statistics,
            pad(dense(grad), heads, kernel.padded(value_width)),
            query_grad,
            key_grad,
            value_grad,
            edge_key_grad,
            edge_value_grad,
            bias_grad,
            own_bias_grad,
            threads,
        )
        edge_grads = (
            None if edge_key_grad is None else cut(edge_key_grad, heads, width),
            None if same or edge_value_grad is None else cut(edge_value_grad, heads, value_width),
        )
        last = (*edge_grads, bias_grad, own_bias_grad, *(None,) * 4)
        if packed:
            return cut(table_grad[:m], 3 * heads, width), None, None, *last
        return (
            cut(query_grad, heads, width),
            cut(key_grad[:m], heads, width),
            cut(value_grad[:m], 1 if shared_value else heads, value_width),
            *last,
        )


def _differentiable(
    ctx: Any, tensors: list[Any], same: bool, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The derivative by PyTorch, which can differentiate it again."""
    query, key, value, edge_key, edge_value, *biases = tensors
    tables = (query,) if key is None else (query, key, value)
    terms = (edge_key, edge_key if same else edge_value, *biases)
    wanted = [t for t, need in zip(tensors, ctx.needs_input_grad, strict=False) if need]
    parts = iter(torch.autograd.grad(ctx.again(tables, terms), wanted, grad, create_graph=True))
    return tuple(next(parts) if need else None for need in ctx.needs_input_grad)


def _arguments(tensors: Any, edges: Edges, options: tuple[Any, ...], same: bool) -> tuple[Any, ...]:
    """Layout, sizes and padded tables, in the order of the native calls."""
    heads, width, value_width, additive, shared_value, loops, scale = options
    query, key, value, edge_key, edge_value, bias, own_bias = tensors
    kernel = native(query.dtype)
    if not additive:
        width = kernel.padded(width)
    value_width = kernel.padded(value_width)
    if key is None:
        rows = _rows(query, 3 * heads, width).split(heads * width, dim=1)
    else:
        rows = (
            _rows(query, heads, width),
            _rows(key, heads, width),
            _rows(value, 1 if shared_value else heads, value_width),
        )
    edge_rows = None if edge_key is None else _rows(edge_key, heads, width)
    return (
        native_layout(edges),
        heads,
        width,
        value_width,
        additive,
        shared_value,
        loops,
        scale,
        *rows,
        edge_rows,
        edge_rows
        if same
        else None
        if edge_value is None
        else _rows(edge_value, heads, value_width),
        None if bias is None else dense(bias),
        None if own_bias is None else dense(own_bias),
    )


def _rows(tensor: Tensor, parts: int, width: int) -> Tensor:
    return pad(plain_tensor(tensor, "a table"), parts, width)
