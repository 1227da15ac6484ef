"""Counting, Sums, Coordinates and the terrain stand-in: sizes, targets, and the constants of the
paper's tables."""

import numpy as np
import pytest
import torch

from sheafdeq.data import load_task, task_names
from sheafdeq.data.coordinates import batched_neighbours
from sheafdeq.data.terrain import _joined
from sheafdeq.errors import InputError

GENERATED = ["community", "counting", "sums", "coordinates", "mnist-terrain-standin"]
MINIATURE = {
    "community": {"nodes": 60, "k": 3, "level": 2},
    "counting": {"chains": 6},
    "sums": {"chains": 5, "length": 6},
    "coordinates": {"graphs": 10, "nodes": 8, "k": 3},
    "mnist-terrain-standin": {"images": 10},
}


@pytest.mark.parametrize(
    ("name", "nodes", "sizes", "constant"),
    [
        ("counting", 1275, [765, 255, 255], 0.353),
        ("sums", 100_000, [60_000, 20_000, 20_000], 0.1414),
    ],
)
def test_chain_tasks_match_the_papers_tables(name, nodes, sizes, constant):
    task = load_task(name)
    assert task.train.graph.num_nodes == nodes
    assert [split.size for split in task.splits.values()] == sizes
    assert task.constant_over_all["relative_rmse"] == pytest.approx(constant, abs=5e-4)
    metrics = task.constant_metrics(task.test)
    assert metrics["relative_rmse"] == pytest.approx(constant, abs=0.02)
    assert abs(metrics["r2"]) < 0.02
    assert task.constant_score == task.score(metrics)
    assert task.train.scored_target.mean().item() == pytest.approx(1.0, abs=1e-6)
    masks = torch.stack([split.mask for split in task.splits.values()])
    assert (masks.sum(dim=0) == 1).all()
    assert vars(task.dimensions) == {"width": 6, "steps": 50, "stalk": 3, "channels": 2}
    assert task.patience == 200


def test_counting_targets_and_features():
    task = load_task("counting", chains=7)
    graph = task.train.graph
    length = torch.bincount(graph.graph_ids)[graph.graph_ids]
    assert torch.allclose(task.train.target[:, 0] * task.output_scale, length.float())
    assert torch.equal(graph.x[:, 0], graph.pointer.diff().float())
    one_hot = load_task("counting", chains=7, features="one-hot").train.graph.x
    assert torch.equal(one_hot.argmax(1).float(), graph.x[:, 0])


def test_sums_targets():
    task = load_task("sums", chains=9, length=5)
    graph = task.train.graph
    total = torch.zeros(9).index_add(0, graph.graph_ids, graph.x[:, 0])
    assert torch.allclose(task.train.target[:, 0] * task.output_scale, total[graph.graph_ids])
    assert set(graph.x.unique().tolist()) == {0.0, 1.0}


def test_perfect_outputs_score_zero_error():
    for name in ("counting", "sums"):
        task = load_task(name, **MINIATURE[name])
        metrics = task.metrics(task.test.target, task.test)
        assert metrics == {"relative_rmse": 0.0, "mse": 0.0, "r2": 1.0}
        assert task.score(metrics) == 0.0


def test_coordinates_sizes_and_collapsed_loss():
    task = load_task("coordinates")
    assert [split.graph.num_graphs for split in task.splits.values()] == [900, 300, 300]
    assert [split.graph.num_nodes for split in task.splits.values()] == [18_000, 6_000, 6_000]
    assert task.constant_over_all["edge_distance_loss"] == pytest.approx(0.102, abs=1e-3)
    assert task.edge_dim == 1
    assert torch.equal(task.test.graph.edge_attr[:, 0], task.test.target)
    assert torch.equal(task.test.graph.x, torch.eye(20).repeat(300, 1))


def test_coordinates_best_fixed_layout():
    """A model that sees only identifiers can do no better than one layout for all graphs: 0.030."""
    task = load_task("coordinates")
    layout = (0.3 * torch.randn(20, 2)).requires_grad_()
    optimiser = torch.optim.Adam([layout], lr=0.05)
    for step in range(120):
        optimiser.param_groups[0]["lr"] = 0.05 if step < 90 else 0.005
        optimiser.zero_grad()
        task.loss(layout.repeat(300, 1), task.validation).backward()
        optimiser.step()
    assert task.metrics(layout.repeat(300, 1), task.test)["edge_distance_loss"] == pytest.approx(
        0.030, abs=1.5e-3
    )


