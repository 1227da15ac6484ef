"""A small matrix on every edge and node: generated once, multiplied with many times. The native
functions.

For a stored edge e = (u -> v), stalk dimension d and first-layer products A (sources), B (targets)
and E (edges),

    hidden_e = relu(A_u + B_v + E_e)                                    (h)
    raw_e    = W hidden_e + b   (2 d d: source map | target map)
    F        = raw / sqrt(|raw|_F^2 + softening^2)
    block_e  = w_e F_tgt^T F_src,       diagonal_v = I + (sign / deg_v) sum_e F_tgt^T F_tgt

    (A Y)_v  = diagonal_v Y_v + sum_e block_e Y_u

:func:`native_blocks` generates and :func:`native_product` multiplies. :func:`native_split_blocks`
generates the two nonnegative
parts (S + A)/2 and (S - A)/2 of F = M tanh(raw / 2) with sizes M >= 0 and their majorant S, and
:func:`native_gated_step` computes

    T = base + gate(y+, y-),     y+ = A+ X+ + A- X-,     y- = A+ X- + A- X+

from nonnegative X+-, with A+- those two parts or the positive and negative entries of one A: sums
of nonnegative terms, in one pass over the edges. Blocks and their gradients have d d entries an
edge; nothing of size (edges x channels) is made. They serve what ``native_serves`` accepts, up to d
= 16, and can be differentiated once; ``sheafdeq.ops.gated_step`` chooses between them and PyTorch.
Results are bitwise equal from run to run for a given number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.derivatives import differentiable_once
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops.native_calls import check_tensors, dense, native, native_layout
from sheafdeq.plain_tensor import plain_tensor
from sheafdeq.threads import thread_count

__all__ = [
    "GATE_CODES",
    "native_blocks",
    "native_gated_step",
    "native_product",
    "native_split_blocks",
]

GATE_CODES = {"tanh": 1, "rational": 2, "balance": 3}
"""Gates the kernel applies itself, by the name in :data:`sheafdeq.layers.gates.GATES`."""


def native_blocks(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    edge_weight: Tensor,
    edges: Edges,
    *,
    sign: float,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Blocks (e, d*d) and diagonal (n, d*d) of the module's equations; ``edge_weight`` is w and
    gets no gradient.

    ``source_hidden`` (m, h), ``target_hidden`` (n, h), ``edge_hidden`` (e, h) or None, ``weight``
    (2 d d, h), ``bias`` (2 d d,).
    """
    _check_generator(
        source_hidden, target_hidden, edge_hidden, weight, bias, None, edge_weight, edges
    )
    result: tuple[Tensor, Tensor] = _Blocks.apply(  # type: ignore[no-untyped-call]
        source_hidden,
        target_hidden,
        edge_hidden,
        weight,
        bias,
        None,
        edge_weight,
        edges,
        sign,
        softening,
    )
    return result


