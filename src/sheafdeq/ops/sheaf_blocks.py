"""One d x d block on every edge and every node, generated from hidden rows: the sheaf as a matrix.

    A_e = w_e F_tgt^T F_src,      D_v = I + (sign / deg_v) sum over edges e into v of F_tgt^T F_tgt

:func:`generate` and :func:`generate_parts` are what models call. On a CPU the native kernel serves
them (:mod:`sheafdeq.ops.block_kernel`); everywhere else, and for second derivatives, PyTorch does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops.block_kernel import native_blocks, native_split_blocks
from sheafdeq.ops.native_calls import serves
from sheafdeq.ops.sheaf_propagate import taming_factor

__all__ = [
    "SplitBlocks",
    "blocks_from_hidden",
    "generate",
    "generate_parts",
    "parts_from_hidden",
]

SplitBlocks = tuple[Tensor, Tensor]
"""Blocks (e, d, d) and diagonal (n, d, d) of one nonnegative part."""


def generate(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    edges: Edges,
    *,
    sign: int,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Blocks (e, d, d) and diagonal (n, d, d) of :func:`blocks_from_hidden`, with hidden_e = A_src
    + B_tgt + E_e.

    ``source_hidden`` A and ``target_hidden`` B (n, h), ``edge_hidden`` E (e, h).
    """
    d = round((weight.shape[0] // 2) ** 0.5)
    if serves(target_hidden, d, edges) and not edges.weight.requires_grad:
        blocks, diagonal = native_blocks(
            source_hidden,
            target_hidden,
            edge_hidden,
            weight,
            bias,
            edges.weight,
            edges.wiring,
            sign=float(sign),
            softening=softening,
        )
        return blocks.view(-1, d, d), diagonal.view(-1, d, d)
    hidden = (
        edge_hidden
        + source_hidden.index_select(0, edges.source)
        + target_hidden.index_select(0, edges.target)
    )
    return blocks_from_hidden(hidden, weight, bias, edges, sign=sign, softening=softening)


def generate_parts(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    sizes: Tensor,
    edges: Edges,
    *,
    sign: int,
) -> tuple[SplitBlocks, SplitBlocks]:
    """The two nonnegative parts of :func:`parts_from_hidden`, with hidden_e = A_src + B_tgt + E_e;
    shapes as in :func:`generate`."""
    d = round((weight.shape[0] // 2) ** 0.5)
    if serves(target_hidden, d, edges) and not edges.weight.requires_grad:
        plus, plus_diagonal, minus, minus_diagonal = native_split_blocks(
            source_hidden,
            target_hidden,
            edge_hidden,
            weight,
            bias,
            sizes.reshape(-1, 2 * d * d),
            edges.weight,
            edges.wiring,
            sign=float(sign),
        )
        shape = (-1, d, d)
        return (plus.view(shape), plus_diagonal.view(shape)), (
            minus.view(shape),
            minus_diagonal.view(shape),
        )
    hidden = (
        edge_hidden
        + source_hidden.index_select(0, edges.source)
        + target_hidden.index_select(0, edges.target)
    )
    return parts_from_hidden(hidden, weight, bias, sizes, edges, sign=sign)


def blocks_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    edges: Edges,
    *,
    sign: int,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Blocks w_e F_tgt^T F_src (e, d, d) and diagonal I + (sign/deg) sum F_tgt^T F_tgt (n, d, d),
    in PyTorch.

    F = raw / sqrt(|raw|_F^2 + softening^2); raw = W relu(hidden) + b holds the source and the
    target map. ``hidden`` (e, h), ``weight`` (2 d d, h), ``bias`` (2 d d,).
    """
    raw = _raw_maps(hidden, weight, bias)
    # Squares of very large entries overflow: a power of two, taken out first, changes no bit of the
    # result.
    factor = taming_factor(
        raw.detach().abs().amax((1, 2), keepdim=True) if raw.numel() else raw[:, :1, :1]
    )
    raw = raw * factor
    source_maps, target_maps = (
        raw * (raw.square().sum((1, 2), keepdim=True) + (softening * factor) ** 2).rsqrt()
    )
    diagonal = _mean_of_products(target_maps, target_maps, edges)
    eye = torch.eye(weight_dimension(weight), dtype=raw.dtype, device=raw.device)
    return _products(target_maps, source_maps).permute(2, 0, 1) * edges.weight[
        :, None, None
    ], eye + sign * diagonal


def parts_from_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor, sizes: Tensor, edges: Edges, *, sign: int
) -> tuple[SplitBlocks, SplitBlocks]:
    """((plus blocks, plus diagonal), (minus blocks, minus diagonal)): (S + A)/2 and (S - A)/2, in
    PyTorch.

    A are blocks and diagonal as in :func:`blocks_from_hidden` for F = M tanh(raw / 2), ``sizes`` M
    >= 0 (e, 2, d, d), and S the same for M in the place of F with + on the diagonal, which bounds
    |A|. Nothing is subtracted: with F+ = M sigmoid(raw) and F- = M sigmoid(-raw),  (S + A)/2 =
    F_tgt+^T F_src+ + F_tgt-^T F_src-  and  (S - A)/2 = F_tgt+^T F_src- + F_tgt-^T F_src+.
    """
    raw = _raw_maps(hidden, weight, bias)
    d = weight_dimension(weight)
    size = sizes.reshape(-1, 2, d, d).permute(1, 2, 3, 0)
    (source_plus, target_plus), (source_minus, target_minus) = (
        size * torch.sigmoid(raw),
        size * torch.sigmoid(-raw),
    )
    edge_weight = edges.weight[:, None, None]
    equal = _products(target_plus, source_plus) + _products(target_minus, source_minus)
    different = _products(target_plus, source_minus) + _products(target_minus, source_plus)
    eye = torch.eye(d, dtype=raw.dtype, device=raw.device).expand(edges.num_targets, d, d)
    own_equal = _mean_of_products(target_plus, target_plus, edges) + _mean_of_products(
        target_minus, target_minus, edges
    )
    crossed = _mean_of_products(target_plus, target_minus, edges)
    own_different = crossed + crossed.transpose(1, 2)
    first, second = (own_equal, own_different) if sign > 0 else (own_different, own_equal)
    return (equal.permute(2, 0, 1) * edge_weight, eye + first), (
        different.permute(2, 0, 1) * edge_weight,
        second,
    )


def weight_dimension(weight: Tensor) -> int:
    """d of a second layer (2 d d, h)."""
    result: int = round((weight.shape[0] // 2) ** 0.5)
    return result


def _raw_maps(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(2, d, d, e): edges last, so that products of small matrices become long vector
    operations."""
    d = weight_dimension(weight)
    return (weight @ hidden.relu().T + bias[:, None]).view(2, d, d, -1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left^T right of (d, d, e) matrices."""
    return (left.unsqueeze(2) * right.unsqueeze(1)).sum(0)


def _mean_of_products(left: Tensor, right: Tensor, edges: Edges) -> Tensor:
    """(n, d, d) sum over the edges into each node of left^T right, divided by its degree."""
    d = left.shape[0]
    gram = _products(left, right).reshape(d * d, -1).T
    if edges.share is not None:
        gram = gram * edges.share[:, None]
    total = gram.new_zeros(edges.num_targets, d * d).index_add(0, edges.target, gram)
    return (total / edges.degree[:, None]).view(-1, d, d)
