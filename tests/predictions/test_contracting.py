"""Bounds from a rate (Proposition 41) and from several steps together (Theorem 42)."""

import json
import os
from pathlib import Path

import numpy
import pytest
import torch

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafDEQ, StrongSheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.predictions import certify_predictions, refined, together
from sheafdeq.predictions.contracting import reach_by_rate
from sheafdeq.predictions.strong_step import attention_image, sheaf_image
from sheafdeq.predictions.together import _in_float32, _power_norms, steps_together

KINDS = ("StrongSheafDEQ", "StrongAttnDEQ", "SheafDEQ")


def one_node(matrix):
    """A matrix as the block of one node without edges."""
    edges = Graph.build(torch.zeros(1, 1).double(), torch.zeros(2, 0).long()).edges
    return BlockMatrix(edges, matrix.unsqueeze(0), matrix.new_zeros(0, *matrix.shape))


def check_one(exact, draw, kind, seed):
    """The equilibrium to fifty digits is inside, from rest and from a state moved by a millionth.

    Returns what share of each bound is used, None where nothing was enclosed.
    """
    model, graph = draw(kind, seed)
    state = refined(model, graph)
    used = []
    for start in (state, state * (1e-6 * (2 * torch.rand(state.shape).double() - 1)).exp()):
        result = certify_predictions(model, graph, state=start)
        if result.reach is None:
            used.append(None)
            continue
        true, residual = exact.equilibrium(exact.STEPS[kind](model, graph), model, graph, start)
        assert residual < 1e-40
        off = numpy.abs(exact.logarithm(true) - exact.logarithm(exact.exact(start)))
        reach = result.reach.numpy()
        assert bool((off <= reach).all()), (kind, seed)
        used.append(float((off / reach).max()))
    return used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_equilibrium_to_fifty_digits_is_inside(exact, draw_contracting, kind, seed):
    at_rest, moved = check_one(exact, draw_contracting, kind, seed)
    assert kind == "SheafDEQ" or at_rest is not None
    assert moved is None or moved > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_equilibria_to_fifty_digits_are_inside(exact, draw_contracting, kind):
    counts = {"draws": 0, "enclosed": 0, "enclosed from a moved state": 0, "outside": 0}
    for seed in range(1000, 1200):
        used = check_one(exact, draw_contracting, kind, seed)
        counts["draws"] += 1
        counts["enclosed"] += used[0] is not None
        counts["enclosed from a moved state"] += used[1] is not None
        if place := os.environ.get("SHEAFDEQ_COUNTS"):
            Path(f"{place}-{kind}.json").write_text(json.dumps(counts, indent=1) + "\n")
    assert counts["enclosed"] >= (200 if kind != "SheafDEQ" else 120)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("seed", range(5))
def test_an_image_contains_the_step_for_all_features_within_the_radius(
    draw_contracting, kind, seed
):
    model, graph = draw_contracting(kind, seed)
    image = {"StrongSheafDEQ": sheaf_image, "StrongAttnDEQ": attention_image}[kind]
    state = torch.rand(graph.num_nodes, model.width).double() + 0.5
    context = model.prepare(graph)
    with torch.no_grad():
        point = image(model, context, graph, state, 0.0)
        assert point.contains(model.step(state, context))
        assert float(point.radius.max()) < 1e-11
        wide = image(model, context, graph, state, 1e-2)
        for _ in range(20):
            noise = 1e-2 * (2 * torch.rand_like(graph.x) - 1).sign()
            other = model.prepare(graph.with_features(graph.x + noise))
            assert wide.contains(model.step(state, other))
        assert not point.contains(wide.upper)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_features_within_the_radius_keep_proved_labels(draw_contracting, kind):
    model, graph = draw_contracting(kind, 2)
    result = certify_predictions(model, graph, radius=1e-3)
    for _ in range(10):
        noise = 1e-3 * (2 * torch.rand_like(graph.x) - 1).sign()
        moved = graph.with_features(graph.x + noise)
        state = refined(model, moved)
        off = (state.log() - result.state.log()).abs()
        assert bool((off <= result.reach).all())
        label = model.readout(state, None).argmax(1)
        assert torch.equal(label[result.proved], result.label[result.proved])


def test_the_bound_of_a_rate_by_hand():
    residual = torch.tensor([[1.0, 2.0]]).double()
    assert reach_by_rate(residual, 0.5)[0].tolist() == pytest.approx([3.0, 4.0])
    weights = torch.tensor([[1.0, 4.0]]).double()
    assert reach_by_rate(residual, 0.5, weights)[0].tolist() == pytest.approx([2.0, 6.0])


# ---------------------------------------------------------------------- several steps together


def test_powers_of_a_matrix_whose_first_power_is_large():
    """A rotation by a right angle, stretched: |M| has rows of 1.8, M^2 = -0.81 times 1."""
    matrix = torch.tensor([[0.0, -1.8], [0.45, 0.0]]).double()
    k, theta, kappa = _power_norms(one_node(matrix))
    assert k == 2
    assert theta == pytest.approx(0.9, rel=1e-5)
    assert kappa == pytest.approx(2.0, rel=1e-5)
    # theta^k bounds the power, and kappa every smaller one
    for i in range(k):
        power = torch.linalg.matrix_power(matrix, i).abs().sum(1).max()
        assert float(power) <= kappa * theta**i * (1 + 1e-9)
    assert _power_norms(one_node(torch.tensor([[1.0]]).double())) is None
    assert _power_norms(one_node(torch.tensor([[2.0]]).double())) is None


