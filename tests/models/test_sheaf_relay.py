"""SheafRelay: exact on forests, settled on every graph for every weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs import random_graph
from sheafdeq.data import load_task
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_relay import SheafRelay, core_nodes
from sheafdeq.solvers import Status
from sheafdeq.testing import ModelContract


class TestContract(ModelContract):
    def make_model(self) -> SheafRelay:
        torch.manual_seed(3)
        model = SheafRelay(3, 2, 2, 2, hidden=5, steps=400)
        torch.nn.init.normal_(model.turn[-1].weight, std=0.5)
        return model


def undirected(edges: list[tuple[int, int]], n: int, features: int = 2, seed: int = 0) -> Graph:
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return Graph.build(x, torch.cat([pairs, pairs.flip(0)], dim=1))


def wild(seed: int, size: float = 10.0, **options) -> SheafRelay:
    """A relay with weights far larger than any training would give."""
    torch.manual_seed(seed)
    model = SheafRelay(2, 1, 2, 2, hidden=4, steps=2000, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return model


@given(st.integers(0, 10_000))
def test_on_random_trees_it_ends_exactly_for_every_weight_and_start(seed):
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(2, 12, (1,), generator=generator))
    edges = [(int(torch.randint(0, v, (1,), generator=generator)), v) for v in range(1, n)]
    graph, model = undirected(edges, n), wild(seed)
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.initial_state(context)
        other = 1e3 * torch.randn(state.shape, dtype=state.dtype)
        for _ in range(n):
            state, other = model.step(state, context), model.step(other, context)
        # nilpotent: n steps are always enough
        assert torch.equal(model.step(state, context), state)
        assert torch.equal(state, other)


@given(st.integers(0, 10_000))
def test_the_core_contracts_with_its_rate_for_every_weight(seed):
    n = 7
    graph = random_graph(n, 14, seed, isolated=False)
    model = wild(seed, core_rate=0.8)
    with torch.no_grad():
        context = model.prepare(graph)
        core = core_nodes(graph.source, graph.target, n)
        inside = core[graph.source] & core[graph.target]
        # Gain of every core message from the core messages it gathers, from the context itself.
        sums = context.transport.abs().sum(2).amax(1)
        speakers = torch.full((n, context.slots), -1)
        speakers[graph.target, context.slot] = graph.source
        gathered = ((context.heard > 0) & core[speakers[graph.source]]).sum(1)
        assert bool(((sums * gathered)[inside] <= 0.8 * (1 + 1e-12)).all())
        # Weights of size 10 make messages grow a millionfold on the way to the core, which the loop
        # calls diverged.
        solution = wild(seed, 0.3, core_rate=0.8).run(graph).solution
    assert solution.status is Status.CONVERGED


def test_on_a_path_the_messages_are_prefix_sums():
    n = 9
    graph = undirected([(v, v + 1) for v in range(n - 1)], n, features=1)
    model = SheafRelay(1, 1, 1, 1, hidden=3, transport="identity").double()
    with torch.no_grad():
        context = model.prepare(graph)
        solution = model.run(graph).solution
        state = solution.value.view(n, context.slots)
        said = {
            (int(u), int(v)): b
            for u, v, b in zip(graph.source, graph.target, context.origin[:, 0], strict=True)
        }
        for k, (u, v) in enumerate(graph.edge_index.T.tolist()):
            behind = range(u + 1) if v > u else range(u, n)
            step = v - u
            expected = sum(said[(w, w + step)] for w in behind)
            assert float(state[v, context.slot[k]]) == pytest.approx(float(expected), abs=1e-12)
    assert solution.steps <= n


@pytest.mark.parametrize(
    ("edges", "n", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3)], 4, set()),  # a path
        ([(0, 1), (1, 2), (2, 0), (2, 3)], 4, {0, 1, 2}),  # a triangle with a tail
        # a bridge between cycles
        ([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)], 6, {0, 1, 2, 3, 4, 5}),
        ([(0, 0), (0, 1), (0, 1)], 2, set()),  # loops and repeated edges close nothing
        ([], 3, set()),
    ],
)
def test_core(edges, n, expected):
    graph = undirected(edges, n)
    assert set(core_nodes(graph.source, graph.target, n).nonzero().flatten().tolist()) == expected


def test_an_unbounded_core_is_caught():
    """Without the scaling, large transports on a cycle diverge, and the status says so."""
    graph = undirected([(0, 1), (1, 2), (2, 0)], 3)
    model = wild(1)
    with torch.no_grad():
        context = model.prepare(graph)
        object.__setattr__(
            context, "transport", 3 * torch.eye(2, dtype=torch.float64).expand_as(context.transport)
        )
        solution = model.solve(context, graph)
    assert solution.status in (Status.DIVERGED, Status.NON_FINITE)


def test_high_degrees_and_wrong_options_are_named():
    graph = undirected([(0, v) for v in range(1, 6)], 6)
    with pytest.raises(InputError, match="max_degree=5"):
        SheafRelay(2, 1, max_degree=3).double().run(graph)
    with pytest.raises(InputError, match="transport"):
        SheafRelay(2, 1, transport="rotate")
    with pytest.raises(InputError, match="core_rate"):
        SheafRelay(2, 1, core_rate=1.0)


@pytest.mark.parametrize("name", ["counting", "sums"])
def test_chains_split_by_chain_do_not_leak(name):
    small = {"chains": 20} if name == "counting" else {"chains": 20, "length": 6}
    task = load_task(name, split_by="chain", **small)
    chain = task.train.graph.graph_ids
    parts = [set(chain[split.mask].tolist()) for split in task.splits.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 20
    by_node = load_task(name, **small)
    assert by_node.digest != task.digest
    # the paper's task keeps its name
    assert by_node.options.keys() & {"split_by", "scale"} == set()
    with pytest.raises(InputError, match="split_by"):
        load_task(name, split_by="edge", **small)


def test_a_given_scale_keeps_the_units_and_the_relative_error():
    task = load_task("counting", chains=30, shortest=20, scale=5.0)
    assert task.objective.scale == 5.0
    raw = task.train.target * 5.0
    assert set(raw.flatten().tolist()) == set(map(float, range(20, 31)))
    outputs = task.test.target + 0.2  # one node too many everywhere
    metrics = task.metrics(outputs, task.test)
    assert metrics["mse"] == pytest.approx(1.0, rel=1e-5)
    mean = raw[task.train.mask].mean().item()
    assert metrics["relative_rmse"] == pytest.approx(1.0 / mean, rel=1e-5)
    with pytest.raises(InputError, match="scale"):
        load_task("counting", scale=0.0)
