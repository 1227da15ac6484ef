"""Sparse products on graphs, once: every model that aggregates in PyTorch does it by this pair.

With edges k = (source -> target) as the entries of a matrix (row = target, column = source), values
a_k and a dense table X,

    aggregate(a, X)_v = sum over edges k into v of a_k X_{source(k)}    (sparse times dense, SpMM)
    correlate(P, X)_k = <P_{target(k)}, X_{source(k)}>                  (only at the edges, SDDMM)

Each is bilinear, and each is the other's derivative, so both are differentiable any number of times
(reverse and forward mode) without an (edges x channels) array ever being stored. ``aggregate`` is
an embedding bag, which is what PyTorch offers fastest on a CPU: nothing is written for an edge,
where gathering, multiplying and ``index_add`` write every message twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges

__all__ = ["aggregate", "correlate", "row_maximum", "row_sum"]

Product = Callable[[Tensor, Tensor, Edges], Tensor]


class _Bilinear(torch.autograd.Function):
    """A product of two tensors on edges."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first, second, ctx.edges = inputs
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)


def _product_rule(
    product: Product, ctx: Any, first_tangent: Tensor | None, second_tangent: Tensor | None
) -> Tensor:
    first, second = ctx.saved_tensors
    parts = []
    if first_tangent is not None:
        parts.append(product(first_tangent, second, ctx.edges))
    if second_tangent is not None:
        parts.append(product(first, second_tangent, ctx.edges))
    return sum(parts[1:], parts[0])


def _to_sources(values: Tensor, table: Tensor, edges: Edges) -> Tensor:
    """The transposed product: sum over the edges out of u of value times the row of the target."""
    return aggregate(values.index_select(0, edges.by_source), table, edges.transposed)


class _Aggregate(_Bilinear):
    @staticmethod
    def forward(values: Tensor, table: Tensor, edges: Edges) -> Tensor:
        if len(edges.source) == 0 or edges.num_targets == 0:
            return table.new_zeros(edges.num_targets, table.shape[1])
        return functional.embedding_bag(
            edges.source,
            table.contiguous(),
            edges.pointer[:-1],
            mode="sum",
            per_sample_weights=values.contiguous(),
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, table = ctx.saved_tensors
        edges = ctx.edges
        to_values = correlate(grad, table, edges) if ctx.needs_input_grad[0] else None
        to_table = _to_sources(values, grad, edges) if ctx.needs_input_grad[1] else None
        return to_values, to_table, None

    @staticmethod
    def jvp(ctx: Any, values: Tensor | None, table: Tensor | None, _: None) -> Tensor:
        return _product_rule(aggregate, ctx, values, table)


class _Correlate(_Bilinear):
    @staticmethod
    def forward(left: Tensor, right: Tensor, edges: Edges) -> Tensor:
        if len(edges.source) == 0:
            return left.new_zeros(0)
        # parallel entries beyond what a CSR tensor may hold
        if len(edges.source) > edges.num_targets * edges.num_sources:
            return (left.index_select(0, edges.target) * right.index_select(0, edges.source)).sum(1)
        product = torch.sparse.sampled_addmm(
            _zeros(edges, left.dtype), left.contiguous(), right.contiguous().T
        )
        result: Tensor = product.values()
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        edges = ctx.edges
        to_left = aggregate(grad, right, edges) if ctx.needs_input_grad[0] else None
        to_right = _to_sources(grad, left, edges) if ctx.needs_input_grad[1] else None
        return to_left, to_right, None

    @staticmethod
    def jvp(ctx: Any, left: Tensor | None, right: Tensor | None, _: None) -> Tensor:
        return _product_rule(correlate, ctx, left, right)


def aggregate(values: Tensor, table: Tensor, edges: Edges) -> Tensor:
    """(entries,), (columns, c) -> (rows, c): sum over each row's entries of value times table
    row."""
    if torch.compiler.is_compiling():  # the compiler fuses what is written out
        rows = values.unsqueeze(1) * table.index_select(0, edges.source)
        return rows.new_zeros(edges.num_targets, table.shape[1]).index_add(0, edges.target, rows)
    result: Tensor = _Aggregate.apply(values, table, edges)  # type: ignore[no-untyped-call]
    return result


def correlate(left: Tensor, right: Tensor, edges: Edges) -> Tensor:
    """(rows, c), (columns, c) -> (entries,): the inner product at every entry."""
    if torch.compiler.is_compiling():
        return (left.index_select(0, edges.target) * right.index_select(0, edges.source)).sum(1)
    result: Tensor = _Correlate.apply(left, right, edges)  # type: ignore[no-untyped-call]
    return result


def row_maximum(values: Tensor, edges: Edges) -> Tensor:
    """(entries,) -> (rows,) the largest value of every row, -inf for an empty row; carries no
    gradient."""
    if len(values) == 0:
        return values.new_full((edges.num_targets,), -torch.inf)
    return torch.segment_reduce(
        values.detach(), "max", offsets=edges.pointer, axis=0, initial=-torch.inf
    )


def row_sum(values: Tensor, edges: Edges) -> Tensor:
    """(entries,) -> (rows,)."""
    return values.new_zeros(edges.num_targets).index_add(0, edges.target, values)


def _zeros(edges: Edges, dtype: torch.dtype) -> Tensor:
    """The zero matrix with these entries, as PyTorch's sampled product wants it."""

    def make() -> Tensor:
        # PyTorch announces, once for each process, that CSR tensors are in beta
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = torch.zeros(edges.num_edges, dtype=dtype, device=edges.source.device)
            shape = (edges.num_targets, edges.num_sources)
            return torch.sparse_csr_tensor(
                edges.pointer, edges.source, values, shape, check_invariants=False
            )

    return edges.kept(dtype, make)
