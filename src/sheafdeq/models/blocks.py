"""One d x d block on every edge and every node: generating them, and products with them, fast on a whole graph.

    (A Y)_v = D_v Y_v + sum over edges e = (u -> v) of  A_e Y_u,        A_e, D_v (d, d),  Y_u (d, q)

:func:`generate`, :func:`propagate` and :func:`gated_map` are what models call. On a CPU the native kernel serves them
(:mod:`sheafdeq.kernels.blocks`); everywhere else, and for second derivatives, PyTorch does.

There a graph's blocks are one sparse (n d) x (n d) matrix. Blocks that stay the same for several products are packed once into
its compressed-row order (:func:`pack`) and multiplied many times (:func:`product`), fifteen to twenty times faster on one core than
gathering, multiplying and scattering edge by edge; :func:`edge_product` is that plain form, for a few edges and as the twin the
tests compare with.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.kernels.blocks import native_blocks, native_gated_step, native_product, padded_width
from sheafdeq.kernels.edge_step import LARGEST_NATIVE_STALK
from sheafdeq.kernels.layout import EdgeLayout
from sheafdeq.kernels.native_module import native_serves
from sheafdeq.models.split import Gate
from sheafdeq.recurrence import Incidence

__all__ = [
    "Layout",
    "blocks_from_hidden",
    "edge_product",
    "gated_map",
    "generate",
    "incidence_of",
    "layout_of",
    "pack",
    "product",
    "propagate",
    "reweighted",
]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the (e + n) * d * d entries of edge and node blocks stand in compressed-row order, and how to transpose it."""

    rows: Tensor  # (n * d + 1,) row pointers
    columns: Tensor  # (entries,) column numbers
    order: Tensor  # (entries,) entry k of the packed order is entry order[k] of the flattened blocks, edges first
    inverse: Tensor  # its inverse
    size: int  # n * d
    swap: Tensor  # (entries,) entry k of the transposed layout is entry swap[k] of this one
    swapped: Layout | None = None

    def matrix(self, entries: Tensor) -> Tensor:
        """The sparse matrix with these packed entries."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces once that its compressed-row tensors are in beta
            return torch.sparse_csr_tensor(self.rows, self.columns, entries, (self.size, self.size), check_invariants=False)


_INCIDENCES: WeakKeyDictionary[Graph, Incidence] = WeakKeyDictionary()
_LAYOUTS: WeakKeyDictionary[Incidence, dict[int, Layout]] = WeakKeyDictionary()


def incidence_of(graph: Graph) -> Incidence:
    """The graph's incidence; one object while the graph lives, so that its layout is made once and not once an epoch."""
    if graph not in _INCIDENCES:
        _INCIDENCES[graph] = Incidence.of(graph)
    return _INCIDENCES[graph]


def reweighted(incidence: Incidence, edge_weight: Tensor) -> Incidence:
    """The same edges with other weights; layouts are shared, since they do not depend on weights."""
    result = replace(incidence, edge_weight=edge_weight)
    _LAYOUTS[result] = _LAYOUTS.setdefault(incidence, {})
    result.__dict__[_CONNECTIONS] = _connections(incidence)
    return result


_CONNECTIONS = "_connections"


def _connections(incidence: Incidence) -> EdgeLayout:
    """Who hears whom, as the native kernel reads it; its weights may be those of another incidence with the same edges."""
    memory = incidence.__dict__
    if _CONNECTIONS not in memory:
        memory[_CONNECTIONS] = EdgeLayout.of(incidence)
    return memory[_CONNECTIONS]


def layout_of(incidence: Incidence, d: int) -> Layout:
    """The layout of the d x d blocks of a whole graph; made once and kept while the incidence lives."""
    layouts = _LAYOUTS.setdefault(incidence, {})
    if d not in layouts:
        layouts[d] = _layout(incidence, d)
    return layouts[d]