def native_split_blocks(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    sizes: Tensor,
    edge_weight: Tensor,
    edges: Edges,
    *,
    sign: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(S + A)/2 as blocks (e, d*d) and diagonal (n, d*d), then (S - A)/2; ``sizes`` (e, 2 d d), the
    rest as above."""
    _check_generator(
        source_hidden, target_hidden, edge_hidden, weight, bias, sizes, edge_weight, edges
    )
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _Blocks.apply(  # type: ignore[no-untyped-call]
        source_hidden,
        target_hidden,
        edge_hidden,
        weight,
        bias,
        sizes,
        edge_weight,
        edges,
        sign,
        0.0,
    )
    return result


def _check_generator(
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    sizes: Tensor | None,
    edge_weight: Tensor,
    edges: Edges,
) -> None:
    outputs, h = weight.shape
    m, n, e = edges.num_sources, edges.num_targets, edges.num_edges
    check_tensors(
        weight,
        ("source_hidden", source_hidden, (m, h)),
        ("target_hidden", target_hidden, (n, h)),
        ("edge_hidden", edge_hidden, (e, h)),
        ("bias", bias, (outputs,)),
        ("edge_weight", edge_weight, (e,)),
        ("sizes", sizes, (e, outputs)),
    )


def native_product(blocks: Tensor, diagonal: Tensor, values: Tensor, edges: Edges) -> Tensor:
    """A Y, (n, d, q) -> (n, d, q), from blocks (e, d, d) and diagonal (n, d, d)."""
    n, d, q = values.shape
    check_tensors(
        values, ("blocks", blocks, (edges.num_edges, d, d)), ("diagonal", diagonal, (n, d, d))
    )
    wide = native(values.dtype).padded(q)
    table = functional.pad(values, (0, wide - q)) if wide != q else values
    out = _Product.apply(  # type: ignore[no-untyped-call]
        table.reshape(n, d * wide),
        blocks.reshape(-1, d * d),
        diagonal.reshape(-1, d * d),
        None,
        None,
        None,
        edges,
        (d, wide, 1, 0, 0.0),
    )
    result: Tensor = out.view(n, d, wide)[..., :q]
    return result


def native_gated_step(
    values: Tensor,
    base: Tensor,
    blocks: Tensor,
    diagonal: Tensor,
    minus: tuple[Tensor, Tensor] | None,
    edges: Edges,
    gate: str,
    floor: float = 0.0,
) -> Tensor:
    """base + gate(y+, y-), (n, d*q).

    Args:
        values: (n, d, 2*w) X+ | X- in every row, nonnegative, w = :meth:`Native.padded` of q, zeros
            from q to w.
        base: (n, d*q).
        blocks: (e, d, d) A, or A+ with ``minus``.
        diagonal: (n, d, d), likewise.
        minus: blocks and diagonal of A- >= 0; None: A is split by the signs of its entries.
        edges: a layout with as many sources as targets.
        gate: a key of :data:`GATE_CODES`.
        floor: of the balance gate.
    """
    n, d, twice = values.shape
    e, squared = edges.num_edges, d * d
    check_tensors(values, ("blocks", blocks, (e, d, d)), ("diagonal", diagonal, (n, d, d)))
    minus_blocks = minus_diagonal = None
    if minus is not None:
        check_tensors(
            values, ("minus blocks", minus[0], (e, d, d)), ("minus diagonal", minus[1], (n, d, d))
        )
        minus_blocks, minus_diagonal = (part.reshape(-1, squared) for part in minus)
    q = base.shape[1] // d
    check_tensors(values, ("base", base, (n, d * q)))
    if twice != 2 * native(values.dtype).padded(q):
        raise InputError(
            f"values must have {2 * native(values.dtype).padded(q)} entries in each "
            f"of its {d} rows, got {twice}"
        )
    options = (d, twice // 2, 2, GATE_CODES[gate], floor)
    result: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        values.reshape(n, d * twice),
        blocks.reshape(-1, squared),
        diagonal.reshape(-1, squared),
        minus_blocks,
        minus_diagonal,
        base,
        edges,
        options,
    )
    return result


def _rows(tensor: Tensor | None, width: int) -> Tensor | None:
    """Detached, every row contiguous and padded with zeros to ``width``."""
    if tensor is None:
        return None
    tensor = plain_tensor(tensor.detach(), "a table")
    if tensor.shape[1] != width:
        return functional.pad(tensor, (0, width - tensor.shape[1]))
    return tensor if tensor.stride(1) == 1 or width == 1 else tensor.contiguous()


class _Blocks(torch.autograd.Function):
    """Generation; saves its arguments and recomputes in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        source_hidden: Tensor,
        target_hidden: Tensor,
        edge_hidden: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        sizes: Tensor | None,
        edge_weight: Tensor,
        edges: Edges,
        sign: float,
        softening: float,
    ) -> tuple[Tensor, ...]:
        squared, rows = weight.shape[0] // 2, (edges.num_edges, edges.num_targets)
        results = [
            weight.new_empty(count, squared) for count in (rows if sizes is None else rows + rows)
        ]
        tensors = (source_hidden, target_hidden, edge_hidden, weight, bias, sizes, edge_weight)
        arguments = _block_arguments(tensors, edges, sign, softening)
        places = results if sizes is not None else [*results, None, None]
        native(weight.dtype).map_forward(*arguments, *places, thread_count())
        ctx.save_for_backward(*tensors)
        ctx.options = (edges, sign, softening)
        return tuple(results)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        weight, sizes = tensors[3], tensors[5]
        edges, sign, softening = ctx.options
        outputs, h = weight.shape
        hidden, threads = native(weight.dtype).padded(h), thread_count()
        m = edges.num_sources
        source_grad = weight.new_empty(m + native_layout(edges).ghosts(threads), hidden)
        target_grad = weight.new_empty(edges.num_targets, hidden)
        edge_grad = weight.new_empty(edges.num_edges, hidden) if ctx.needs_input_grad[2] else None
        sizes_grad = (
            torch.empty_like(sizes, memory_format=torch.contiguous_format)
            if ctx.needs_input_grad[5]
            else None
        )
        parameter_grad = weight.new_empty(outputs * (hidden + 1))
        native(weight.dtype).map_backward(
            *_block_arguments(tensors, edges, sign, softening),
            *(dense(grad) for grad in grads),
            *(None,) * (4 - len(grads)),
            source_grad,
            target_grad,
            edge_grad,
            sizes_grad,
            parameter_grad,
            threads,
        )
        return (
            source_grad[:m, :h],
            target_grad[:, :h],
            None if edge_grad is None else edge_grad[:, :h],
            parameter_grad[: outputs * hidden].view(outputs, hidden)[:, :h],
            parameter_grad[outputs * hidden :],
            sizes_grad,
            *(None,) * 4,
        )


