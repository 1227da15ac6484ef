"""Layers against PyG's, and the sparse products against dense twins."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm
from torch_geometric.nn import APPNP as PygAPPNP
from torch_geometric.nn import GATConv, GCNConv, TransformerConv

import graphs
from sheafdeq.edges import Edges
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.gat import GATLayer
from sheafdeq.models.gcn import GCN
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.ops.sparse import aggregate, correlate

random_graph = partial(graphs.random_graph, 9, 25, channels=5, simple=True)


def random_edges(rows: int, columns: int, entries: int, seed: int) -> Edges:
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(rows, (entries,), generator=generator).sort().values
    offsets = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(row, minlength=rows).cumsum(0)]
    )
    return Edges(torch.randint(columns, (entries,), generator=generator), offsets, columns)


def dense(edges: Edges, values: torch.Tensor) -> torch.Tensor:
    matrix = values.new_zeros(edges.num_targets, edges.num_sources)
    return matrix.index_put((edges.target, edges.source), values, accumulate=True)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(0, 10_000),
)
def test_products_equal_their_dense_twins(
    rows: int, columns: int, entries: int, width: int, seed: int
) -> None:
    edges = random_edges(rows, columns, entries, seed)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(entries, generator=generator, dtype=torch.float64)
    table = torch.randn(columns, width, generator=generator, dtype=torch.float64)
    left = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    assert torch.allclose(aggregate(values, table, edges), dense(edges, values) @ table)
    assert torch.allclose(
        correlate(left, table, edges), (left @ table.T)[edges.target, edges.source]
    )


def test_products_are_differentiable_twice_and_forward() -> None:
    edges = random_edges(4, 5, 9, 1)
    values = torch.randn(9, dtype=torch.float64, requires_grad=True)
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    left = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def first(v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return aggregate(v, t, edges)

    def second(a: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return correlate(a, t, edges)

    for function, inputs in ((first, (values, table)), (second, (left, table))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
        tangents = tuple(torch.randn_like(p) for p in inputs)
        _, pushed = torch.func.jvp(function, tuple(p.detach() for p in inputs), tangents)
        step = 1e-6
        plus = function(*(p + step * t for p, t in zip(inputs, tangents, strict=True)))
        minus = function(*(p - step * t for p, t in zip(inputs, tangents, strict=True)))
        assert torch.allclose(pushed, (plus - minus) / (2 * step), atol=1e-7)


def test_blocks_and_heads_equal_dense() -> None:
    edges = random_edges(4, 5, 9, 2)
    maps = torch.randn(9, 3, 3, dtype=torch.float64)
    table = torch.randn(5, 3, 2, dtype=torch.float64)
    result = (
        aggregate(maps.transpose(0, 1).reshape(-1), table.reshape(-1, 2), edges.blocks(3))
        .view(3, 4, 2)
        .transpose(0, 1)
    )
    expected = torch.zeros(4, 3, 2, dtype=torch.float64).index_add(
        0, edges.target, maps @ table[edges.source]
    )
    assert torch.allclose(result, expected)
    weights = torch.randn(3, 9, dtype=torch.float64)
    result = aggregate(
        weights.reshape(-1), table.transpose(0, 1).reshape(-1, 2), edges.heads(3)
    ).view(3, 4, 2)
    for h in range(3):
        assert torch.allclose(result[h], dense(edges, weights[h]) @ table[:, h])


@torch.no_grad()
def test_gcn_layer() -> None:
    graph, ours = random_graph(), GCN(5, 4, layers=1).double()
    theirs = GCNConv(5, 4).double()
    theirs.lin.weight.copy_(ours.mixings[0].weight)
    ours.biases[0].normal_()
    theirs.bias.copy_(ours.biases[0])
    assert torch.allclose(ours.run(graph).logits, theirs(graph.x, graph.edge_index))


@torch.no_grad()
def test_residual_gcn() -> None:
    graph, model = random_graph(), GCN(5, 4, 6, layers=3, residual=True).double().eval()
    state = model.enter(graph.x).relu()
    for k in range(3):
        layer = GCNConv(6, 6).double()
        layer.lin.weight.copy_(model.mixings[k].weight)
        model.biases[k].normal_()
        layer.bias.copy_(model.biases[k])
        state = state + layer(layer_norm(state, (6,)), graph.edge_index).relu()
    expected = model.leave(layer_norm(state, (6,)))
    assert torch.allclose(model.run(graph).logits, expected)
    model.norms[0].weight.fill_(7)
    model.reset_parameters()
    assert bool((model.norms[0].weight == 1).all())


@torch.no_grad()
def test_gat_layer() -> None:
    graph, ours = random_graph(), GATLayer(5, 4, 3).double()
    theirs = GATConv(5, 4, heads=3).double()
    theirs.lin.weight.copy_(ours.mixing.weight)
    theirs.att_src.copy_(ours.source_score[None])
    theirs.att_dst.copy_(ours.target_score[None])
    ours.bias.normal_()
    theirs.bias.copy_(ours.bias)
    assert torch.allclose(ours(graph.x, graph.edges), theirs(graph.x, graph.edge_index))


@torch.no_grad()
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_loop_transformer_attention(edge_dim: int | None) -> None:
    graph = random_graph(edge_dim=edge_dim or 0)
    ours = LoopTransformer(5, 2, 3, 4, edge_dim=edge_dim).double().eval()
    theirs = TransformerConv(12, 4, heads=3, beta=True, edge_dim=edge_dim or 1).double().eval()
    for name in ("query", "key", "value", "skip"):
        getattr(theirs, f"lin_{name}").load_state_dict(getattr(ours, name).state_dict())
    theirs.lin_edge.weight.copy_(ours.edge.weight)
    theirs.lin_beta.weight.copy_(ours.gate.weight)
    context = ours.prepare(graph)
    attr = graph.edge_attr if edge_dim else torch.zeros(graph.num_edges, 1, dtype=torch.float64)
    state = torch.randn(graph.num_nodes, 12, dtype=torch.float64)
    expected = theirs(state, graph.edge_index, attr)
    assert torch.allclose(ours.convolve(state, state, context.edges, context), expected)


@torch.no_grad()
def test_appnp_propagation() -> None:
    graph = random_graph()
    model = APPNP(5, 2, 4, alpha=0.2, steps=6).double().eval()
    context = model.prepare(graph)
    solution = model.solve(context, graph)
    assert torch.allclose(solution.value, PygAPPNP(K=6, alpha=0.2)(context.drive, graph.edge_index))


def test_gcn_weights_without_self_loops() -> None:
    graph = random_graph()
    weights = gcn_weights(graph.edges, self_loops=False)
    adjacency = torch.zeros(9, 9, dtype=torch.float64)
    adjacency[graph.target, graph.source] = 1
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    expected = (scale[:, None] * adjacency * scale) @ graph.x
    assert torch.allclose(propagate(weights.edge, None, graph.x, graph.x, graph.edges), expected)
