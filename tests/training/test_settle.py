"""Penalties, parts of a split, and the recipe that makes a run settle."""

import pytest
import torch

from sheafdeq.cli.settle import parse_stage
from sheafdeq.data import load_task
from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import EdgeDistance, GraphClassification
from sheafdeq.data.task import Split
from sheafdeq.equilibrium import EquilibriumModel, Readout
from sheafdeq.errors import InputError, UsageError
from sheafdeq.records import read_record
from sheafdeq.registry import Shape, build_model
from sheafdeq.training.config import PenaltyConfig, TrainingConfig
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.parts import mixed, parts_of
from sheafdeq.training.penalty import SettlingPenalty, squared_jacobian
from sheafdeq.training.run import train
from sheafdeq.training.settle import STAGES, Stage, settle, stage_configs

SMALL = {"nodes": 30, "train_seeds": [1, 2, 3], "test_seeds": [4], "k": 3}


class LogLinear(EquilibriumModel):
    """log T(z) = log z @ A: its Jacobian in log coordinates is A at every state."""

    in_channels, out_channels = 2, 2

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__(steps=3)
        self.matrix = matrix
        self.readout = Readout(len(matrix), 2)

    def prepare(self, graph):
        return graph

    def initial_state(self, context):
        return torch.ones(context.num_nodes, len(self.matrix), dtype=self.matrix.dtype)

    def step(self, state, context):
        return torch.exp(state.log() @ self.matrix)


class Halving(LogLinear):
    """T(z) = z / 2, also for negative states."""

    def step(self, state, context):
        return state / 2


def test_squared_jacobian_is_unbiased():
    torch.manual_seed(0)
    matrix = torch.randn(5, 5, dtype=torch.float64)
    model = LogLinear(matrix)
    # 2,000 independent draws of the signs
    state = torch.exp(torch.randn(2000, 5, dtype=torch.float64))
    estimate = squared_jacobian(model, state, None)
    exact = matrix.square().sum() / 5
    torch.testing.assert_close(estimate, exact, rtol=0.05, atol=0.0)


def test_squared_jacobian_has_gradients_and_serves_signed_states():
    matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)
    model = LogLinear(matrix)
    squared_jacobian(model, torch.full((4, 3), 2.0, dtype=torch.float64), None).backward()
    assert float(matrix.grad.abs().sum()) > 0
    halving = Halving(matrix)
    torch.testing.assert_close(
        squared_jacobian(halving, torch.randn(4, 3), None), torch.tensor(0.25)
    )


def test_parts_are_the_graphs_of_the_union():
    task = load_task("community", level=10, **SMALL)
    split = task.train
    parts = parts_of(split, task.objective, 2)
    assert [part.graph.num_graphs for part in parts] == [2, 1]
    assert sum(part.size for part in parts) == split.size
    torch.testing.assert_close(torch.cat([part.graph.x for part in parts]), split.graph.x)
    torch.testing.assert_close(torch.cat([part.target for part in parts]), split.target)
    first = parts[0].graph
    rebuilt = Graph.build(first.x, first.edge_index, batch=first.graph_of_node)
    assert torch.equal(rebuilt.edge_index, first.edge_index)
    assert sum(part.graph.num_edges for part in parts) == split.graph.num_edges
    with pytest.raises(InputError, match="at least 1"):
        parts_of(split, task.objective, 0)


def test_parts_cut_edge_and_graph_targets():
    graphs = [Graph.build(torch.randn(n, 2), torch.tensor([[0, 1], [1, 0]])) for n in (2, 3, 4)]
    union = Graph.union(graphs)
    edges = Split(union, torch.arange(6.0))
    labels = Split(union, torch.tensor([5, 6, 7]))
    by_edge = parts_of(edges, object.__new__(EdgeDistance), 1)
    by_graph = parts_of(labels, object.__new__(GraphClassification), 2)
    assert [part.target.tolist() for part in by_edge] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert [part.target.tolist() for part in by_graph] == [[5, 6], [7]]


def test_graphs_that_are_classified_are_mixed_before_they_are_cut():
    graphs = [
        Graph.build(
            torch.full((2 + i % 3, 1), float(i)),
            torch.tensor([[0, 1], [1, 0]]),
            torch.full((2, 1), float(i)),
            edge_weight=torch.full((2,), 1.0 + i),
        )
        for i in range(40)
    ]
    union = Graph.union(graphs)
    labels = torch.arange(40)  # a graph's label, features, edges and weights are its number
    shuffled = mixed(Split(union, labels, labels % 2 == 0), GraphClassification(40))
    assert sorted(shuffled.target.tolist()) == labels.tolist()
    first_half = int((shuffled.target[:20] < 20).sum())
    assert 5 <= first_half <= 15  # 20 in the file's order
    assert torch.equal(shuffled.mask, shuffled.target % 2 == 0)
    for part, label in zip(
        parts_of(shuffled, GraphClassification(40), 1), shuffled.target, strict=True
    ):
        original = graphs[int(label)]
        assert torch.equal(part.graph.x, original.x)
        assert torch.equal(part.graph.edge_index, original.edge_index)
        assert torch.equal(part.graph.edge_attr, original.edge_attr)
        assert torch.equal(part.graph.edges.share, original.edges.share)
    again = mixed(Split(union, labels), GraphClassification(40))
    assert torch.equal(again.target, shuffled.target)
    by_node = Split(union, torch.zeros(union.num_nodes))
    assert mixed(by_node, object.__new__(EdgeDistance)) is by_node