def _block_arguments(tensors: Any, edges: Edges, sign: float, softening: float) -> tuple[Any, ...]:
    source_hidden, target_hidden, edge_hidden, weight, bias, sizes, edge_weight = tensors
    outputs, h = weight.shape
    d, hidden = round((outputs // 2) ** 0.5), native(weight.dtype).padded(h)
    rows = [_rows(tensor, hidden) for tensor in (source_hidden, target_hidden, edge_hidden, weight)]
    rows[3] = rows[3].contiguous()  # type: ignore[union-attr]
    last = (dense(bias), dense(edge_weight), None if sizes is None else dense(sizes))
    return (native_layout(edges), d, hidden, sign, softening, *rows, *last)


class _Product(torch.autograd.Function):
    """One or two products and a gate; saves its arguments and the products, (n, 2c)."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        blocks: Tensor,
        diagonal: Tensor,
        minus_blocks: Tensor | None,
        minus_diagonal: Tensor | None,
        base: Tensor | None,
        edges: Edges,
        options: tuple[int, int, int, int, float],
    ) -> Tensor:
        gated = base is not None
        tensors = [
            None if t is None else dense(t)
            for t in (blocks, diagonal, minus_blocks, minus_diagonal, values)
        ]
        product = values.new_empty(values.shape) if not gated or any(ctx.needs_input_grad) else None
        step = (
            None if base is None else torch.empty_like(base, memory_format=torch.contiguous_format)
        )
        native(values.dtype).product_forward(
            native_layout(edges),
            *options,
            *tensors,
            None if base is None else dense(base),
            product,
            step,
            thread_count(),
        )
        ctx.save_for_backward(*tensors, product if gated else None)
        ctx.options = (edges, options)
        return product if step is None else step  # type: ignore[return-value]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, product = ctx.saved_tensors
        values = tensors[4]
        edges, options = ctx.options
        threads = thread_count()
        _, by_blocks, by_diagonal, by_minus_blocks, by_minus_diagonal, by_base = (
            ctx.needs_input_grad[:6]
        )
        values_grad = values.new_empty(
            len(values) + native_layout(edges).ghosts(threads), values.shape[1]
        )
        wanted = (
            by_blocks or by_minus_blocks,
            by_diagonal or by_minus_diagonal,
            tensors[2] is not None and (by_blocks or by_minus_blocks),
            tensors[3] is not None and (by_diagonal or by_minus_diagonal),
        )
        gradients = [
            torch.empty_like(tensor) if want else None
            for tensor, want in zip(tensors, wanted, strict=False)
        ]
        native(values.dtype).product_backward(
            native_layout(edges),
            *options,
            *tensors,
            product,
            dense(grad),
            values_grad,
            *gradients,
            threads,
        )
        return (values_grad[: len(values)], *gradients, grad if by_base else None, None, None)
