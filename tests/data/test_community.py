"""The community graphs: the released rule call by call, homophily, determinism."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafdeq.data import Graph, load_task
from sheafdeq.data.catalogue import recorded_digests
from sheafdeq.data.community import community_graph, with_differences
from sheafdeq.errors import InputError
from sheafdeq.registry import build_model
from sheafdeq.training.loop import shape_of


def undirected(graph):
    pairs = zip(graph.source.tolist(), graph.target.tolist(), strict=True)
    return {(u, v) for u, v in pairs if u < v}


def rewired_by_hand(graph, size, communities, level, seed):
    """The published rule with one library call for each decision, as a slow twin of the array
    version."""
    state = np.random.RandomState(seed + level)
    edges = set(sorted(undirected(graph)))
    count = int(len(edges) * level * 0.1)
    listed = list(edges)
    gone = (
        {listed[i] for i in state.choice(len(listed), size=count, replace=False)}
        if count
        else set()
    )
    fresh = set()
    while len(fresh) < count:
        first, second = state.choice(communities, size=2, replace=False)
        u = state.choice(np.arange(first * size, (first + 1) * size))
        v = state.choice(np.arange(second * size, (second + 1) * size))
        edge = (int(min(u, v)), int(max(u, v)))
        if edge not in edges - gone:
            fresh.add(edge)
    return (edges - gone) | fresh


@settings(max_examples=25)
@given(
    communities=st.integers(2, 5),
    size=st.integers(20, 45),
    k=st.integers(1, 4),
    level=st.integers(1, 10),
    seed=st.integers(0, 10_000),
)
def test_released_rule_equals_its_call_by_call_twin(communities, size, k, level, seed):
    shape = {"nodes": communities * size, "communities": communities, "k": k}
    base, _ = community_graph(seed, level=0, **shape)
    graph, _ = community_graph(seed, level=level, **shape)
    assert undirected(graph) == rewired_by_hand(base, size, communities, level, seed)


@pytest.mark.parametrize("size", [64, 500])  # a power of two never rejects a word, 500 does
def test_released_rule_at_full_size(size):
    base, _ = community_graph(42, level=0, nodes=3 * size)
    graph, _ = community_graph(42, level=7, nodes=3 * size)
    assert undirected(graph) == rewired_by_hand(base, size, 3, 7, 42)


def test_level_zero_is_the_neighbour_graph_of_each_community():
    graph, labels = community_graph(43, level=0, nodes=90, k=4)
    expected = set()
    for c in range(3):
        members = torch.where(labels == c)[0]
        points = graph.x[members].double()
        nearest = (
            torch.cdist(points, points).fill_diagonal_(float("inf")).topk(4, largest=False).indices
        )
        for i, row in enumerate(nearest.tolist()):
            expected |= {tuple(sorted((int(members[i]), int(members[j])))) for j in row}
    assert undirected(graph) == expected


@pytest.mark.parametrize("rewiring", ["released", "keep-endpoint"])
def test_homophily_falls_by_a_tenth_with_every_level(rewiring):
    for level in range(11):
        task = load_task("community", level=level, rewiring=rewiring)
        assert task.homophily == pytest.approx(1 - level / 10, abs=2e-4)
        degrees = [graph.pointer.diff().sum().item() for graph in task.graphs]
        assert sum(degrees) == 130_780  # rewiring keeps the number of edges


def test_sizes_and_masks_follow_the_paper():
    task = load_task("community", level=3)
    assert [split.size for split in task.splits.values()] == [7200, 1800, 4500]
    assert task.train.graph is task.validation.graph
    assert not (task.train.mask & task.validation.mask).any()
    assert task.train.graph.num_graphs == 6
    assert task.test.graph.num_graphs == 3
    assert (task.in_channels, task.out_channels, task.edge_dim, task.patience) == (2, 3, 0, 500)
    assert vars(task.dimensions) == {"width": 48, "steps": 20, "stalk": 3, "channels": 16}
    assert task.train.graph.num_nodes == 9000
    for graph in task.graphs:
        assert (graph.source != graph.target).all()
        keys = graph.target * graph.num_nodes + graph.source
        assert (keys.diff() > 0).all()  # sorted, no duplicates
        back = graph.source * graph.num_nodes + graph.target
        assert torch.equal(back.sort().values, keys)  # undirected


def test_features_have_the_printed_law():
    x, labels = [], []
    for seed in range(20):
        graph, label = community_graph(seed, level=0)
        x.append(graph.x)
        labels.append(label)
    x, labels = torch.cat(x), torch.cat(labels)
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    assert torch.allclose(means, torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), atol=0.12)
    assert x[labels == 0].std().item() == pytest.approx(3.0, abs=0.05)


def test_keep_endpoint_keeps_one_end_and_nests_levels():
    base = undirected(community_graph(7, level=0, nodes=120)[0])
    previous_new = set()
    for level in (1, 4, 5, 10):
        graph, labels = community_graph(7, level=level, nodes=120, rewiring="keep-endpoint")
        edges = undirected(graph)
        assert len(edges) == len(base)
        new, gone = edges - base, base - edges
        assert len(new) == len(gone) == int(len(base) * level * 0.1)
        assert all(labels[u] != labels[v] for u, v in new)
        assert previous_new <= new
        previous_new = new


def test_tasks_do_not_depend_on_threads_or_hash_salt():
    program = (
        "from sheafdeq.data import load_task; print(load_task('community', level=7, "
        "nodes=300).digest)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    # here: one thread, random salt
    assert done.stdout.strip() == load_task("community", level=7, nodes=300).digest


def test_generation_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_task("community", level=2, nodes=60, k=3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 11}, "level must be an integer from 0 to 10, got 11"),
        ({"level": -1}, "got -1"),
        ({"nodes": 1000}, "use 999"),
        ({"nodes": 3}, "at least two nodes"),
        ({"communities": 1}, "communities must be"),
        ({"k": 0}, "k must be a whole number from 1"),
        ({"noise": 0.0}, "noise must be positive"),
        ({"noise": float("nan")}, "noise must be a number, got nan"),
        ({"rewiring": "random"}, "released, keep-endpoint, got 'random'"),
        ({"nodes": 8, "communities": 2, "level": 10}, "pairs exist"),
        ({"train_seeds": ()}, "at least one graph seed"),
        ({"edge_inputs": "length"}, "none, difference, got 'length'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        load_task("community", **options)


def test_miniature():
    task = load_task("community", level=5, nodes=60, k=3, train_seeds=(1, 2), test_seeds=(3,))
    assert [split.size for split in task.splits.values()] == [96, 24, 60]


# ---------------------------------------------------------------------- differences on the edges

SMALL = {"level": 3, "nodes": 90, "k": 3, "train_seeds": (1, 2), "test_seeds": (3,)}


def test_differences_are_what_they_say():
    plain, task = (
        load_task("community", **SMALL),
        load_task("community", edge_inputs="difference", **SMALL),
    )
    assert (plain.edge_dim, task.edge_dim) == (0, 5)
    for split in task.splits.values():
        graph = split.graph
        for edge in range(0, graph.num_edges, 37):
            u, v = graph.edge_index[:, edge].tolist()
            dx, dy = (graph.x[u] - graph.x[v]).tolist()
            expected = torch.tensor([dx, dy, abs(dx), abs(dy), (dx * dx + dy * dy) ** 0.5])
            torch.testing.assert_close(graph.edge_attr[edge], expected)
    for a, b in zip(plain.graphs, task.graphs, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.edge_index, b.edge_index)


def test_differences_ignore_the_origin_and_permute_with_the_nodes():
    graph, _ = community_graph(5, level=4, nodes=90, k=3)
    graph = Graph.build(graph.x.double(), graph.edge_index)
    features = with_differences(graph).edge_attr
    moved = with_differences(graph.with_features(graph.x + torch.tensor([7.0, -3.0]))).edge_attr
    torch.testing.assert_close(moved, features)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order)  # old node -> new node
    permuted = with_differences(Graph.build(graph.x[order], place[graph.edge_index]))
    key = place[graph.target] * 90 + place[graph.source]
    assert torch.equal(permuted.edge_attr, features[torch.argsort(key)])


def test_the_published_digests_do_not_change_without_differences():
    assert load_task("community", level=7).digest == recorded_digests()["community, level 7"]
    assert (
        load_task("community", level=7, edge_inputs="none").digest
        == recorded_digests()["community, level 7"]
    )
    plain, given = (
        load_task("community", **SMALL),
        load_task("community", edge_inputs="difference", **SMALL),
    )
    assert "edge_inputs" not in plain.options
    assert given.options["edge_inputs"] == "difference"
    assert plain.digest != given.digest


@pytest.mark.parametrize(
    "name",
    [
        "sheafdeq",
        "sheafdeq-no-norm",
        "graph-attn-deq",
        "loop-transformer",
        "sheaf-cascade",
        "strong-sheaf",
        "ignn",
        "dnsd",
    ],
)
def test_models_that_take_edge_features_read_the_differences(name):
    task = load_task("community", edge_inputs="difference", **SMALL)
    torch.manual_seed(0)
    model = build_model(name, shape_of(task)).eval()
    graph = task.test.graph
    with torch.no_grad():
        seen = model.run(graph).logits
        other = model.run(replace(graph, edge_attr=torch.zeros_like(graph.edge_attr))).logits
    assert torch.equal(seen, other) == (name in ("ignn", "dnsd"))  # these have no place for them
