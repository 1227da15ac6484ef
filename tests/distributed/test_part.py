"""Parts with halos compute the numbers of the whole graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partition_tools import EDGED, LOCAL, built, random_graph
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.distributed import Part, cut_graph, edge_cut, partition
from sheafdeq.distributed.assignment import checked_assignment
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import DataError, InputError


def stepped(model: EquilibriumModel, parts: list[Part], state: Tensor) -> Tensor:
    """One step of every part, put together."""
    image = torch.empty_like(state)
    for part in parts:
        rows = torch.cat([state[part.nodes], state[part.halo]])
        image[part.nodes] = model.step(rows, model.prepare(part.graph))[: part.own]
    return image


def positive_state(model: EquilibriumModel, graph: Graph, seed: int = 1) -> Tensor:
    start = model.initial_state(model.prepare(graph))
    return torch.randn(
        start.shape, generator=torch.Generator().manual_seed(seed), dtype=start.dtype
    ).exp()


@pytest.mark.parametrize("name", LOCAL)
@torch.no_grad()
def test_parts_step_as_the_whole_graph_does(name: str) -> None:
    model = built(name)
    for seed, graphs in ((0, 1), (1, 2)):
        graph = random_graph(40, 160, seed=seed, graphs=graphs)
        state = positive_state(model, graph)
        whole = model.step(state, model.prepare(graph))
        for assignment in (
            partition(graph, 4, method="ordered"),
            torch.arange(graph.num_nodes) % 7,  # scattered: nearly every row is a halo somewhere
            (torch.arange(graph.num_nodes) == 0).long(),  # a part of one node
        ):
            torch.testing.assert_close(
                stepped(model, cut_graph(graph, assignment), state), whole, rtol=0, atol=1e-12
            )


@pytest.mark.parametrize(
    "name", ["sheafdeq", "sheaf-cascade", "graph-attn-deq", "loop-transformer", "strong-sheaf"]
)
@torch.no_grad()
def test_edge_features_travel(name: str) -> None:
    model = built(name, EDGED)
    graph = random_graph(40, 160, edge_dim=2)
    state = positive_state(model, graph)
    parts = cut_graph(graph, partition(graph, 3, method="ordered"))
    whole = model.step(state, model.prepare(graph))
    torch.testing.assert_close(stepped(model, parts, state), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sheafdeq", "sheaf-cascade", "ignn", "appnp", "strong-sheaf"])
@torch.no_grad()
def test_without_the_degrees_of_the_halo_the_numbers_are_wrong(name: str) -> None:
    """What the true degrees are for: a part that counts its own edges is caught by the test
    above."""
    model, graph = built(name), random_graph(40, 400, undirected=True)
    state = positive_state(model, graph)
    parts = cut_graph(graph, torch.arange(graph.num_nodes) % 2)
    bare = []
    for part in parts:
        wrong = replace(part.graph, edges=replace(part.graph.edges, counts=None))
        bare.append(
            Part(
                part.number,
                2,
                wrong,
                part.nodes,
                part.halo,
                part.owners,
                part.readers,
                part.graph_of_own,
                1,
            )
        )
    whole = model.step(state, model.prepare(graph))
    assert (stepped(model, bare, state) - whole).abs().max() > 1e-3


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(0, 60), st.integers(1, 5))
@torch.no_grad()
def test_any_graph_any_assignment(seed: int, n: int, e: int, parts: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    graph = random_graph(n, e, seed, isolated=False)
    parts = min(parts, n)
    assignment = torch.cat(
        [torch.arange(parts), torch.randint(0, parts, (n - parts,), generator=draw)]
    )
    team = cut_graph(graph, assignment[torch.randperm(n, generator=draw)])
    model = built("ignn")
    state = positive_state(model, graph, seed)
    torch.testing.assert_close(
        stepped(model, team, state), model.step(state, model.prepare(graph)), rtol=0, atol=1e-12
    )
    owned = torch.cat([part.nodes for part in team])
    assert torch.equal(owned.sort().values, torch.arange(n))
    for part in team:
        for owner, (first, last) in part.owners.items():
            rows = team[owner].readers[part.number]
            assert torch.equal(team[owner].nodes[rows], part.halo[first:last])
        again = Part.from_bytes(part.to_bytes())
        assert again.owners == part.owners
        assert again.readers.keys() == part.readers.keys()
        assert torch.equal(again.graph.in_degree, part.graph.in_degree)
        assert torch.equal(again.graph.edge_index, part.graph.edge_index)


def test_partitions_balance_and_cut_little() -> None:
    side = 40
    grid = torch.arange(side * side).view(side, side)
    edges = torch.cat(
        [
            torch.stack([grid[:, 1:].flatten(), grid[:, :-1].flatten()]),
            torch.stack([grid[1:].flatten(), grid[:-1].flatten()]),
        ],
        dim=1,
    )
    graph = Graph.build(torch.zeros(side * side, 1), torch.cat([edges, edges.flip(0)], dim=1))
    scattered = torch.arange(side * side) % 4
    pytest.importorskip("pymetis")
    for method, share in (("metis", 0.06), ("ordered", 0.2), ("blocks", 0.2)):
        assignment = partition(graph, 4, method=method)
        sizes = torch.bincount(assignment, minlength=4)
        assert sizes.min() > 0.8 * side * side / 4
        assert edge_cut(graph, assignment) < share * edge_cut(graph, scattered)
        assert torch.equal(assignment, partition(graph, 4, method=method))


@pytest.mark.parametrize("method", ["metis", "ordered", "blocks", "auto"])
def test_odd_graphs_are_partitioned(method: str) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    edgeless = Graph.build(torch.zeros(5, 1), torch.empty(2, 0, dtype=torch.int64))
    star = Graph.build(torch.zeros(6, 1), torch.tensor([[0] * 5, [1, 2, 3, 4, 5]]))
    for graph in (edgeless, star):
        for parts in range(1, graph.num_nodes + 1):
            assignment = partition(graph, parts, method=method)
            assert torch.bincount(assignment, minlength=parts).min() >= 1


def test_bad_input_is_named() -> None:
    graph = random_graph(40, 160)
    for parts, words in (
        (0, "positive integer"),
        (41, "at most 40"),
        (2.5, "positive integer"),
        (True, "positive integer"),
    ):
        with pytest.raises(InputError, match=words):
            partition(graph, parts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown partition"):
        partition(graph, 2, method="magic")
    wrong = (
        (torch.zeros(3, dtype=torch.int64), "each of the 40 nodes"),
        (torch.zeros(40), "whole part numbers"),
        (torch.full((40,), -1), "negative part"),
        (torch.full((40,), 1), "part 0 of 2 is empty"),
        (torch.arange(40) * 2, "names part 78"),
    )
    for assignment, words in wrong:
        with pytest.raises(InputError, match=words):
            checked_assignment(assignment, 40)
    part = cut_graph(graph, torch.arange(40) % 2)[0]
    with pytest.raises(InputError, match="part already"):
        cut_graph(part.graph, torch.zeros(part.graph.num_nodes, dtype=torch.int64))


def test_damaged_parts_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    part = cut_graph(random_graph(40, 160), torch.arange(40) % 2)[0]
    path = tmp_path / "part.safetensors"
    part.save(path)
    assert torch.equal(Part.load(path).nodes, part.nodes)
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:20],
        data[:-5],
        b"x" * 100,
        data.replace(b"sheafdeq-part-1", b"sheafdeq-part-9"),
    ):
        with pytest.raises(DataError):
            Part.from_bytes(damaged)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_a_part_whose_edges_name_other_nodes_is_refused(wrong: int) -> None:
    part = cut_graph(random_graph(40, 160), torch.arange(40) % 2)[0]
    index = part.graph.edge_index.clone()
    index[0, 3] = wrong
    unsorted = part.graph.edge_index.flip(1)
    for broken in (index, unsorted):
        part.graph.__dict__["edge_index"] = broken  # what to_bytes writes
        with pytest.raises(DataError, match="name nodes it does not have, or are not sorted"):
            Part.from_bytes(part.to_bytes())
