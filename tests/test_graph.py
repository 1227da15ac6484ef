import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from graphs import random_parts
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 1000))
def test_edges_are_sorted_and_the_order_leads_back(n, e, seed):
    x, index, attr, _ = random_parts(n, e, seed, edge_dim=3, isolated=False)
    graph = Graph.build(x, index, attr)
    key = graph.target * n + graph.source
    assert bool((key[1:] >= key[:-1]).all())
    assert torch.equal(graph.edge_index, index[:, graph.edge_order])
    assert torch.equal(graph.edge_attr, attr[graph.edge_order])
    for v in range(n):
        assert bool((graph.target[graph.pointer[v] : graph.pointer[v + 1]] == v).all())
    assert graph.pointer[-1] == e


def test_degree_counts_incoming_edges_and_is_clamped():
    graph = Graph.build(torch.zeros(3, 1), torch.tensor([[0, 0, 1], [1, 1, 1]]))
    assert graph.degree.tolist() == [1.0, 3.0, 1.0]
    assert graph.edge_weight.tolist() == pytest.approx([3**-0.5, 3**-0.5, 1 / 3])


def test_from_pyg_batch_equals_union():
    parts = [Data(x=torch.randn(n, 2), edge_index=torch.randint(0, n, (2, 6))) for n in (3, 5)]
    batch = Graph.from_data(Batch.from_data_list(parts))
    union = Graph.union([Graph.from_data(p) for p in parts])
    assert torch.equal(batch.edge_index, union.edge_index)
    assert torch.equal(batch.graph_ids, union.graph_ids)
    assert batch.num_graphs == union.num_graphs == 2


def test_missing_features_are_named():
    with pytest.raises(InputError, match="no 'x'"):
        Graph.from_data(Data(edge_index=torch.zeros(2, 0, dtype=torch.long)))


@given(st.integers(1, 10), st.integers(0, 30), st.integers(0, 1000))
def test_restricted_edges_keep_exactly_the_incoming_edges(n, e, seed):
    x, index, _, _ = random_parts(n, e, seed, isolated=False)
    graph = Graph.build(x, index)
    nodes = (
        torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(1, n // 2)]
        .sort()
        .values
    )
    whole = graph.edges
    edges = whole.edges_into(nodes)
    part = whole.restricted(nodes, edges)
    expected = [k for v in nodes.tolist() for k in range(e) if int(graph.target[k]) == v]
    assert edges.tolist() == expected
    assert torch.equal(nodes[part.target], graph.target[edges])
    assert torch.equal(part.source, graph.source[edges])


def test_conversion_keeps_indices():
    graph = Graph.build(torch.zeros(2, 1), torch.tensor([[0], [1]]), torch.ones(1, 2)).to(
        torch.float64
    )
    assert graph.x.dtype == graph.edge_attr.dtype == torch.float64
    assert graph.edge_index.dtype == torch.int64
