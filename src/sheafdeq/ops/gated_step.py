"""Products with one d x d block on every edge and every node, and the gated step made of them.

    (A Y)_v = D_v Y_v + sum over edges e = (u -> v) of  A_e Y_u,        A_e, D_v (d, d),  Y_u (d, q)

:func:`block_product` and :func:`gated_map` are what models call, with blocks of
:mod:`sheafdeq.ops.sheaf_blocks`. On a CPU the native kernel serves them
(:mod:`sheafdeq.ops.block_kernel`); everywhere else, and for second derivatives, the sparse product
of :mod:`sheafdeq.ops.sparse` does. :func:`edge_product` gathers, multiplies and scatters edge by
edge: for messages of any age, and as the twin the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops.block_kernel import native_gated_step, native_product
from sheafdeq.ops.native_calls import native, serves
from sheafdeq.ops.sheaf_blocks import SplitBlocks
from sheafdeq.ops.sparse import aggregate

__all__ = [
    "Gate",
    "block_product",
    "block_product_reference",
    "edge_parts",
    "edge_product",
    "gated_map",
    "mixed_parts",
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


def block_product(blocks: Tensor, diagonal: Tensor, values: Tensor, edges: Edges) -> Tensor:
    """A Y on a whole graph: (n, d, q) -> (n, d, q)."""
    if serves(values, values.shape[1]) and values.numel():
        return native_product(blocks, diagonal, values, edges.wiring)
    return block_product_reference(blocks, diagonal, values, edges)


def block_product_reference(
    blocks: Tensor, diagonal: Tensor, values: Tensor, edges: Edges
) -> Tensor:
    """:func:`block_product` in PyTorch, on any device and differentiable any number of times."""
    return _product(_packed(blocks, diagonal, edges), values, edges)


def _packed(blocks: Tensor, diagonal: Tensor, edges: Edges) -> Tensor:
    """(d * (e + n) * d,) the entries of A as :meth:`Edges.blocks` of edges and loops wants them."""
    if edges.num_sources != edges.num_targets:
        raise InputError(
            f"a product needs a whole graph: {edges.num_targets} targets read "
            f"{edges.num_sources} sources"
        )
    _, order = edges.wiring.with_loops
    return torch.cat([blocks, diagonal]).index_select(0, order).transpose(0, 1).reshape(-1)


def _product(entries: Tensor, values: Tensor, edges: Edges) -> Tensor:
    n, d, q = values.shape
    if values.numel() == 0:
        return values
    looped, _ = edges.wiring.with_loops
    return (
        aggregate(entries, values.reshape(n * d, q), looped.blocks(d)).view(d, n, q).transpose(0, 1)
    )


def gated_map(
    blocks: Tensor,
    diagonal: Tensor,
    mixing: Tensor,
    base: Tensor,
    gate: Gate,
    edges: Edges,
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
        edges: of the whole graph.
        stalk_mixing: (d, d) W_1, the identity when left out.
        minus: blocks and diagonal of A- >= 0, when A = A+ - A- is not to be split by the signs of
            its entries.
    """
    d, q = blocks.shape[-1], mixing.shape[0]
    kernel = gate.kernel if serves(base, d) and base.numel() else None
    width = native(mixing.dtype).padded(q) if kernel is not None else q
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
        return lambda state: native_gated_step(
            values_of(state), base, blocks, diagonal, minus, edges.wiring, kernel, gate.floor
        )

    if minus is None:
        (blocks, lower), (diagonal, own_lower) = two_parts(blocks), two_parts(diagonal)
    else:
        lower, own_lower = minus
    upper_entries = _packed(blocks, diagonal, edges)  # once for all steps
    lower_entries = _packed(lower, own_lower, edges)

    def plain_map(state: Tensor) -> Tensor:
        values = values_of(state)
        first = _product(upper_entries, values, edges)
        second = _product(lower_entries, values, edges)
        plus, minus_part = first[..., :q] + second[..., q:], first[..., q:] + second[..., :q]
        return base + gate.of_parts(plus, minus_part).reshape(state.shape)

    return plain_map


def edge_product(blocks: Tensor, received: Tensor, edges: Edges) -> Tensor:
    """The edges' share of the product, edge by edge: ``received`` (e, d, q) holds the source value
    of every edge."""
    e, d, q = received.shape
    messages = (blocks @ received).reshape(e, d * q)
    return (
        messages.new_zeros(edges.num_targets, d * q)
        .index_add(0, edges.target, messages)
        .view(-1, d, q)
    )


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
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """(y+, y-) edge by edge, for messages of any age: ``own`` (n, d, q) and ``received`` (e, d, q)
    each as X+, X-."""
    sides = []
    for first, second in (received, received[::-1]):
        sides.append(edge_product(plus[0], first, edges) + edge_product(minus[0], second, edges))
    nodes = mixed_parts((plus[1], minus[1]), *own)
    return sides[0] + nodes[0], sides[1] + nodes[1]
