"""Who hears whom: every derived structure against its dense matrix."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs import random_graph
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.ops.native_calls import native_layout
from sheafdeq.ops.native_module import native_available


def drawn(n: int, e: int, seed: int) -> Edges:
    return random_graph(n, e, seed, isolated=False).edges


def dense(edges: Edges, values: torch.Tensor) -> torch.Tensor:
    matrix = values.new_zeros(edges.num_targets, edges.num_sources)
    return matrix.index_put((edges.target, edges.source), values, accumulate=True)


sizes = (st.integers(1, 9), st.integers(0, 30), st.integers(0, 1000))


@given(*sizes)
def test_transposed_is_the_transposed_matrix(n, e, seed):
    edges = drawn(n, e, seed)
    values = torch.randn(e, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turned = edges.transposed
    assert torch.equal(dense(turned, values[edges.by_source]), dense(edges, values).T)
    assert bool((turned.target[1:] >= turned.target[:-1]).all())
    assert torch.equal(turned.transposed.pointer, edges.pointer)


@given(*sizes)
def test_weights_are_those_of_the_normalised_adjacency(n, e, seed):
    edges = drawn(n, e, seed)
    count = dense(edges, torch.ones(e).double())
    degree = count.sum(1).clamp(min=1)
    expected = count / (degree[:, None] * degree[None]).sqrt()
    assert torch.equal(edges.degree, degree)
    torch.testing.assert_close(dense(edges, edges.weight), expected)


@given(*sizes, st.integers(1, 3))
def test_heads_and_blocks_are_block_matrices(n, e, seed, size):
    edges = drawn(n, e, seed)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, e, generator=generator, dtype=torch.float64)
    heads = dense(edges.heads(size), values.flatten())
    torch.testing.assert_close(heads, torch.block_diag(*(dense(edges, row) for row in values)))
    maps = torch.randn(e, size, size, generator=generator, dtype=torch.float64)
    blocks = dense(edges.blocks(size), maps.transpose(0, 1).reshape(-1))
    whole = torch.stack([dense(edges, maps[:, i, j]) for i in range(size) for j in range(size)])
    whole = whole.view(size, size, n, n).permute(0, 2, 3, 1).reshape(size * n, n * size)
    torch.testing.assert_close(blocks, whole)


@given(*sizes)
def test_loops_stand_on_the_diagonal(n, e, seed):
    edges = drawn(n, e, seed)
    generator = torch.Generator().manual_seed(seed)
    values, own = torch.randn(e, generator=generator), torch.randn(n, generator=generator)
    looped, order = edges.with_loops
    expected = dense(edges, values) + own.diag()
    torch.testing.assert_close(dense(looped, torch.cat([values, own])[order]), expected)
    assert torch.equal(looped.source[looped.pointer[1:] - 1], torch.arange(n))


def test_what_is_derived_is_made_once_and_shared_by_other_weights_and_features():
    graph = Graph.build(torch.zeros(4, 1), torch.tensor([[0, 1, 2], [1, 2, 3]]))
    edges = graph.edges
    made = []
    assert edges.kept("key", lambda: made.append(1) or "value") == "value"
    assert edges.kept("key", lambda: made.append(1) or "other") == "value"
    assert made == [1]
    assert edges.blocks(2) is edges.blocks(2)
    other = edges.reweighted(torch.ones(3))
    assert other.wiring is edges
    assert other.reweighted(torch.zeros(3)).wiring is edges
    assert other.weight.tolist() == [1.0, 1.0, 1.0]
    assert graph.with_features(torch.ones(4, 2)).edges is edges
    wide = graph.with_features(torch.ones(4, 2).double()).edges
    assert wide.weight.dtype == torch.float64


def test_copies_leave_behind_what_can_be_derived():
    edges = drawn(5, 12, 0)
    edges.blocks(2)
    if native_available():
        native_layout(edges)  # has no pickle
    part = edges.restricted(torch.tensor([1, 3]), edges.edges_into(torch.tensor([1, 3])))
    for original in (edges, part, part.reading(torch.zeros_like(part.source), 1)):
        for again in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert torch.equal(again.weight, original.weight)
            assert torch.equal(again.target, original.target)
            assert not again._kept


@pytest.mark.skipif(not native_available(), reason="the native kernel is not built")
def test_an_index_out_of_range_does_not_reach_the_kernel():
    edges = drawn(5, 12, 0)
    with pytest.raises(ValueError, match="row that does not exist"):
        native_layout(edges.reading(torch.full_like(edges.source, 5), 5))
