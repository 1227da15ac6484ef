"""Losses and metrics against definitions written out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sheafdeq.data import Graph, Split
from sheafdeq.data.objective import (
    Classification,
    EdgeDistance,
    GraphClassification,
    Regression,
    roc_auc,
)
from sheafdeq.errors import InputError


def ring(n, graphs=1, dtype=torch.float64):
    node = torch.arange(n)
    forward = torch.stack([node, (node + 1) % n])
    one = Graph.build(torch.rand(n, 2, dtype=dtype), torch.cat([forward, forward.flip(0)], dim=1))
    return Graph.union([one] * graphs)


def test_classification_by_hand():
    graph = ring(4)
    split = Split(graph, torch.tensor([0, 1, 2, 0]), torch.tensor([True, True, False, True]))
    outputs = torch.tensor([[2.0, 0, 0], [0, 0, 3], [0, 0, 9], [1, 0, 0]], dtype=torch.float64)
    objective = Classification(3)
    expected = sum(
        math.log(sum(math.exp(v) for v in outputs[row].tolist()))
        - outputs[row, split.target[row]].item()
        for row in (0, 1, 3)
    )
    assert objective.loss(outputs, split).item() == pytest.approx(expected / 3)
    metrics = objective.metrics(outputs, split)
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert objective.score(metrics) == pytest.approx(200 / 3)
    assert set(metrics) == set(objective.metric_names)


def test_graph_classification_averages_over_each_graph():
    graph = Graph.union([ring(3), ring(5)])
    outputs = torch.randn(8, 2, dtype=torch.float64)
    split = Split(graph, torch.tensor([0, 1]))
    pooled = torch.stack([outputs[:3].mean(0), outputs[3:].mean(0)])
    objective = GraphClassification(2)
    assert torch.isclose(
        objective.loss(outputs, split), torch.nn.functional.cross_entropy(pooled, split.target)
    )


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_roc_auc_is_the_share_of_ordered_pairs(pairs):
    decision = torch.tensor([float(value) for value, _ in pairs])
    target = torch.tensor([int(label) for _, label in pairs])
    wins = [
        1.0 if p > q else 0.5 if p == q else 0.0
        for p, a in zip(decision.tolist(), target.tolist(), strict=True)
        for q, b in zip(decision.tolist(), target.tolist(), strict=True)
        if a == 1 and b == 0
    ]
    found = roc_auc(decision, target)
    assert math.isnan(found) if not wins else found == pytest.approx(sum(wins) / len(wins))


def test_regression_by_hand():
    graph = ring(3)
    split = Split(
        graph,
        torch.tensor([[0.5], [1.0], [1.5]], dtype=torch.float64),
        torch.tensor([True, True, True]),
    )
    outputs = torch.tensor([[0.5], [1.0], [1.0]], dtype=torch.float64)
    # raw targets 5, 10, 15; predictions 5, 10, 10
    metrics = Regression(scale=10.0).metrics(outputs, split)
    assert metrics["mse"] == pytest.approx(25 / 3)
    assert metrics["relative_rmse"] == pytest.approx(math.sqrt(25 / 3) / 10)
    assert metrics["r2"] == pytest.approx(1 - (25 / 3) / (50 / 3))


def test_edge_distance_ignores_rigid_motions_but_not_scale():
    graph = ring(7)
    positions = torch.rand(7, 2, dtype=torch.float64)
    true = (positions[graph.source] - positions[graph.target]).norm(dim=1)
    split, objective = Split(graph, true), EdgeDistance()
    angle = torch.tensor(0.7, dtype=torch.float64)
    turn = torch.stack(
        [torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])]
    )
    moved = positions @ turn.T * torch.tensor([1.0, -1.0], dtype=torch.float64) + 5
    assert objective.loss(moved, split).item() == pytest.approx(0, abs=1e-24)
    assert objective.loss(1.1 * moved, split).item() > 1e-4


def test_edge_distance_has_a_finite_gradient_where_nodes_coincide():
    graph = ring(5)
    outputs = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    split = Split(graph, torch.rand(graph.num_edges, dtype=torch.float64))
    EdgeDistance().loss(outputs, split).backward()
    assert torch.isfinite(outputs.grad).all()


@pytest.mark.parametrize(
    ("objective", "target", "width"),
    [
        (Classification(3), torch.tensor([0, 1, 2, 1, 0]), 3),
        (Regression(2.0), torch.rand(5, 1, dtype=torch.float64), 1),
        (EdgeDistance(), torch.rand(10, dtype=torch.float64), 2),
        (GraphClassification(3), torch.tensor([2]), 3),
    ],
)
def test_gradients(objective, target, width):
    split = Split(ring(5), target)
    outputs = torch.randn(5, width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda o: objective.loss(o, split), outputs)


@pytest.mark.parametrize(
    "objective", [Classification(3), Regression(1.0), EdgeDistance(), GraphClassification(3)]
)
def test_wrong_shapes_are_named(objective):
    split = Split(ring(5), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(InputError, match=r"outputs must have shape \(5, \d\).*got \(4, 9\)"):
        objective.loss(torch.zeros(4, 9), split)


def test_unusable_metrics_are_refused():
    with pytest.raises(InputError, match="two classes"):
        Classification(3, "roc_auc")
    with pytest.raises(InputError, match="metric must be"):
        Classification(2, "f1")
