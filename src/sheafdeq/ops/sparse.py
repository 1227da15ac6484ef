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
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges

__all__ = ["aggregate", "correlate", "row_maximum", "row_sum"]


class _Aggregate(torch.autograd.Function):
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
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, table, ctx.edges = inputs
        ctx.save_for_backward(values, table)
        ctx.save_for_forward(values, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, table = ctx.saved_tensors
        edges = ctx.edges
        to_values = correlate(grad, table, edges) if ctx.needs_input_grad[0] else None
        to_table = (
            aggregate(values.index_select(0, edges.by_source), grad, edges.transposed)
            if ctx.needs_input_grad[1]
            else None
        )
        return to_values, to_table, None

    @staticmethod
    def jvp(
        ctx: Any, values_tangent: Tensor | None, table_tangent: Tensor | None, _: None
    ) -> Tensor:
        values, table = ctx.saved_tensors
        parts = []
        if values_tangent is not None:
            parts.append(aggregate(values_tangent, table, ctx.edges))
        if table_tangent is not None:
            parts.append(aggregate(values, table_tangent, ctx.edges))
        return sum(parts[1:], parts[0])


class _Correlate(torch.autograd.Function):
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
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        left, right, ctx.edges = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        edges = ctx.edges
        to_left = aggregate(grad, right, edges) if ctx.needs_input_grad[0] else None
        to_right = (
            aggregate(grad.index_select(0, edges.by_source), left, edges.transposed)
            if ctx.needs_input_grad[1]
            else None
        )
        return to_left, to_right, None

    @staticmethod
    def jvp(ctx: Any, left_tangent: Tensor | None, right_tangent: Tensor | None, _: None) -> Tensor:
        left, right = ctx.saved_tensors
        parts = []
        if left_tangent is not None:
            parts.append(correlate(left_tangent, right, ctx.edges))
        if right_tangent is not None:
            parts.append(correlate(left, right_tangent, ctx.edges))
        return sum(parts[1:], parts[0])


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
