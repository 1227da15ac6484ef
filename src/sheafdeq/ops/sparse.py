"""Sparse products on graphs: every comparison model aggregates through the few functions of this
file.

With a :class:`Pattern` of entries k = (row, column), values a_k and a dense table X,

    aggregate(a, X)_r = sum over entries k of row r of a_k X_{column(k)}   (sparse matrix times
        dense matrix)
    correlate(P, X)_k = <P_{row(k)}, X_{column(k)}>   (dense times dense, only at the entries)

Each is bilinear, and each is the other's derivative, so both are differentiable any number of times
(reverse and forward mode) without an (edges x channels) array ever being stored. ``aggregate`` is
an embedding bag, which is what PyTorch offers fastest on a CPU: nothing is written for an edge,
where gathering, multiplying and ``index_add`` write every message twice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.recurrence import Incidence

__all__ = [
    "FixedWeights",
    "Pattern",
    "aggregate",
    "attend",
    "correlate",
    "gcn_weights",
    "pattern_of",
    "propagate",
]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the entries of a sparse matrix are: rows in order, any column order, repeated entries
    allowed."""

    offsets: Tensor  # (rows + 1,) the entries of row r are offsets[r]:offsets[r + 1]
    column: Tensor  # (entries,)
    num_columns: int

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    @cached_property
    def row(self) -> Tensor:
        """(entries,) the row of every entry."""
        rows = torch.arange(self.num_rows, device=self.column.device)
        return torch.repeat_interleave(rows, self.offsets.diff())

    @cached_property
    def order(self) -> Tensor:
        """(entries,) the entries listed by column."""
        return torch.argsort(self.column, stable=True)

    @cached_property
    def transposed(self) -> Pattern:
        """The pattern of the transposed matrix; its entry k is entry ``order[k]`` here."""
        counts = torch.bincount(self.column, minlength=self.num_columns)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Pattern(offsets, self.row[self.order], self.num_rows)

    @staticmethod
    def of(incidence: Incidence) -> Pattern:
        """One entry for each stored edge, row = target, column = source."""
        return Pattern(incidence.pointer, incidence.source, incidence.num_sources)

    def reading(self, index: Tensor, num_columns: int) -> Pattern:
        """The same rows with entry k in column ``index[k]`` of another table."""
        return Pattern(self.offsets, index, num_columns)

    @cached_property
    def _derived(self) -> dict[Any, Any]:
        """Patterns and zero matrices made from this one; they are wanted again at every step."""
        return {}

    def heads(self, count: int) -> Pattern:
        """``count`` copies down the diagonal: values (count, entries), tables (count, columns,
        width), both flattened."""
        if count == 1:
            return self
        if ("heads", count) not in self._derived:
            self._derived["heads", count] = self._make_heads(count)
        return self._derived["heads", count]

    def blocks(self, size: int) -> Pattern:
        """Every entry becomes a ``size`` x ``size`` block.

        Values are flattened (size, entries, size): block row, entry, block column. The table is
        (columns, size, width) and the result (size, rows, width), both flattened.
        """
        if ("blocks", size) not in self._derived:
            self._derived["blocks", size] = self._make_blocks(size)
        return self._derived["blocks", size]

    @cached_property
    def of_entries(self) -> Pattern:
        """The same rows reading a table with one row for each entry."""
        entries = len(self.column)
        return Pattern(self.offsets, torch.arange(entries, device=self.column.device), entries)

    def _make_heads(self, count: int) -> Pattern:
        copies = torch.arange(count, device=self.column.device).unsqueeze(1)
        entries = len(self.column)
        starts = (self.offsets[:-1] + copies * entries).flatten()
        offsets = torch.cat([starts, starts.new_tensor([count * entries])])
        return Pattern(
            offsets, (self.column + copies * self.num_columns).flatten(), count * self.num_columns
        )

    def _make_blocks(self, size: int) -> Pattern:
        inner = torch.arange(size, device=self.column.device)
        column = (self.column.unsqueeze(1) * size + inner).flatten().repeat(size)
        entries = len(self.column) * size
        starts = (self.offsets[:-1] * size + inner.unsqueeze(1) * entries).flatten()
        return Pattern(
            torch.cat([starts, starts.new_tensor([size * entries])]),
            column,
            self.num_columns * size,
        )

    def zeros(self, dtype: torch.dtype) -> Tensor:
        """The zero matrix with these entries, as PyTorch's sampled product wants it."""
        if dtype not in self._derived:
            # PyTorch announces, once for each process, that CSR tensors are in beta
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values = torch.zeros(len(self.column), dtype=dtype, device=self.column.device)
                self._derived[dtype] = torch.sparse_csr_tensor(
                    self.offsets,
                    self.column,
                    values,
                    (self.num_rows, self.num_columns),
                    check_invariants=False,
                )
        return self._derived[dtype]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, table: Tensor, pattern: Pattern) -> Tensor:
        if len(pattern.column) == 0 or pattern.num_rows == 0:
            return table.new_zeros(pattern.num_rows, table.shape[1])
        return functional.embedding_bag(
            pattern.column,
            table.contiguous(),
            pattern.offsets[:-1],
            mode="sum",
            per_sample_weights=values.contiguous(),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, table, ctx.pattern = inputs
        ctx.save_for_backward(values, table)
        ctx.save_for_forward(values, table)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, table = ctx.saved_tensors
        pattern = ctx.pattern
        to_values = correlate(grad, table, pattern) if ctx.needs_input_grad[0] else None
        to_table = (
            aggregate(values.index_select(0, pattern.order), grad, pattern.transposed)
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
            parts.append(aggregate(values_tangent, table, ctx.pattern))
        if table_tangent is not None:
            parts.append(aggregate(values, table_tangent, ctx.pattern))
        return sum(parts[1:], parts[0])


class _Correlate(torch.autograd.Function):
    @staticmethod
    def forward(left: Tensor, right: Tensor, pattern: Pattern) -> Tensor:
        if len(pattern.column) == 0:
            return left.new_zeros(0)
        # parallel entries beyond what a CSR tensor may hold
        if len(pattern.column) > pattern.num_rows * pattern.num_columns:
            return (left.index_select(0, pattern.row) * right.index_select(0, pattern.column)).sum(
                1
            )
        product = torch.sparse.sampled_addmm(
            pattern.zeros(left.dtype), left.contiguous(), right.contiguous().T
        )
        return product.values()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        left, right, ctx.pattern = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        pattern = ctx.pattern
        to_left = aggregate(grad, right, pattern) if ctx.needs_input_grad[0] else None
        to_right = (
            aggregate(grad.index_select(0, pattern.order), left, pattern.transposed)
            if ctx.needs_input_grad[1]
            else None
        )
        return to_left, to_right, None

    @staticmethod
    def jvp(ctx: Any, left_tangent: Tensor | None, right_tangent: Tensor | None, _: None) -> Tensor:
        left, right = ctx.saved_tensors
        parts = []
        if left_tangent is not None:
            parts.append(correlate(left_tangent, right, ctx.pattern))
        if right_tangent is not None:
            parts.append(correlate(left, right_tangent, ctx.pattern))
        return sum(parts[1:], parts[0])


def aggregate(values: Tensor, table: Tensor, pattern: Pattern) -> Tensor:
    """(entries,), (columns, c) -> (rows, c): sum over each row's entries of value times table
    row."""
    return _Aggregate.apply(values, table, pattern)


def correlate(left: Tensor, right: Tensor, pattern: Pattern) -> Tensor:
    """(rows, c), (columns, c) -> (entries,): the inner product at every entry."""
    return _Correlate.apply(left, right, pattern)


def row_maximum(values: Tensor, pattern: Pattern) -> Tensor:
    """(entries,) -> (rows,) the largest value of every row, -inf for an empty row; carries no
    gradient."""
    if len(values) == 0:
        return values.new_full((pattern.num_rows,), -torch.inf)
    return torch.segment_reduce(
        values.detach(), "max", offsets=pattern.offsets, axis=0, initial=-torch.inf
    )


def row_sum(values: Tensor, pattern: Pattern) -> Tensor:
    """(entries,) -> (rows,)."""
    return values.new_zeros(pattern.num_rows).index_add(0, pattern.row, values)


# ---------------------------------------------------------------------- fixed weights

_PATTERNS: WeakKeyDictionary[Graph, Pattern] = WeakKeyDictionary()
_WEIGHTS: WeakKeyDictionary[Graph, dict[bool, FixedWeights]] = WeakKeyDictionary()


def pattern_of(graph: Graph) -> Pattern:
    """The pattern of a graph's stored edges; kept as long as the graph itself lives."""
    if graph not in _PATTERNS:
        _PATTERNS[graph] = Pattern(graph.pointer, graph.source, graph.num_nodes)
    return _PATTERNS[graph]


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """The symmetrically normalised adjacency: ``edge`` (e,) for stored edges, ``own`` (n,) for the
    added self-loops."""

    edge: Tensor
    own: Tensor


def gcn_weights(graph: Graph, *, self_loops: bool) -> FixedWeights:
    r"""D^{-1/2} A D^{-1/2}, or with self-loops :math:`D_+^{-1/2} (A + I) D_+^{-1/2}`; kept as long
    as the graph lives.

    Degrees count incoming edges (plus one with ``self_loops``) and are clamped to one where they
    divide.
    """
    known = _WEIGHTS.setdefault(graph, {})
    if self_loops not in known:
        if self_loops:
            root = (graph.in_degree + 1).to(graph.x.dtype).rsqrt()
            edge = root.index_select(0, graph.source) * root.index_select(0, graph.target)
            known[self_loops] = FixedWeights(edge, root.square())
        else:
            known[self_loops] = FixedWeights(
                graph.edge_weight, graph.degree.new_zeros(graph.num_nodes)
            )
    return known[self_loops]


def propagate(
    edge_weight: Tensor, own_weight: Tensor | None, own: Tensor, table: Tensor, pattern: Pattern
) -> Tensor:
    """Weighted sum over incoming edges, reading ``table``, plus the self-loop's share of ``own``:
    (n, c)."""
    received = aggregate(edge_weight, table, pattern)
    return received if own_weight is None else received + own_weight.unsqueeze(1) * own


# ---------------------------------------------------------------------- attention


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    *,
    own: tuple[Tensor, Tensor] | None = None,
    edge: tuple[Tensor, Tensor | None] | None = None,
) -> Tensor:
    r"""Multi-head softmax attention over incoming edges; heads come first everywhere.

    .. math::
        o_i = \sum_j \alpha_{ij} v_j, \qquad
        \alpha_{i\cdot} = \mathrm{softmax}_j(q_i^\top k_j / \sqrt{w})

    ``query`` (M, rows, w), ``key`` and ``value`` (M, columns, w). ``own = (key, value)`` (M, rows,
    w) adds every node itself. ``edge = (key, value)`` (M, entries, w) are added to the key and
    value of every entry (``value`` may be None). Rows without any entry give zero. ``pattern`` has
    one entry for each edge. Result (M, rows, w).
    """
    heads, rows, width = query.shape
    many = pattern.heads(heads)
    flat_query = (query * width**-0.5).reshape(heads * rows, width)
    scores = correlate(flat_query, key.reshape(-1, width), many)
    if edge is not None:
        scores = scores + correlate(flat_query, edge[0].reshape(-1, width), many.of_entries)
    return softmax_aggregate(
        scores,
        value.reshape(-1, width),
        many,
        own=None
        if own is None
        else ((flat_query * own[0].reshape(-1, width)).sum(1), own[1].reshape(-1, width)),
        edge_value=None if edge is None or edge[1] is None else edge[1].reshape(-1, width),
    ).view(heads, rows, width)


def softmax_aggregate(
    scores: Tensor,
    value: Tensor,
    pattern: Pattern,
    *,
    own: tuple[Tensor, Tensor] | None = None,
    edge_value: Tensor | None = None,
) -> Tensor:
    """(entries,), (columns, w) -> (rows, w): values averaged with the softmax of each row's scores.

    ``own = (scores (rows,), values (rows, w))`` takes part in every row's softmax. Weights are
    normalised after the sum, so no per-entry division is needed; the row maximum is subtracted
    first, so nothing overflows.
    """
    top = row_maximum(scores, pattern)
    if own is not None:
        top = torch.maximum(top, own[0].detach())
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    weights = (scores - top.index_select(0, pattern.row)).exp()
    total, result = row_sum(weights, pattern), aggregate(weights, value, pattern)
    if edge_value is not None:
        result = result + aggregate(weights, edge_value, pattern.of_entries)
    if own is not None:
        share = (own[0] - top).exp()
        total, result = total + share, result + share.unsqueeze(1) * own[1]
    return result / torch.where(total > 0, total, torch.ones_like(total)).unsqueeze(1)


def split_heads(values: Tensor, heads: int) -> Tensor:
    """(n, M*w) -> (M, n, w)."""
    return values.view(len(values), heads, values.shape[1] // heads).transpose(0, 1)


def join_heads(values: Tensor) -> Tensor:
    """(M, n, w) -> (n, M*w)."""
    return values.transpose(0, 1).reshape(values.shape[1], values.shape[0] * values.shape[2])
