r"""Softmax attention over incoming edges: one signature, native when it can be, PyTorch otherwise.

For every target i and head m, over the stored edges k = (j -> i), and i itself where ``own`` is
given,

.. math::
    s_k = \frac{q_i^\top (k_j + e_k)}{\sqrt w} + b_k \quad\text{or}\quad
    s_k = \mathrm{LeakyReLU}(q_i + k_j), \qquad
    \alpha = \mathrm{softmax}_k(s_k), \qquad o_i = \sum_k \alpha_k (v_j + f_k).

Nodes come first everywhere and the heads of a node lie side by side, as a linear layer writes them.
The native pass (``ops/attention_kernel.py``) keeps the largest score and the sum of every target
and recomputes the rest: memory O(n c). The reference stores scores for every edge and head; it also
serves derivatives of the derivative. A row without entries is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops.attention_kernel import native_attention
from sheafdeq.ops.native_calls import check_tensors
from sheafdeq.ops.native_module import native_serves
from sheafdeq.ops.sparse import aggregate, correlate, row_maximum, row_sum

__all__ = ["Attended", "EdgeTerms", "attention", "attention_reference", "packed_attention"]


class Attended(NamedTuple):
    """Keys and values that are attended to, a row each; heads side by side."""

    key: Tensor  # (rows, M*w), or (rows, M) for additive scores
    value: Tensor  # (rows, M*u), or (rows, u) when all heads share it


class EdgeTerms(NamedTuple):
    """What single edges contribute; None: nothing."""

    key: Tensor | None = None  # (e, M*w) e_k
    value: Tensor | None = None  # (e, M*u) f_k
    bias: Tensor | None = None  # (e, M) b_k
    own_bias: Tensor | None = None  # (M,) the same for every node itself


NOTHING = EdgeTerms()


class Read(NamedTuple):
    """What is attended to, and how; :func:`attention` explains it."""

    table: Attended
    own: Attended | None
    terms: EdgeTerms
    slope: float | None = None
    shared_value: bool = False
    share: Tensor | None = None


def attention(
    query: Tensor,
    table: Attended,
    edges: Edges,
    heads: int,
    *,
    own: Attended | None = None,
    terms: EdgeTerms = NOTHING,
    slope: float | None = None,
    shared_value: bool = False,
    share: Tensor | None = None,
) -> Tensor:
    """(n, M*u) o of the module's equation.

    Args:
        query: (n, M*w), or (n, M) with ``slope``.
        table: what the edges read.
        edges: n targets that read the rows of ``table``.
        heads: M.
        own: n rows; every target attends to its own one, too. The same object as ``table`` where
            the edges read the targets themselves.
        terms: what single edges contribute.
        slope: of LeakyReLU, for additive scores.
        shared_value: all heads average the same values.
        share: (e,) factors on the exponentials, so that an edge of share zero is absent (PyTorch).
    """
    given = Read(table, own, terms, slope, shared_value, share)
    _check(query, edges, heads, given)
    if share is not None or not native_serves(query):
        return attention_reference(query, edges, heads, given)
    key, value, apart = table.key, table.value, own is not None and own is not table
    if apart:  # loops read rows behind those of the table
        assert own is not None
        key, value = torch.cat([key, own.key]), torch.cat([value, own.value])

    def again(tables: tuple[Tensor, ...], parts: tuple[Tensor | None, ...]) -> Tensor:
        m = edges.num_sources
        rows, itself = (
            Attended(tables[1][part], tables[2][part]) for part in (slice(m), slice(m, None))
        )
        read = given._replace(
            table=rows,
            own=itself if apart else None if own is None else rows,
            terms=EdgeTerms(*parts),
        )
        return attention_reference(tables[0], edges, heads, read)

    return native_attention(
        (query, key, value),
        terms,
        edges,
        heads,
        again,
        loops=None if own is None else apart,
        slope=slope,
        shared_value=shared_value,
    )


def packed_attention(
    packed: Tensor, edges: Edges, heads: int, *, own: bool, terms: EdgeTerms = NOTHING
) -> Tensor:
    """:func:`attention` of a whole graph from one table (n, 3*M*w): queries, keys, values.

    One product makes the table and one gradient comes back for it.
    """
    n, columns = packed.shape
    if columns % (3 * heads) or not edges.num_targets == edges.num_sources == n:
        raise InputError(
            f"{n} rows of {columns} columns are not queries, keys and values of {heads} heads for "
            f"{edges.num_targets} nodes: give (nodes, 3 * heads * width)"
        )

    def again(tables: tuple[Tensor, ...], given: tuple[Tensor | None, ...]) -> Tensor:
        query, key, value = tables[0].tensor_split(3, dim=1)
        table = Attended(key, value)
        itself = table if own else None
        return attention_reference(query, edges, heads, Read(table, itself, EdgeTerms(*given)))

    _check_terms(packed, edges, heads, columns // 3, columns // 3, terms, own)
    if not native_serves(packed):
        return again((packed,), terms)
    return native_attention((packed,), terms, edges, heads, again, loops=False if own else None)


def attention_reference(query: Tensor, edges: Edges, heads: int, given: Read) -> Tensor:
    """:func:`attention` in plain PyTorch, on any device and differentiable any number of times."""
    table, own, terms, slope, shared_value, share = given
    n, many = len(query), edges.heads(heads)
    width = query.shape[1] // heads
    rows, keys = _by_head(query, heads), _by_head(table.key, heads)
    own_keys = None if own is None else keys if own is table else _by_head(own.key, heads)
    own_scores = None
    if slope is not None:
        scores = functional.leaky_relu(
            keys.index_select(0, many.source) + rows.index_select(0, many.target), slope
        ).squeeze(1)
        if own_keys is not None:
            own_scores = functional.leaky_relu(own_keys + rows, slope).squeeze(1)
    else:
        rows = rows * width**-0.5
        scores = correlate(rows, keys, many)
        if terms.key is not None:
            scores = scores + correlate(rows, _by_head(terms.key, heads), many.one_by_one)
        if terms.bias is not None:
            scores = scores + terms.bias.T.reshape(-1)
        if own_keys is not None:
            own_scores = (rows * own_keys).sum(1)
            if terms.own_bias is not None:
                own_scores = own_scores + terms.own_bias.repeat_interleave(n)

    def values(rows: Tensor) -> Tensor:
        return rows.repeat(heads, 1) if shared_value else _by_head(rows, heads)

    value = values(table.value)
    own_pair = None
    if own is not None and own_scores is not None:
        own_pair = own_scores, value if own is table else values(own.value)
    result = softmax_aggregate(
        scores,
        value,
        many,
        own=own_pair,
        edge_value=None if terms.value is None else _by_head(terms.value, heads),
        share=None if share is None else share.repeat(heads),
    )
    return result.view(heads, n, -1).transpose(0, 1).reshape(n, heads * result.shape[1])


def softmax_aggregate(
    scores: Tensor,
    value: Tensor,
    edges: Edges,
    *,
    own: tuple[Tensor, Tensor] | None = None,
    edge_value: Tensor | None = None,
    share: Tensor | None = None,
) -> Tensor:
    """(entries,), (columns, w) -> (rows, w): values averaged with the softmax of each row's scores.

    ``own = (scores (rows,), values (rows, w))`` takes part in every row's softmax; ``share``
    (entries,) multiplies the exponentials, so that an entry of share zero is absent. Weights are
    normalised after the sum, so no per-entry division is needed; the row maximum is subtracted
    first, so nothing overflows.
    """
    top = row_maximum(scores, edges)
    if own is not None:
        top = torch.maximum(top, own[0].detach())
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    weights = (scores - top.index_select(0, edges.target)).exp()
    if share is not None:
        weights = weights * share
    total, result = row_sum(weights, edges), aggregate(weights, value, edges)
    if edge_value is not None:
        result = result + aggregate(weights, edge_value, edges.one_by_one)
    if own is not None:
        share = (own[0] - top).exp()
        total, result = total + share, result + share.unsqueeze(1) * own[1]
    return result / torch.where(total > 0, total, torch.ones_like(total)).unsqueeze(1)


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """(r, M*w) -> (M*r, w), also for r = 0."""
    width = rows.shape[1] // heads
    return rows.reshape(len(rows), heads, width).transpose(0, 1).reshape(-1, width)


def _check(query: Tensor, edges: Edges, heads: int, given: Read) -> None:
    table, own, terms, slope, shared_value, _ = given
    n, columns = query.shape
    value_columns = table.value.shape[1]
    spread = value_columns * heads if shared_value else value_columns
    if heads < 1 or columns % heads or spread % heads or (slope is not None and columns != heads):
        raise InputError(
            f"queries of {columns} and values of {value_columns} columns do not fit {heads} heads"
            f"{' of additive scores' if slope is not None else ''}"
        )
    check_tensors(
        query,
        ("query", query, (edges.num_targets, columns)),
        ("key", table.key, (edges.num_sources, columns)),
        ("value", table.value, (edges.num_sources, value_columns)),
    )
    if own is not None:
        check_tensors(
            query, ("own key", own.key, (n, columns)), ("own value", own.value, (n, value_columns))
        )
    if slope is not None and (terms.key, terms.bias, terms.own_bias) != (None, None, None):
        raise InputError("additive scores take no edge keys and no bias")
    _check_terms(query, edges, heads, columns, spread, terms, own is not None)


def _check_terms(
    like: Tensor,
    edges: Edges,
    heads: int,
    columns: int,
    value_columns: int,
    terms: EdgeTerms,
    own: bool,
) -> None:
    e = edges.num_edges
    check_tensors(
        like,
        ("edge key", terms.key, (e, columns)),
        ("edge value", terms.value, (e, value_columns)),
        ("edge bias", terms.bias, (e, heads)),
        ("own bias", terms.own_bias, (heads,)),
    )
    if terms.own_bias is not None and not own:
        raise InputError("an own bias needs nodes that attend to themselves: give own")