def _layout(incidence: Incidence, d: int) -> Layout:
    n = incidence.num_targets
    if incidence.num_sources != n:
        raise InputError(f"only a whole graph has a layout: {n} targets read {incidence.num_sources} sources")
    device = incidence.source.device
    nodes, offset = torch.arange(n, device=device), torch.arange(d, device=device)
    target, source = torch.cat([incidence.target, nodes]), torch.cat([incidence.source, nodes])
    shape = (len(target), d, d)
    row = (target[:, None, None] * d + offset[None, :, None]).expand(shape).reshape(-1)
    column = (source[:, None, None] * d + offset[None, None, :]).expand(shape).reshape(-1)
    # Duplicate edges give duplicate entries, which compressed rows allow; stable sorts keep everything deterministic.
    order = torch.argsort(row, stable=True)
    row, column = row[order], column[order]
    swap = torch.argsort(column, stable=True)
    kind = torch.int32 if max(n * d, len(row)) < 2**31 - 1 else torch.int64  # the fast products take 32-bit indices

    def pointers(index: Tensor) -> Tensor:
        counts = torch.bincount(index, minlength=n * d)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(kind)

    back = _inverse(swap)
    layout = Layout(pointers(row), column.to(kind), order, _inverse(order), n * d, swap)
    swapped = Layout(pointers(column), row[swap].to(kind), order[swap], _inverse(order[swap]), n * d, back, layout)
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
    sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Blocks (e, d, d) and diagonal (n, d, d) of :func:`blocks_from_hidden`, with hidden_e = A_src + B_tgt + E_e.

    ``source_hidden`` A and ``target_hidden`` B (n, h), ``edge_hidden`` E (e, h).
    """
    d = round((weight.shape[0] // 2) ** 0.5)
    if _native(target_hidden, d) and not incidence.edge_weight.requires_grad:
        flat = None if sizes is None else sizes.reshape(-1, 2 * d * d)
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
            sizes=flat,
        )
        return blocks.view(-1, d, d), diagonal.view(-1, d, d)
    hidden = edge_hidden + source_hidden.index_select(0, incidence.source) + target_hidden.index_select(0, incidence.target)
    return blocks_from_hidden(hidden, weight, bias, incidence, sign=sign, softening=softening, sizes=sizes)


def blocks_from_hidden(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    incidence: Incidence,
    *,
    sign: int,
    softening: float = 0.0,
    sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Blocks w_e F_tgt^T F_src (e, d, d) and diagonal I + (sign/deg) sum F_tgt^T F_tgt (n, d, d), in PyTorch.

    F is M tanh(raw / 2) with ``sizes`` M (e, 2, d, d), else raw / sqrt(|raw|_F^2 + softening^2); raw = W relu(hidden) + b holds the
    source and the target map. ``hidden`` (e, h), ``weight`` (2 d d, h), ``bias`` (2 d d,).
    """
    d = round((weight.shape[0] // 2) ** 0.5)
    # Edges last: products of small matrices become long vector operations.
    raw = (weight @ hidden.relu().T + bias[:, None]).view(2, d, d, -1)
    if sizes is None:
        maps = raw * (raw.square().sum((1, 2), keepdim=True) + softening**2).rsqrt()
    else:
        maps = torch.tanh(0.5 * raw) * sizes.reshape(-1, 2, d, d).permute(1, 2, 3, 0)
    source_maps, target_maps = maps
    blocks = (target_maps.unsqueeze(2) * source_maps.unsqueeze(1)).sum(0) * incidence.edge_weight
    gram = (target_maps.unsqueeze(2) * target_maps.unsqueeze(1)).sum(0).reshape(d * d, -1).T
    total = gram.new_zeros(incidence.num_targets, d * d).index_add(0, incidence.target, gram)
    eye = torch.eye(d, dtype=raw.dtype, device=raw.device)
    return blocks.permute(2, 0, 1), eye + sign * (total / incidence.degree[:, None]).view(-1, d, d)


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
    sizes: tuple[Tensor, Tensor] | None = None,
) -> Callable[[Tensor], Tensor]:
    """The map H -> base + gate(p, g) of states (n, d*q) on a whole graph, with p = A W_1 H W_2 and g = |A| H |W_2|.

    Args:
        blocks: (e, d, d), edges of A.
        diagonal: (n, d, d), nodes of A.
        mixing: (q, q) W_2.
        base: (n, d*q).
        gate: the gate.
        incidence: of the whole graph.
        stalk_mixing: (d, d) W_1, the identity when left out.
        sizes: blocks and diagonal in the place of |A|.
    """
    d, q = blocks.shape[-1], mixing.shape[0]
    kernel = gate.kernel if _native(base, d) and base.numel() else None
    if kernel is not None:
        edges = _connections(incidence)
        wide = functional.pad(mixing, (0, padded_width(q, mixing.dtype) - q))
        both = torch.cat([wide, wide.abs()], dim=1)

        def native_map(state: Tensor) -> Tensor:
            values = (state.reshape(-1, q) @ both).view(-1, d, both.shape[1])
            if stalk_mixing is not None:
                signed, size = values.chunk(2, dim=-1)
                values = torch.cat([stalk_mixing @ signed, size], dim=-1)
            return native_gated_step(values, base, blocks, diagonal, sizes, edges, kernel, gate.floor)

        return native_map

    entries = pack(blocks, diagonal, incidence)
    size_entries = entries.abs() if sizes is None else pack(*sizes, incidence)
    mixing_sizes = mixing.abs()

    def plain_map(state: Tensor) -> Tensor:
        h = state.view(-1, d, q)
        p = product(entries, h @ mixing if stalk_mixing is None else stalk_mixing @ h @ mixing, incidence)
        g = product(size_entries, h @ mixing_sizes, incidence)
        return base + gate.apply(p, g).reshape(state.shape)

    return plain_map


def _native(tensor: Tensor, d: int) -> bool:
    return native_serves(tensor) and d <= LARGEST_NATIVE_STALK


# ---------------------------------------------------------------------- in PyTorch


def pack(blocks: Tensor, diagonal: Tensor, incidence: Incidence) -> Tensor:
    """(e, d, d) edge blocks and (n, d, d) node blocks -> ((e + n) * d * d,) entries in compressed-row order."""
    layout = layout_of(incidence, blocks.shape[-1])
    return _Reorder.apply(torch.cat([blocks.reshape(-1), diagonal.reshape(-1)]), layout.order, layout.inverse)


def product(entries: Tensor, values: Tensor, incidence: Incidence) -> Tensor:
    """Packed entries times values: (n, d, q) -> (n, d, q)."""
    n, d, q = values.shape
    if values.numel() == 0:
        return values
    return _Product.apply(entries, values.reshape(n * d, q), layout_of(incidence, d)).view(n, d, q)


def edge_product(blocks: Tensor, received: Tensor, incidence: Incidence) -> Tensor:
    """The edges' share of the product, edge by edge: ``received`` (e, d, q) holds the source value of every edge."""
    e, d, q = received.shape
    messages = (blocks @ received).reshape(e, d * q)
    return messages.new_zeros(incidence.num_targets, d * q).index_add(0, incidence.target, messages).view(-1, d, q)


class _Reorder(torch.autograd.Function):
    """A permutation whose backward is the inverse permutation (a gather, where autograd would scatter)."""

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
        by_values = _transposed_product(entries, gradient, layout) if ctx.needs_input_grad[1] else None
        return by_entries, by_values, None


class _Sampled(torch.autograd.Function):
    """Entry (i, j) of the layout gets the inner product of row i of ``left`` and row j of ``right``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.layout = layout
        if len(layout.columns) > layout.size**2:  # parallel edges beyond what a compressed-row tensor may hold
            counts = layout.rows.diff()
            row = torch.repeat_interleave(torch.arange(layout.size, device=left.device), counts)
            return (left.index_select(0, row) * right.index_select(0, layout.columns)).sum(1)
        pattern = layout.matrix(left.new_zeros(len(layout.columns)))
        return torch.sparse.sampled_addmm(pattern, left.contiguous(), right.T.contiguous(), beta=0.0).values()

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