def test_coordinates_distances_can_be_reached():
    """Positions that produced the distances have loss zero (up to float32)."""
    options = {"graphs": 10, "nodes": 8, "k": 3, "seed": 3}
    task = load_task("coordinates", **options)
    positions = torch.rand(10, 8, 2, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    test_graphs = order[8:].sort().values
    assert (
        task.metrics(positions[test_graphs].reshape(-1, 2), task.test)["edge_distance_loss"] < 1e-12
    )


def test_batched_neighbours_equal_brute_force():
    points = np.random.default_rng(0).random((5, 9, 2))
    adjacency, distance = batched_neighbours(points, 2)
    for g in range(5):
        for i in range(9):
            for j in range(9):
                rank_j = sum(distance[g, i, m] < distance[g, i, j] for m in range(9) if m != i)
                rank_i = sum(distance[g, j, m] < distance[g, j, i] for m in range(9) if m != j)
                assert adjacency[g, i, j] == (i != j and (rank_j < 2 or rank_i < 2))


def test_joining_connects_with_the_shortest_link():
    points = np.array([[[0.0, 0], [0, 1], [5, 0], [5, 1.1], [20, 0], [20, 1]]])
    adjacency, distance = batched_neighbours(points, 1)
    assert adjacency[0].sum() == 6
    joined = _joined(adjacency, distance)
    assert joined[0].sum() == 10
    assert joined[0, 0, 2]
    assert joined[0, 2, 4]


def test_terrain_standin_has_the_shape_of_the_real_one():
    task = load_task("mnist-terrain-standin")
    graph = task.train.graph
    assert (task.in_channels, task.out_channels, graph.num_graphs, graph.num_nodes) == (
        3,
        2,
        60,
        600,
    )
    assert [split.size for split in task.splits.values()] == [360, 120, 120]
    assert (graph.x >= 0).all()
    assert (graph.x <= 1).all()
    assert "stand-in" in task.remarks[0]
    labels = task.train.target.reshape(60, 10)
    assert (labels == labels[:, :1]).all()
    reached = torch.zeros(600, dtype=torch.bool)
    reached[::10] = True
    for _ in range(10):
        reached = reached.index_put((graph.target,), reached[graph.source], accumulate=True)
    assert reached.all()  # every graph is connected
    by_radius = load_task("mnist-terrain-standin", edges="radius", radius=6.0).train.graph
    apart = (by_radius.x[by_radius.source, 1:] - by_radius.x[by_radius.target, 1:]).norm(dim=1) * 27
    assert apart.max() <= 6.0 + 1e-4


@pytest.mark.parametrize("name", GENERATED)
def test_every_task_honours_the_interface(name):
    task = load_task(name, **MINIATURE[name])
    outputs = torch.randn(task.train.graph.num_nodes, task.out_channels, requires_grad=True)
    loss = task.loss(outputs, task.train)
    loss.backward()
    assert loss.dim() == 0
    assert torch.isfinite(outputs.grad).all()
    metrics = task.metrics(outputs, task.train)
    assert set(metrics) == set(task.metric_names) == set(task.constant_metrics(task.test))
    assert isinstance(task.score(metrics), float)
    double = task.to(torch.float64)
    assert double.train.graph.x.dtype == torch.float64
    assert (double.train.graph is double.validation.graph) == (
        task.train.graph is task.validation.graph
    )
    assert task.describe()["digest"] == load_task(name, **MINIATURE[name]).digest
    other = {"mask_seed" if name == "community" else "seed": 1}
    assert task.digest != load_task(name, **MINIATURE[name], **other).digest


def test_a_changed_bit_changes_the_digest():
    task = load_task("sums", chains=5, length=6)
    before = task.digest
    fresh = load_task("sums", chains=5, length=6)
    fresh.train.graph.x[0, 0] = 1 - fresh.train.graph.x[0, 0]
    assert fresh.digest != before


def test_unknown_names_and_options_are_listed():
    with pytest.raises(
        InputError,
        match=r"no task 'comunity' \(did you mean 'community' or 'counting'\?\). "
        r"Choose from: community",
    ):
        load_task("comunity")
    with pytest.raises(
        InputError,
        match=r"no option 'chain' \(did you mean 'chains'\?\). "
        r"Choose from: chains, shortest, features, seed",
    ):
        load_task("counting", chain=3)
    with pytest.raises(InputError, match="no option 'level'"):
        load_task("sums", level=3)
    assert len(task_names()) == len(set(task_names())) == 21


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("counting", {"chains": 1}, "at least 2"),
        ("counting", {"features": "x"}, "'degree' or 'one-hot'"),
        ("sums", {"chains": 0}, "chains must be a whole number from 1"),
        ("coordinates", {"k": 20}, "k from 1 to nodes - 1"),
        ("coordinates", {"graphs": 2}, "too few"),
        ("mnist-terrain-standin", {"k": 10}, "k from 1"),
        ("mnist-terrain-standin", {"edges": "all"}, "'neighbours' or 'radius'"),
        ("mnist-terrain-standin", {"images": 0}, "images must be a whole number from 1"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(InputError, match=message):
        load_task(name, **options)


def test_terrain_split_by_image_does_not_leak() -> None:
    task = load_task("mnist-terrain-standin", split_by="image")
    for split in (task.train, task.validation, task.test):
        share = split.mask.reshape(-1, 10).float().mean(1)
        assert set(share.tolist()) == {0.0, 1.0}
    assert task.options["split_by"] == "image"
    by_node = load_task("mnist-terrain-standin")
    assert "split_by" not in by_node.options  # the identity of older records
    assert 0 < by_node.train.mask.reshape(-1, 10).float().mean(1).median() < 1
    with pytest.raises(InputError, match="split_by"):
        load_task("mnist-terrain-standin", split_by="chain")


def test_terrain_keeps_off_the_margin():
    plain, kept = load_task("mnist-terrain-standin"), load_task("mnist-terrain-standin", margin=4)
    assert plain.digest != kept.digest
    assert "margin" not in plain.options
    assert kept.options["margin"] == 4
    place = 27 * kept.train.graph.x[:, 1:]
    assert place.min() >= 4
    assert place.max() <= 23
    assert (27 * plain.train.graph.x[:, 1:]).min() < 4
    for wrong in (-1, 13):
        with pytest.raises(InputError, match=f"margin must be 0 to 12, got {wrong}"):
            load_task("mnist-terrain-standin", margin=wrong)
    with pytest.raises(InputError, match="terrain needs 2 to 16 pixels"):
        load_task("mnist-terrain-standin", margin=12, pixels=17)