@pytest.mark.parametrize("rows", [2, 6, 100])
def test_powers_by_some_rows_at_a_time_are_the_dense_ones(monkeypatch, rows):
    """Blocks with parallel edges and loops; the slowest rows decide how many steps are formed."""
    monkeypatch.setattr(together, "ROWS_AT_ONCE", rows)
    torch.manual_seed(rows)
    edges = Graph.build(torch.randn(7, 1).double(), torch.randint(7, (2, 20))).edges
    own, edge = torch.randn(7, 2, 2).double(), torch.randn(20, 2, 2).double()
    dense = BlockMatrix(edges, own, edge).to_dense()
    scale = 0.7 / float(torch.linalg.eigvals(dense).abs().max())
    matrix = _in_float32(BlockMatrix(edges, scale * own, scale * edge))
    dense = matrix.to_dense()
    found = _power_norms(matrix)
    assert found is not None
    k, theta, kappa = found
    norms = [float(torch.linalg.matrix_power(dense, i).abs().sum(1).max()) for i in range(k + 1)]
    assert norms[k] <= theta**k <= norms[k] * (1 + 1e-3)
    assert max(norm * theta**-i for i, norm in enumerate(norms[:k])) <= kappa * (1 + 1e-12)
    assert kappa <= max(norm * theta**-i for i, norm in enumerate(norms[:k])) * (1 + 1e-3)


def test_steps_together_prove_what_one_step_cannot(exact):
    """A SheafDEQ at rest whose Jacobian has rows above one: no rate, but four steps contract."""
    found = None
    for seed in range(40):
        torch.manual_seed(seed)
        graph = Graph.build(torch.randn(4, 2).double(), torch.randint(4, (2, 8)))
        model = SheafDEQ(2, 3, 2, 2, shift=1.3).double()
        with torch.no_grad():
            model.channel_mixing.mul_(1.2)
        state = refined(model, graph)
        together = steps_together(model, model.prepare(graph), state)
        if together.reach is not None and together.steps > 1:
            found = together
            true, _ = exact.equilibrium(exact.sheaf_deq(model, graph), model, graph, state)
            off = numpy.abs(exact.logarithm(true) - exact.logarithm(exact.exact(state)))
            assert bool((off <= together.reach.numpy()).all())
            assert together.rate < 1
            # synchronous iteration from inside the ball reaches it
            near = state * (0.5 * together.radius / together.factor * torch.ones_like(state)).exp()
            with torch.no_grad():
                for _ in range(400):
                    near = model.step(near, model.prepare(graph))
            assert bool(((near.log() - state.log()).abs() <= 2 * together.reach + 1e-12).all())
            break
    assert found is not None


def test_a_model_that_does_not_settle_is_not_proved():
    """The counterexample's weights: the middle fixed point is unstable."""
    graph = Graph.build(torch.zeros(2, 1).double(), torch.tensor([[0, 1], [1, 0]]))
    model = SheafDEQ(1, 2, 1, 2, shift=1.3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for generator in (model.source_maps, model.target_maps):
            generator[2].bias.fill_(1.0)
        model.stalk_mixing.fill_(1.0)
        model.channel_mixing.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        model.readout.weight.copy_(torch.eye(2))
    middle = torch.full((2, 2), 1.3).double()
    result = certify_predictions(model, graph, state=middle)
    assert not bool(result.proved.any())
    assert steps_together(model, model.prepare(graph), middle).reach is None


def test_delays_stay_unproved_where_steps_contract_only_together(draw_contracting):
    for seed in range(5):
        model, graph = draw_contracting("SheafDEQ", seed)
        result = certify_predictions(model, graph)
        assert not (result.delays and "Theorem 42" in result.grounds)
    large = Graph.build(torch.randn(21_000, 1).double(), torch.randint(21_000, (2, 8000)))
    model = SheafDEQ(1, 2, 2, 2).double()
    reason = steps_together(model, model.prepare(large), torch.ones(21_000, 4).double()).reason
    assert "84,000" in reason
    assert "operations" in reason


def test_a_sheaf_deq_that_was_changed_is_not_proved(draw_contracting):
    """Its enclosure reads weights: a hook, another step or weights of edges are not in it."""
    model, graph = draw_contracting("SheafDEQ", 0)
    assert certify_predictions(model, graph).reason is None
    weights = torch.ones(graph.num_edges).double()
    heavy = Graph.build(graph.x, graph.edge_index, graph.edge_attr, edge_weight=weights)
    assert "edge_weight" in certify_predictions(model, heavy).reason
    handle = model.readout.register_forward_hook(lambda module, inputs, output: -output)
    assert not bool(certify_predictions(model, graph).proved.any())
    handle.remove()
    model.step = lambda state, context: state
    assert not bool(certify_predictions(model, graph).proved.any())


def test_a_radius_is_refused_where_the_rate_is_for_one_input(draw_contracting):
    model, graph = draw_contracting("SheafDEQ", 1)
    result = certify_predictions(model, graph, radius=1e-3)
    assert result.reach is None
    assert "stored features" in result.reason


def test_the_models_by_name():
    assert {kind.__name__ for kind in (StrongSheafDEQ, StrongAttnDEQ, SheafDEQ)} == set(KINDS)
