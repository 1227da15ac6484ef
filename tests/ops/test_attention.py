"""Attention by the native kernel against PyTorch, dense softmax, finite differences, and its own
promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ops.test_block_kernel import both, build, draw, graphs
from ops.test_sheaf_step import TOLERANCE, disagreement, needs_native
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops import use_kernel
from sheafdeq.ops.attention import (
    Attended,
    EdgeTerms,
    attention,
    packed_attention,
)
from sheafdeq.ops.native_module import native_module

KINDS = ("plain", "own", "apart", "edges", "keys", "bias", "shared", "additive")


def tensors_of(
    kind: str, edges: Edges, heads: int, width: int, value_width: int, seed: int, dtype: Any
) -> list[Tensor]:
    n, m, e = edges.num_targets, edges.num_sources, edges.num_edges
    w = 1 if kind == "additive" else width
    u = width if kind == "edges" else value_width
    shared = 1 if kind in ("shared", "bias") else heads
    shapes = [(n, heads * w), (m, heads * w), (m, shared * u)]
    if kind == "apart":
        shapes += [(n, heads * w), (n, shared * u)]
    if kind in ("edges", "keys"):
        shapes += [(e, heads * w)]
    if kind == "bias":
        shapes += [(e, heads), (heads,)]
    return draw(seed, dtype, *shapes, scale=1.5)


def attended(tensors: list[Tensor], edges: Edges, heads: int, kind: str) -> Tensor:
    query, key, value, *rest = tensors
    table = Attended(key, value)
    own: Attended | None = table
    terms = EdgeTerms()
    if kind == "plain":
        own = None
    if kind == "apart":
        own = Attended(*rest)
    if kind == "edges":
        terms = EdgeTerms(rest[0], rest[0])
    if kind == "keys":
        own, terms = None, EdgeTerms(rest[0])
    if kind == "bias":
        terms = EdgeTerms(bias=rest[0], own_bias=rest[1])
    return attention(
        query,
        table,
        edges,
        heads,
        own=own,
        terms=terms,
        slope=0.2 if kind == "additive" else None,
        shared_value=kind in ("shared", "bias"),
    )


def dense_attention(tensors: list[Tensor], edges: Edges, heads: int, kind: str) -> Tensor:
    """The equation written with one softmax for each target and head."""
    query, key, value, *rest = tensors
    n = len(query)
    w, shared = query.shape[1] // heads, kind in ("shared", "bias")
    u = value.shape[1] // (1 if shared else heads)
    own = {"plain": None, "keys": None, "apart": rest}.get(kind, [key, value])
    rows = []
    for i in range(n):
        numbers = range(int(edges.pointer[i]), int(edges.pointer[i + 1]))
        for m in range(heads):
            q, scores, values = query[i, m * w : (m + 1) * w], [], []
            part = slice(0, u) if shared else slice(m * u, (m + 1) * u)
            for k in numbers:
                j = int(edges.source[k])
                k_row, v_row = key[j, m * w : (m + 1) * w], value[j, part]
                if kind in ("edges", "keys"):
                    k_row = k_row + rest[0][k, m * w : (m + 1) * w]
                if kind == "edges":
                    v_row = v_row + rest[0][k, part]
                if kind == "additive":
                    scores.append(torch.nn.functional.leaky_relu(q + k_row, 0.2).sum())
                else:
                    scores.append(q @ k_row / w**0.5 + (rest[0][k, m] if kind == "bias" else 0.0))
                values.append(v_row)
            if own is not None:
                k_row = own[0][i, m * w : (m + 1) * w]
                if kind == "additive":
                    scores.append(torch.nn.functional.leaky_relu(q + k_row, 0.2).sum())
                else:
                    scores.append(q @ k_row / w**0.5 + (rest[1][m] if kind == "bias" else 0.0))
                values.append(own[1][i, part])
            if scores:
                rows.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            else:
                rows.append(value.new_zeros(u))
    return torch.stack(rows).view(n, heads * u)


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    recipe=graphs,
    kind=st.sampled_from(KINDS),
    heads=st.integers(1, 4),
    width=st.integers(1, 20),
    value_width=st.integers(1, 20),
    double=st.booleans(),
)
def test_native_attention_agrees(
    recipe: Any, kind: str, heads: int, width: int, value_width: int, double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    edges = build(recipe, dtype).edges
    tensors = tensors_of(kind, edges, heads, width, value_width, recipe[2], dtype)
    ours, theirs = both(attended, tensors, edges, heads, kind)
    assert disagreement(ours, theirs) < TOLERANCE[dtype]


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_the_equation(kernel: str, kind: str) -> None:
    if kernel == "native" and native_module() is None:
        pytest.skip("the native kernel is not built")
    # isolated targets, parallel edges, and one target with more edges than a chunk holds
    source = torch.tensor([0, 3, 3, 1, *([0, 1, 2, 3, 4] * 31), 2])
    edges = Edges(source, torch.tensor([0, 0, 3, 4, len(source) - 1, len(source)]), 5)
    tensors = tensors_of(kind, edges, 2, 5, 3, 1, torch.float64)
    with use_kernel(kernel):
        ours = both_ways(attended, tensors, edges, 2, kind)
    theirs = both_ways(dense_attention, tensors, edges, 2, kind)
    assert disagreement(ours, theirs) < 1e-11


def both_ways(function: Any, tensors: list[Tensor], *options: Any) -> list[Tensor]:
    out = function(tensors, *options)
    cotangent = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * cotangent).sum(), tensors)]


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_native_attention_agrees_with_finite_differences(kind: str) -> None:
    edges = build((5, 12, 3, False), torch.float64).edges
    tensors = tensors_of(kind, edges, 2, 3, 2, 5, torch.float64)
    assert torch.autograd.gradcheck(lambda *t: attended(list(t), edges, 2, kind), tensors)


@needs_native
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("width", [16, 5])
def test_one_table_equals_three(own: bool, width: int) -> None:
    edges = build((14, 60, 2, False), torch.float64).edges
    (packed,) = draw(3, torch.float64, (14, 9 * width))
    (edge,) = draw(4, torch.float64, (edges.num_edges, 3 * width))

    def three(tensors: list[Tensor]) -> Tensor:
        query, key, value = tensors[0].split(3 * width, dim=1)
        table, terms = Attended(key, value), EdgeTerms(tensors[1], tensors[1])
        return attention(query, table, edges, 3, own=table if own else None, terms=terms)

    def one(tensors: list[Tensor]) -> Tensor:
        return packed_attention(
            tensors[0], edges, 3, own=own, terms=EdgeTerms(tensors[1], tensors[1])
        )

    ours = both_ways(one, [packed, edge])
    assert disagreement(ours, both_ways(three, [packed, edge])) < 1e-14
    with use_kernel("reference"):
        assert disagreement(ours, both_ways(one, [packed, edge])) < 1e-11


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_attention_repeats_bit_for_bit(threads: int) -> None:
    before = torch.get_num_threads()
    edges = build((300, 20000, 7, False), torch.float32).edges
    tensors = tensors_of("edges", edges, 3, 16, 16, 1, torch.float32)
    try:
        torch.set_num_threads(threads)
        first = both_ways(attended, tensors, edges, 3, "edges")
        again = both_ways(attended, tensors, edges, 3, "edges")
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with use_kernel("reference"):
        double = [t.detach().double().requires_grad_() for t in tensors]
        assert disagreement(first, both_ways(attended, double, edges, 3, "edges")) < 1e-5


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_scores_do_not_overflow(kernel: str, dtype: torch.dtype) -> None:
    if kernel == "native" and native_module() is None:
        pytest.skip("the native kernel is not built")
    # 70 edges: the largest score comes after the first chunk
    edges = Edges(torch.tensor([1] * 69 + [0]), torch.tensor([0, 70]), 2)
    query, key = torch.full((1, 1), 1e4, dtype=dtype), torch.tensor([[1e4], [-1e4]], dtype=dtype)
    value = torch.tensor([[1.0], [2.0]], dtype=dtype)
    with use_kernel(kernel):
        result = attention(query, Attended(key, value), edges, 1)
        assert torch.equal(result, value[:1])
        spoilt = attention(query * torch.nan, Attended(key, value), edges, 1)
    assert spoilt.isnan().all()


@needs_native
def test_a_nan_stays_where_it_is_read() -> None:
    edges = Edges(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2, 3]), 2)
    query, table = torch.ones(3, 4), Attended(torch.ones(2, 4), torch.ones(2, 4))
    table.key[0, 1] = torch.nan
    result = attention(query, table, edges, 2)
    assert result.isnan().any(1).tolist() == [True, False, False]


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_differentiating_twice_is_left_to_the_reference(kind: str) -> None:
    edges = build((5, 12, 3, False), torch.float64).edges
    tensors = tensors_of(kind, edges, 2, 3, 2, 5, torch.float64)

    def twice(tensors: list[Tensor]) -> Tensor:
        first = torch.autograd.grad(
            attended(tensors, edges, 2, kind).square().sum(), tensors, create_graph=True
        )
        return torch.cat([tensor.reshape(-1) for tensor in first])

    ours, theirs = both(twice, tensors)
    assert disagreement(ours, theirs) < 1e-11


def test_wrong_shapes_are_named() -> None:
    edges = build((5, 12, 3, False), torch.float64).edges
    query, key, value = tensors_of("plain", edges, 2, 3, 3, 5, torch.float64)
    with pytest.raises(InputError, match="value must have shape"):
        attention(query, Attended(key, value[:-1]), edges, 2)
    with pytest.raises(InputError, match="do not fit 4 heads"):
        attention(query, Attended(key, value), edges, 4)
    terms = EdgeTerms(own_bias=query.new_zeros(2))
    with pytest.raises(InputError, match="give own"):
        attention(query, Attended(key, value), edges, 2, terms=terms)
    terms = EdgeTerms(bias=query.new_zeros(edges.num_edges, 6))
    with pytest.raises(InputError, match="no edge keys"):
        attention(query, Attended(key, value), edges, 6, terms=terms, slope=0.2)
    with pytest.raises(InputError, match="queries, keys and values"):
        packed_attention(query, edges, 4, own=False)


@needs_native
def test_the_extension_refuses_a_layout_without_loops() -> None:
    from sheafdeq.ops.native_calls import native, native_layout

    layout = native_layout(Edges(torch.tensor([0]), torch.tensor([0, 0, 1]), 2))
    kernel = native(torch.float64)
    w = kernel.padded(1)
    rows, out = torch.ones(2, w, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    options = (1, w, w, False, False, True, 1.0)
    with pytest.raises(ValueError, match="without its loop"):
        kernel.attention_forward(
            layout, *options, rows, rows, rows, None, None, None, None, rows, out, 1
        )
