"""One d x d block on every edge and every node: generating them, and products with them, fast on a
whole graph.

    (A Y)_v = D_v Y_v + sum over edges e = (u -> v) of  A_e Y_u,        A_e, D_v (d, d),  Y_u (d, q)

:func:`generate`, :func:`propagate` and :func:`gated_map` are what models call. On a CPU the native
kernel serves them
(:mod:`sheafdeq.ops.block_kernel`); everywhere else, and for second derivatives, PyTorch does.

There a graph's blocks are one sparse (n d) x (n d) matrix. Blocks that stay the same for several
products are packed once into its compressed-row order (:func:`pack`) and multiplied many times
(:func:`product`), fifteen to twenty times faster on one core than gathering, multiplying and
scattering edge by edge; :func:`edge_product` is that plain form, for a few edges and as the twin
the tests compare with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.ops.block_kernel import (
    native_blocks,
    native_gated_step,
    native_product,
    native_split_blocks,
    padded_width,
)
from sheafdeq.ops.layout import EdgeLayout
from sheafdeq.ops.native_module import native_serves
from sheafdeq.ops.sheaf_step import LARGEST_NATIVE_STALK, taming_factor
from sheafdeq.recurrence import Incidence

__all__ = [
    "Layout",
    "blocks_from_hidden",
    "edge_parts",
    "edge_product",
    "gated_map",
    "generate",
    "generate_parts",
    "incidence_of",
    "layout_of",
    "mixed_parts",
    "pack",
    "parts_from_hidden",
    "product",
    "propagate",
    "reweighted",
    "two_parts",
]


class Gate(Protocol):
    """What a step asks of a gate (:class:`sheafdeq.layers.gates.Gate`)."""

    @property
    def of_parts(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The gate as a function of (y+, y-)."""

    @property
    def kernel(self) -> str | None:
        """Its name in the native kernel, where it has one."""

    @property
    def floor(self) -> float:
        """eps of the balance gate."""


SplitBlocks = tuple[Tensor, Tensor]
"""Blocks (e, d, d) and diagonal (n, d, d) of one nonnegative part."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the (e + n) * d * d entries of edge and node blocks stand in compressed-row order, and
    how to transpose it."""

    rows: Tensor  # (n * d + 1,) row pointers
    columns: Tensor  # (entries,) column numbers
    # (entries,) entry k of the packed order is entry order[k] of the flattened blocks, edges first
    order: Tensor
    inverse: Tensor  # its inverse
    size: int  # n * d
    swap: Tensor  # (entries,) entry k of the transposed layout is entry swap[k] of this one
    swapped: Layout | None = None

    def matrix(self, entries: Tensor) -> Tensor:
        """The sparse matrix with these packed entries."""
        with warnings.catch_warnings():
            # PyTorch announces once that its compressed-row tensors are in beta
            warnings.simplefilter("ignore")
            return torch.sparse_csr_tensor(
                self.rows, self.columns, entries, (self.size, self.size), check_invariants=False
            )


_INCIDENCES: WeakKeyDictionary[Graph, Incidence] = WeakKeyDictionary()
_LAYOUTS: WeakKeyDictionary[Incidence, dict[int, Layout]] = WeakKeyDictionary()


def incidence_of(graph: Graph) -> Incidence:
    """The graph's incidence; one object while the graph lives, so that its layout is made once and
    not once an epoch."""
    if graph not in _INCIDENCES:
        _INCIDENCES[graph] = Incidence.of(graph)
    return _INCIDENCES[graph]


def reweighted(incidence: Incidence, edge_weight: Tensor) -> Incidence:
    """The same edges with other weights; layouts are shared, since they do not depend on
    weights."""
    result = replace(incidence, edge_weight=edge_weight)
    _LAYOUTS[result] = _LAYOUTS.setdefault(incidence, {})
    result.__dict__[_CONNECTIONS] = _connections(incidence)
    return result


_CONNECTIONS = "_connections"


def _connections(incidence: Incidence) -> EdgeLayout:
    """Who hears whom, as the native kernel reads it; its weights may be those of another incidence
    with the same edges."""
    memory = incidence.__dict__
    if _CONNECTIONS not in memory:
        memory[_CONNECTIONS] = EdgeLayout.of(incidence)
    return memory[_CONNECTIONS]


def layout_of(incidence: Incidence, d: int) -> Layout:
    """The layout of the d x d blocks of a whole graph; made once and kept while the incidence
    lives."""
    layouts = _LAYOUTS.setdefault(incidence, {})
    if d not in layouts:
        layouts[d] = _layout(incidence, d)
    return layouts[d]