def test_new_fields_do_not_rename_old_runs():
    config = TrainingConfig.parse({"task": "community", "model": "sheafdeq"})
    assert not {"graphs_per_update", "keep"} & set(config.payload())
    assert "jacobian_weight" not in config.payload()["penalties"]
    changed = config.replace(graphs_per_update=2, keep="last", penalties={"jacobian_weight": 0.1})
    assert changed.payload()["graphs_per_update"] == 2
    assert TrainingConfig.parse(changed.payload()) == changed


def test_stage_configs_grow_and_keep_the_last_parameters():
    config = TrainingConfig.parse(
        {"task": {"name": "community", "level": 10}, "model": "sheafdeq", "schedule": "wsd"}
    )
    stages = stage_configs(config)
    weights = [stage.penalties.residual_weight for stage in stages]
    assert weights == sorted(weights)
    assert all(
        stage.keep == "last" and stage.learning_rate < config.learning_rate for stage in stages
    )
    assert len(stages) == len(STAGES)
    with pytest.raises(InputError, match="at least one stage"):
        stage_configs(config, [])


def test_stage_from_text():
    assert parse_stage("epochs=4,learning_rate=0.001,residual_weight=5") == Stage(4, 0.001, 5)
    for text, message in (
        ("epochs=4", "needs"),
        ("epochs=4,speed=1", "unknown key"),
        ("epochs=x", "must be a number"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_stage(text)
    with pytest.raises(InputError, match="at least one epoch"):
        Stage(0, 1e-3, 1.0)


def test_settling_lowers_the_residual(tmp_path):
    config = TrainingConfig.parse(
        {
            "task": {"name": "community", "level": 10, "options": SMALL},
            "model": "sheafdeq",
            "max_epochs": 2,
        }
    )
    first = train(config, out=tmp_path)
    stages = [
        Stage(4, 3e-3, 20.0, residual_max_weight=0.1),
        Stage(4, 3e-3, 60.0, jacobian_weight=0.1),
    ]
    results = settle(first.path, out=tmp_path, stages=stages)
    before, after = first.record.solves.residual, results[-1].record.solves.residual
    assert after < before
    before = read_record(results[0].path).checkpoint["checkpoint.safetensors"]
    assert read_record(results[-1].path).config["init_from"] == f"sha256:{before}"
    # the last parameters, whatever their validation score
    assert results[-1].record.best.epoch == 4
    again = settle(first.path, out=tmp_path, stages=stages)
    assert all(result.reused for result in again)


def test_updates_by_graph_train_and_resume_alike(tmp_path):
    config = TrainingConfig.parse(
        {
            "task": {"name": "community", "level": 10, "options": SMALL},
            "model": {
                "name": "sheaf-cascade",
                "options": {"levels": 2, "channels": 2, "level_steps": 2, "feature_noise": 0.1},
            },
            "max_epochs": 3,
            "graphs_per_update": 2,
        }
    )
    whole = train(config, out=tmp_path / "whole")
    seen = iter([None, "pause", None, None, None])
    with pytest.raises(Suspended):
        train(config, out=tmp_path / "cut", suspend_when=lambda metrics: next(seen))
    resumed = train(config, out=tmp_path / "cut")
    assert resumed.record.curves == whole.record.curves
    assert resumed.record.scores == whole.record.scores


def test_agreement_is_measured_against_the_models_own_end_and_vanishes_for_a_contraction():
    graph = load_task("community", level=10, **SMALL).train.graph
    torch.manual_seed(0)
    model = build_model("sheafdeq", Shape(2, 3, None, 2, 3, 2), shift=1.3)
    penalty = SettlingPenalty(PenaltyConfig(agreement_weight=1.0))
    output = model.run(graph)
    apart = penalty(output, model, graph)
    apart.backward()
    assert float(apart.detach()) > 1e-6
    assert any(p.grad is not None and float(p.grad.abs().max()) > 0 for p in model.parameters())
    torch.manual_seed(0)
    contraction = build_model("strong-sheaf", Shape(2, 3, None, 2, 3, 80), shift=3.0)
    assert float(penalty(contraction.run(graph), contraction, graph).detach()) < 1e-8
