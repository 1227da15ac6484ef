"""Softmax attention over incoming edges, with several heads and with every node itself."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops.sparse import aggregate, correlate, row_maximum, row_sum

__all__ = ["attend", "join_heads", "softmax_aggregate", "split_heads"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Edges,
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
    value of every entry (``value`` may be None). Rows without any entry give zero. Result
    (M, rows, w).
    """
    heads, rows, width = query.shape
    many = edges.heads(heads)
    flat_query = (query * width**-0.5).reshape(heads * rows, width)
    scores = correlate(flat_query, key.reshape(-1, width), many)
    if edge is not None:
        scores = scores + correlate(flat_query, edge[0].reshape(-1, width), many.one_by_one)
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


def split_heads(values: Tensor, heads: int) -> Tensor:
    """(n, M*w) -> (M, n, w)."""
    return values.view(len(values), heads, values.shape[1] // heads).transpose(0, 1)


def join_heads(values: Tensor) -> Tensor:
    """(M, n, w) -> (n, M*w)."""
    return values.transpose(0, 1).reshape(values.shape[1], values.shape[0] * values.shape[2])