def _layout(incidence: Incidence, d: int) -> Layout:
    n = incidence.num_targets
    if incidence.num_sources != n:
        raise InputError(
            f"only a whole graph has a layout: {n} targets read {incidence.num_sources} sources"
        )
    device = incidence.source.device
    nodes, offset = torch.arange(n, device=device), torch.arange(d, device=device)
    target, source = torch.cat([incidence.target, nodes]), torch.cat([incidence.source, nodes])
    shape = (len(target), d, d)
    row = (target[:, None, None] * d + offset[None, :, None]).expand(shape).reshape(-1)
    column = (source[:, None, None] * d + offset[None, None, :]).expand(shape).reshape(-1)
    # Duplicate edges give duplicate entries, which compressed rows allow; stable sorts keep
    # everything deterministic.
    order = torch.argsort(row, stable=True)
    row, column = row[order], column[order]
    swap = torch.argsort(column, stable=True)
    # the fast products take 32-bit indices
    kind = torch.int32 if max(n * d, len(row)) < 2**31 - 1 else torch.int64

    def pointers(index: Tensor) -> Tensor:
        counts = torch.bincount(index, minlength=n * d)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(kind)

    back = _inverse(swap)
    layout = Layout(pointers(row), column.to(kind), order, _inverse(order), n * d, swap)
    swapped = Layout(
        pointers(column),
        row[swap].to(kind),
        order[swap],
        _inverse(order[swap]),
        n * d,
        back,
        layout,
    )
    object.__setattr__(layout, "swapped", swapped)
    return layout


def _inverse(order: Tensor) -> Tensor:
    result = torch.empty_like(order)
    result[order] = torch.arange(len(order), device=order.device)
    return result


# ---------------------------------------------------------------------- what models call


