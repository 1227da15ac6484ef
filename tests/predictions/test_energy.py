"""EnergyGNN: the minimiser is within |gradient| / beta."""

import pytest
import torch

from sheafdeq.data.graph import Graph
from sheafdeq.models import EnergyGNN
from sheafdeq.predictions import certify_predictions, refined
from sheafdeq.predictions.energy import energy_gradient


def make(seed, edge_dim=None):
    torch.manual_seed(seed)
    edges = torch.randint(5, (2, 11))
    attr = None if edge_dim is None else torch.randn(11, edge_dim).double()
    batch = torch.tensor([0, 0, 0, 1, 1])
    x = torch.randn(5, 2).double()
    if attr is None:  # two graphs in one batch
        inside = edges[:, batch[edges[0]] == batch[edges[1]]]
        graph = Graph.build(x, inside, batch=batch)
    else:
        graph = Graph.build(x, edges, attr)
    return EnergyGNN(2, 3, 3, edge_dim=edge_dim, beta=0.3).double().eval(), graph


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_the_gradient_is_enclosed(seed, edge_dim):
    model, graph = make(seed, edge_dim)
    state = torch.randn(5, 3).double()
    with torch.no_grad():
        point = energy_gradient(model, model.prepare(graph), graph, state, 0.0)
        assert point.contains(model.gradient_field(state, model.prepare(graph)))
        assert float(point.radius.max()) < 1e-11
        wide = energy_gradient(model, model.prepare(graph), graph, state, 1e-2)
        for _ in range(10):
            moved = graph.with_features(graph.x + 1e-2 * torch.randn_like(graph.x).sign())
            assert wide.contains(model.gradient_field(state, model.prepare(moved)))
        assert not point.contains(wide.upper)


@pytest.mark.parametrize("seed", range(3))
def test_the_minimiser_is_inside_and_labels_stay(seed):
    model, graph = make(seed)
    state = refined(model, graph)
    moved = certify_predictions(model, graph, state=state + 1e-3 * torch.rand_like(state))
    off = (state - moved.state).abs()
    assert bool((off <= moved.reach).all())
    assert float((off / moved.reach).max()) > 1e-2
    result = certify_predictions(model, graph, radius=1e-4)
    assert not result.delays
    assert result.coordinates == "plain"
    for _ in range(5):
        other = graph.with_features(graph.x + 1e-4 * torch.randn_like(graph.x).sign())
        reached = refined(model, other)
        assert bool(((reached - result.state).abs() <= result.reach).all())
        label = model.readout(reached).argmax(1)
        assert torch.equal(label[result.proved], result.label[result.proved])
    assert bool(certify_predictions(model, graph).proved.all())
