"""Definition 11, Lemma 12, Theorem 13 and Corollary 14: what holds of the paper's model, and what
does not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from theory_tools import SLACK, generator, log_norm, positive, thompson, violates

from graphs import random_graph
from sheafdeq.constructions.counterexample import channel_difference, counterexample
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.theory.coefficients import mu

seeds = st.integers(0, 10**6)


def ring(n: int) -> Graph:
    nodes = torch.arange(n)
    index = torch.stack([nodes, (nodes + 1) % n])
    return Graph.build(torch.zeros(n, 2), torch.cat([index, index.flip(0)], dim=1))


def complete(n: int) -> Graph:
    index = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    return Graph.build(torch.zeros(n, 1), index[:, index[0] != index[1]])


@given(seed=seeds, scale=st.floats(-3, 3), shift=st.sampled_from([1.2, 1.3, 1.65]))
def test_lemma_12_scale_invariance_homogeneity_box_and_rays(seed, scale, shift):
    torch.manual_seed(seed)
    graph = random_graph(5, 9, seed, isolated=False)
    graph = graph.with_features(
        torch.randn(graph.num_nodes, 3, dtype=torch.float64, generator=generator(seed))
    )
    model = SheafDEQ(3, 2, stalk_dim=2, channels=3, shift=shift).double()
    with torch.no_grad():
        context = model.prepare(graph)
        state = positive(seed, graph.num_nodes, 6)
        factor = float(torch.tensor(scale).exp())
        one, two = model.operator(state, context), model.operator(factor * state, context)
        assert torch.allclose(one.source_maps, two.source_maps, atol=1e-10)  # (a)
        assert torch.allclose(one.target_maps, two.target_maps, atol=1e-10)
        image, scaled = model.step(state, context), model.step(factor * state, context)
        assert bool((image >= shift - 1).all())  # (b)
        assert bool((image <= shift + 1 + context.drive).all())
        assert thompson(scaled, image) <= mu(shift).upper * abs(scale) + 1e-8  # (c)


@pytest.mark.parametrize("gain", [0.51, 0.6, 0.75, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("shift", [1.2, 1.65, 5.0])
def test_theorem_13_three_fixed_points_for_every_shift(gain, shift):
    example = counterexample(gain, shift)
    points = example.fixed_points
    assert len(points) == 3
    for point in points:
        assert bool((point > 0).all())
        assert float((example.step(point) - point).abs().max()) < 1e-14
    assert thompson(points[1], points[2]) > 0.05
    # attraction: rows (2, 0.1) and (0.1, 2) at both nodes
    for row, limit in (([2.0, 0.1], points[1]), ([0.1, 2.0], points[2])):
        state = torch.tensor([row, row], dtype=torch.float64)
        for _ in range(3000):
            state = example.step(state)
        assert float((state - limit).abs().max()) < 1e-9


def test_theorem_13_the_printed_numbers():
    points = counterexample().fixed_points
    assert points[1, 0].tolist() == pytest.approx([2.15750402, 0.24249598], abs=1e-8)
    assert points[2, 1].tolist() == pytest.approx([0.24249598, 2.15750402], abs=1e-8)


@pytest.mark.parametrize("gain", [0.0, 0.1, 0.3, 0.5])
def test_theorem_13_one_fixed_point_up_to_the_bifurcation(gain):
    example = counterexample(gain)
    assert len(example.fixed_points) == 1
    state = torch.tensor([[2.0, 0.1], [2.0, 0.1]], dtype=torch.float64)
    for _ in range(4000):
        state = example.step(state)
    # at the bifurcation itself the approach is only algebraic
    tolerance = 1e-9 if gain < 0.5 else 0.05
    assert thompson(state, example.fixed_points[0]) < tolerance


@given(gain=st.floats(0.55, 20.0))
def test_theorem_13_there_is_no_fourth(gain):
    """Node differences at a fixed point satisfy x = g(g(x)), g = 2 tanh(gain .): exactly three sign
    changes on [-2, 2]."""
    x = torch.linspace(-2.001, 2.001, 40_000, dtype=torch.float64)
    values = 2 * torch.tanh(gain * 2 * torch.tanh(gain * x)) - x
    assert int((torch.sign(values[1:]) != torch.sign(values[:-1])).sum()) == 3


@given(gain=st.floats(0.0, 30.0))
def test_channel_difference_solves_its_equation(gain):
    s = channel_difference(gain)
    assert abs(2 * torch.tanh(torch.tensor(gain * s, dtype=torch.float64)).item() - s) < 1e-13
    assert (s > 0) == (gain > 0.5)


@pytest.mark.parametrize("graph", [ring(5), ring(8), complete(4)])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_corollary_14a_every_stalk_dimension_on_regular_graphs(graph, d):
    example = counterexample(0.8, 1.2, d, graph)
    assert example.fixed_points.shape == (3, graph.num_nodes, 2 * d)
    for point in example.fixed_points:
        assert float((example.step(point) - point).abs().max()) < 1e-13


def test_corollary_14b_normalised_attention_on_an_irregular_graph():
    graph = random_graph(6, 10, 3, isolated=False)
    n = graph.num_nodes
    adjacency = torch.eye(n, dtype=torch.float64)
    adjacency[graph.target, graph.source] = 1.0
    attention = adjacency / adjacency.sum(1, keepdim=True)  # softmax of equal logits (Q = K = 0)
    example = counterexample(1.0)
    for point in example.fixed_points:
        state = point[:1].expand(n, -1)
        image = torch.tanh(attention @ state @ example.channel_mixing) + 1.2
        assert float((image - state).abs().max()) < 1e-13


@pytest.mark.parametrize("d", [1, 2])
def test_the_family_is_inside_the_model_class(d):
    example = counterexample(1.0, 1.3, d, ring(4))
    model = example.model()
    context = model.prepare(example.graph)
    state = positive(1, 4, 2 * d)
    with torch.no_grad():
        assert torch.allclose(model.step(state, context), example.step(state), atol=1e-14)
        assert bool((context.drive == 0).all())
        maps = model.operator(state, context).source_maps
        assert torch.allclose(
            torch.linalg.vector_norm(maps, dim=(1, 2)), torch.ones(len(maps), dtype=torch.float64)
        )


def test_the_checker_catches_the_false_theorem():
    """'The paper's update contracts with mu(beta)' is violated; 'it contracts with its true local
    rate' is not."""
    example = counterexample()
    states = [example.fixed_points[0], *[positive(seed, 2, 2, spread=0.3) for seed in range(5)]]
    assert violates(example.step, mu(1.2).upper, states)
    small = counterexample(0.05)
    worst = max(log_norm(small.step, state) for state in states)
    assert not violates(
        small.step, worst * (1 + 1e-3) + SLACK, [small.step(state) for state in states]
    )


def test_bad_arguments():
    with pytest.raises(InputError, match="regular graph"):
        counterexample(
            graph=Graph.build(torch.zeros(3, 1), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        )
    with pytest.raises(InputError, match="gain"):
        counterexample(-1.0)
    with pytest.raises(InputError, match="shift"):
        counterexample(1.0, 1.0)
    with pytest.raises(InputError, match="stalk_dim"):
        counterexample(1.0, 1.2, 0)
