"""Proposition 15 (the paper's 3.1): labels recovered at every node of the unique equilibrium."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_tools import generator, positive

from graphs import random_graph
from sheafdeq.constructions import signed_separation
from sheafdeq.constructions.separation import sign_vectors, signed_permutation
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError

seeds = st.integers(0, 10**6)


@given(d=st.integers(2, 6), data=st.data())
def test_signed_permutations(d, data):
    signs = sign_vectors(math.comb(d, d // 2), d)
    assert len({tuple(row.tolist()) for row in signs}) == len(signs)
    a, b = (data.draw(st.integers(0, len(signs) - 1)) for _ in range(2))
    q = signed_permutation(signs[a], signs[b])
    x = positive(a * 31 + b, d)
    assert torch.equal(torch.sign(q @ x), signs[a])
    assert torch.equal(torch.sign(q.T @ x), signs[b])
    assert torch.equal(q.T, signed_permutation(signs[b], signs[a]))
    assert torch.equal(q @ q.T, torch.eye(d, dtype=torch.float64))


@settings(max_examples=40)
@given(
    seed=seeds,
    d=st.sampled_from([2, 3, 4]),
    n=st.integers(2, 14),
    shift=st.sampled_from([1.05, 1.2, 2.0]),
    data=st.data(),
)
def test_proposition_15(seed, d, n, shift, data):
    graph = random_graph(n, 2 * n, seed, ring=True, undirected=True)
    classes = data.draw(st.integers(1, math.comb(d, d // 2)))
    labels = torch.randint(classes, (n,), generator=generator(seed))
    sheaf = signed_separation(graph, labels, d)
    # invertible maps of unit Frobenius norm
    for maps in (sheaf.source_maps, sheaf.target_maps):
        assert torch.allclose(
            torch.linalg.vector_norm(maps, dim=(1, 2)), torch.ones(len(maps), dtype=torch.float64)
        )
        assert bool((torch.linalg.det(maps).abs() > 1e-6).all())
    # P symmetric, spectrum in [0, 1], diagonal (1 - 1/d) I
    dense = sheaf.operator.to_dense()
    assert torch.allclose(dense, dense.T, atol=1e-14)
    spectrum = torch.linalg.eigvalsh(dense)
    assert float(spectrum.min()) > -1e-12
    assert float(spectrum.max()) < 1 + 1e-12
    state = positive(seed, n, d)
    expected = torch.tanh(dense @ state.reshape(-1)).view(n, d) + shift
    assert torch.allclose(sheaf.step(state, shift), expected, atol=1e-13)
    # the linear readout names every label at the equilibrium, which every start approaches in the
    # Euclidean norm
    solution = sheaf.solve(shift)
    assert solution.converged
    assert torch.equal(sheaf.readout(solution.value).argmax(1), labels)
    distance = float(torch.linalg.vector_norm(state - solution.value))
    for _ in range(40):
        state = sheaf.step(state, shift)
        previous, distance = distance, float(torch.linalg.vector_norm(state - solution.value))
        assert distance <= previous + 1e-10
    # the coordinate ordering the proof establishes
    signs = sheaf.signs[labels]
    smallest_plus = torch.where(signs > 0, solution.value, torch.inf).amin(1)
    largest_minus = torch.where(signs < 0, solution.value, -torch.inf).amax(1)
    assert bool((smallest_plus > largest_minus).all())


def test_both_stored_directions_carry_one_sheaf():
    graph = random_graph(6, 8, 5, ring=True, undirected=True)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    sheaf = signed_separation(graph, labels, 3)
    pairs = {}
    for k, (u, v) in enumerate(graph.edge_index.T.tolist()):
        pairs.setdefault((min(u, v), max(u, v)), []).append((u, k))
    for (low, _), entries in pairs.items():
        forward = next(k for u, k in entries if u == low)
        backward = next(k for u, k in entries if u != low)
        assert torch.equal(sheaf.source_maps[forward], sheaf.target_maps[backward])
        assert torch.equal(sheaf.target_maps[forward], sheaf.source_maps[backward])


def test_self_loops_and_parallel_edges():
    index = torch.tensor([[0, 0, 1, 1, 2, 0, 1], [0, 1, 0, 2, 1, 1, 0]])
    graph = Graph.build(torch.zeros(3, 1), index)
    labels = torch.tensor([0, 1, 0])
    sheaf = signed_separation(graph, labels, 2)
    dense = sheaf.operator.to_dense()
    assert torch.allclose(dense, dense.T)
    solution = sheaf.solve()
    assert torch.equal(sheaf.readout(solution.value).argmax(1), labels)


def test_wrong_labels_are_not_recovered():
    """The checker is able to fail: the sheaf built for one labelling names that one, not
    another."""
    graph = random_graph(8, 10, 7, ring=True, undirected=True)
    labels = torch.arange(8) % 3
    solution = signed_separation(graph, labels, 3).solve()
    wrong = (labels + 1) % 3
    assert not torch.equal(
        signed_separation(graph, wrong, 3).readout(solution.value).argmax(1), wrong
    )


def test_bad_arguments():
    graph = random_graph(4, 9, 1, ring=True, undirected=True)
    labels = torch.tensor([0, 1, 2, 0])
    with pytest.raises(InputError, match="raise d"):
        signed_separation(graph, labels, 2)
    with pytest.raises(InputError, match="at least 2"):
        signed_separation(graph, labels, 1)
    with pytest.raises(InputError, match="integer tensor"):
        signed_separation(graph, labels.double(), 3)
    with pytest.raises(InputError, match="0 or larger"):
        signed_separation(graph, labels - 1, 3)
    one_way = Graph.build(torch.zeros(3, 1), torch.tensor([[0, 1, 2], [1, 2, 0]]))
    with pytest.raises(InputError, match="one direction"):
        signed_separation(one_way, torch.tensor([0, 1, 0]), 3)
    lonely = Graph.build(torch.zeros(3, 1), torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(InputError, match="node 2 is isolated"):
        signed_separation(lonely, torch.tensor([0, 1, 0]), 3)
    with pytest.raises(InputError, match="above 1"):
        signed_separation(graph, labels, 3).solve(1.0)