def generate(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    incidence: Incidence,
    *,
    sign: int,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Blocks (e, d, d) and diagonal (n, d, d) of :func:`blocks_from_hidden`, with hidden_e = A_src
    + B_tgt + E_e.

    ``source_hidden`` A and ``target_hidden`` B (n, h), ``edge_hidden`` E (e, h).
    """
    d = round((weight.shape[0] // 2) ** 0.5)
    if _native(target_hidden, d) and not incidence.edge_weight.requires_grad:
        blocks, diagonal = native_blocks(
            source_hidden,
            target_hidden,
            edge_hidden,
            weight,
            bias,
            incidence.edge_weight,
            _connections(incidence),
            sign=float(sign),
            softening=softening,
        )
        return blocks.view(-1, d, d), diagonal.view(-1, d, d)
    hidden = (
        edge_hidden
        + source_hidden.index_select(0, incidence.source)
        + target_hidden.index_select(0, incidence.target)
    )
    return blocks_from_hidden(hidden, weight, bias, incidence, sign=sign, softening=softening)


def generate_parts(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    sizes: Tensor,
    incidence: Incidence,
    *,
    sign: int,
) -> tuple[SplitBlocks, SplitBlocks]:
    """The two nonnegative parts of :func:`parts_from_hidden`, with hidden_e = A_src + B_tgt + E_e;
    shapes as in :func:`generate`."""
    d = round((weight.shape[0] // 2) ** 0.5)
    if _native(target_hidden, d) and not incidence.edge_weight.requires_grad:
        plus, plus_diagonal, minus, minus_diagonal = native_split_blocks(
            source_hidden,
            target_hidden,
            edge_hidden,
            weight,
            bias,
            sizes.reshape(-1, 2 * d * d),
            incidence.edge_weight,
            _connections(incidence),
            sign=float(sign),
        )
        shape = (-1, d, d)
        return (plus.view(shape), plus_diagonal.view(shape)), (
            minus.view(shape),
            minus_diagonal.view(shape),
        )
    hidden = (
        edge_hidden
        + source_hidden.index_select(0, incidence.source)
        + target_hidden.index_select(0, incidence.target)
    )
    return parts_from_hidden(hidden, weight, bias, sizes, incidence, sign=sign)


def blocks_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    incidence: Incidence,
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
    diagonal = _mean_of_products(target_maps, target_maps, incidence)
    eye = torch.eye(weight_dimension(weight), dtype=raw.dtype, device=raw.device)
    return _products(target_maps, source_maps).permute(2, 0, 1) * incidence.edge_weight[
        :, None, None
    ], eye + sign * diagonal


def parts_from_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor, sizes: Tensor, incidence: Incidence, *, sign: int
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
    edge_weight = incidence.edge_weight[:, None, None]
    equal = _products(target_plus, source_plus) + _products(target_minus, source_minus)
    different = _products(target_plus, source_minus) + _products(target_minus, source_plus)
    eye = torch.eye(d, dtype=raw.dtype, device=raw.device).expand(incidence.num_targets, d, d)
    own_equal = _mean_of_products(target_plus, target_plus, incidence) + _mean_of_products(
        target_minus, target_minus, incidence
    )
    crossed = _mean_of_products(target_plus, target_minus, incidence)
    own_different = crossed + crossed.transpose(1, 2)
    first, second = (own_equal, own_different) if sign > 0 else (own_different, own_equal)
    return (equal.permute(2, 0, 1) * edge_weight, eye + first), (
        different.permute(2, 0, 1) * edge_weight,
        second,
    )


def weight_dimension(weight: Tensor) -> int:
    """d of a second layer (2 d d, h)."""
    return round((weight.shape[0] // 2) ** 0.5)


def _raw_maps(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(2, d, d, e): edges last, so that products of small matrices become long vector
    operations."""
    d = weight_dimension(weight)
    return (weight @ hidden.relu().T + bias[:, None]).view(2, d, d, -1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """left^T right of (d, d, e) matrices."""
    return (left.unsqueeze(2) * right.unsqueeze(1)).sum(0)


def _mean_of_products(left: Tensor, right: Tensor, incidence: Incidence) -> Tensor:
    """(n, d, d) sum over the edges into each node of left^T right, divided by its degree."""
    d = left.shape[0]
    gram = _products(left, right).reshape(d * d, -1).T
    total = gram.new_zeros(incidence.num_targets, d * d).index_add(0, incidence.target, gram)
    return (total / incidence.degree[:, None]).view(-1, d, d)


def propagate(blocks: Tensor, diagonal: Tensor, values: Tensor, incidence: Incidence) -> Tensor:
    """A Y on a whole graph: (n, d, q) -> (n, d, q)."""
    if _native(values, values.shape[1]) and values.numel():
        return native_product(blocks, diagonal, values, _connections(incidence))
    return product(pack(blocks, diagonal, incidence), values, incidence)


def gated_map(
    blocks: Tensor,
    diagonal: Tensor,
    mixing: Tensor,
    base: Tensor,
    gate: Gate,
    incidence: Incidence,
    *,
    stalk_mixing: Tensor | None = None,
    minus: SplitBlocks | None = None,
) -> Callable[[Tensor], Tensor]:
    """The map H -> base + gate(y+, y-) of states (n, d*q) on a whole graph, H >= 0.

    y+ - y- = A W_1 H W_2 and y+ + y- = |A| |W_1| H |W_2|, each of y+- a sum of nonnegative terms
    (:mod:`sheafdeq.layers.gates`).

    Args:
        blocks: (e, d, d), edges of A; of A+ with ``minus``.
        diagonal: (n, d, d), nodes of A; of A+ with ``minus``.
        mixing: (q, q) W_2.
        base: (n, d*q).
        gate: the gate.
        incidence: of the whole graph.
        stalk_mixing: (d, d) W_1, the identity when left out.
        minus: blocks and diagonal of A- >= 0, when A = A+ - A- is not to be split by the signs of
            its entries.
    """
    d, q = blocks.shape[-1], mixing.shape[0]
    kernel = gate.kernel if _native(base, d) and base.numel() else None
    width = padded_width(q, mixing.dtype) if kernel is not None else q
    both = torch.cat(two_parts(functional.pad(mixing, (0, width - q))), dim=1)  # W+ | W-
    # one large product is faster than many small ones: entry (jk, ic) of W_1 (x) W_2, in two parts
    if stalk_mixing is not None:
        first, second = two_parts(stalk_mixing)
        turned = torch.cat([both[:, width:], both[:, :width]], dim=1)
        both = torch.einsum("ij,kc->jkic", first, both) + torch.einsum(
            "ij,kc->jkic", second, turned
        )
        both = both.reshape(d * q, d * 2 * width)

    def values_of(state: Tensor) -> Tensor:
        """(n, d, 2*width) X+ | X- with X+ - X- = W_1 H W_2."""
        return (state.reshape(-1, both.shape[0]) @ both).view(-1, d, 2 * width)

    if kernel is not None:
        edges = _connections(incidence)
        return lambda state: native_gated_step(
            values_of(state), base, blocks, diagonal, minus, edges, kernel, gate.floor
        )

    entries = two_parts(pack(blocks, diagonal, incidence)) if minus is None else (
        pack(blocks, diagonal, incidence), pack(*minus, incidence)
    )  # fmt: skip

    def plain_map(state: Tensor) -> Tensor:
        values = values_of(state)
        first, second = (product(part, values, incidence) for part in entries)
        plus, minus_part = first[..., :q] + second[..., q:], first[..., q:] + second[..., :q]
        return base + gate.of_parts(plus, minus_part).reshape(state.shape)

    return plain_map


def two_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The positive part and the negative part, both nonnegative: tensor = first - second. At zero
    each takes half of a gradient."""
    size, half = 0.5 * tensor.abs(), 0.5 * tensor
    return size + half, size - half


def mixed_parts(
    matrix: tuple[Tensor, Tensor], plus: Tensor, minus: Tensor
) -> tuple[Tensor, Tensor]:
    """The two parts of M X from those of M and of X: (M+ X+ + M- X-, M+ X- + M- X+)."""
    positive, negative = matrix
    return positive @ plus + negative @ minus, positive @ minus + negative @ plus


def edge_parts(
    plus: SplitBlocks,
    minus: SplitBlocks,
    own: tuple[Tensor, Tensor],
    received: tuple[Tensor, Tensor],
    incidence: Incidence,
) -> tuple[Tensor, Tensor]:
    """(y+, y-) edge by edge, for messages of any age: ``own`` (n, d, q) and ``received`` (e, d, q)
    each as X+, X-."""
    sides = []
    for first, second in (received, received[::-1]):
        sides.append(
            edge_product(plus[0], first, incidence) + edge_product(minus[0], second, incidence)
        )
    nodes = mixed_parts((plus[1], minus[1]), *own)
    return sides[0] + nodes[0], sides[1] + nodes[1]


def _native(tensor: Tensor, d: int) -> bool:
    return native_serves(tensor) and d <= LARGEST_NATIVE_STALK


# ---------------------------------------------------------------------- in PyTorch


def pack(blocks: Tensor, diagonal: Tensor, incidence: Incidence) -> Tensor:
    """(e, d, d) edge blocks and (n, d, d) node blocks -> ((e + n) * d * d,) entries in
    compressed-row order."""
    layout = layout_of(incidence, blocks.shape[-1])
    return _Reorder.apply(
        torch.cat([blocks.reshape(-1), diagonal.reshape(-1)]), layout.order, layout.inverse
    )


def product(entries: Tensor, values: Tensor, incidence: Incidence) -> Tensor:
    """Packed entries times values: (n, d, q) -> (n, d, q)."""
    n, d, q = values.shape
    if values.numel() == 0:
        return values
    return _Product.apply(entries, values.reshape(n * d, q), layout_of(incidence, d)).view(n, d, q)


def edge_product(blocks: Tensor, received: Tensor, incidence: Incidence) -> Tensor:
    """The edges' share of the product, edge by edge: ``received`` (e, d, q) holds the source value
    of every edge."""
    e, d, q = received.shape
    messages = (blocks @ received).reshape(e, d * q)
    return (
        messages.new_zeros(incidence.num_targets, d * q)
        .index_add(0, incidence.target, messages)
        .view(-1, d, q)
    )


class _Reorder(torch.autograd.Function):
    """A permutation whose backward is the inverse permutation (a gather, where autograd would
    scatter)."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return flat.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _Reorder.apply(gradient, inverse, order), None, None


class _Product(torch.autograd.Function):
    """Sparse times dense, bilinear in entries and values; twice differentiable."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, values: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(entries, values)
        ctx.layout = layout
        return layout.matrix(entries.detach()) @ values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        entries, values = ctx.saved_tensors
        layout: Layout = ctx.layout
        by_entries = _Sampled.apply(gradient, values, layout) if ctx.needs_input_grad[0] else None
        by_values = (
            _transposed_product(entries, gradient, layout) if ctx.needs_input_grad[1] else None
        )
        return by_entries, by_values, None


class _Sampled(torch.autograd.Function):
    """Entry (i, j) of the layout gets the inner product of row i of ``left`` and row j of
    ``right``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.layout = layout
        # parallel edges beyond what a compressed-row tensor may hold
        if len(layout.columns) > layout.size**2:
            counts = layout.rows.diff()
            row = torch.repeat_interleave(torch.arange(layout.size, device=left.device), counts)
            return (left.index_select(0, row) * right.index_select(0, layout.columns)).sum(1)
        pattern = layout.matrix(left.new_zeros(len(layout.columns)))
        return torch.sparse.sampled_addmm(
            pattern, left.contiguous(), right.T.contiguous(), beta=0.0
        ).values()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        layout: Layout = ctx.layout
        by_left = _Product.apply(gradient, right, layout) if ctx.needs_input_grad[0] else None
        by_right = _transposed_product(gradient, left, layout) if ctx.needs_input_grad[1] else None
        return by_left, by_right, None


def _transposed_product(entries: Tensor, values: Tensor, layout: Layout) -> Tensor:
    assert layout.swapped is not None
    turned = _Reorder.apply(entries, layout.swap, layout.swapped.swap)
    return _Product.apply(turned, values.contiguous(), layout.swapped)
