"""The proved box of a cascade contains its equilibrium, to fifty digits (Theorem 39)."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

import sheafdeq
from sheafdeq.asynchronous import Schedule, simulate
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models import MLP, SheafCascade
from sheafdeq.predictions import certify_predictions, refined
from sheafdeq.predictions.attack import attack
from sheafdeq.predictions.tower import enclosed_tower


def distance(exact, model, graph, state):
    """(n, L c) |log equilibrium - log state|, the equilibrium to fifty digits."""
    true, residual = exact.equilibrium(exact.cascade(model, graph), model, graph, state)
    assert residual < 1e-40
    return numpy.abs(exact.logarithm(true) - exact.logarithm(exact.exact(state)))


def check_one(exact, draw, seed):
    """A state, and the same state moved by up to a millionth: the equilibrium is inside each time.

    Returns how much of the bound is used: (true distance / bound), the largest entry.
    """
    model, graph = draw(seed)
    state = refined(model, graph)
    noise = 1e-6 * (2 * torch.rand(state.shape).double() - 1)
    used = []
    for start in (state, state * noise.exp()):
        tower = enclosed_tower(model, graph, start)
        if tower.reason is not None:  # honest: a bound that was not found is not claimed
            used.append(None)
            continue
        reach = torch.cat([level.reach for level in tower.levels], 1).numpy()
        off = distance(exact, model, graph, start)
        assert bool((off <= reach).all()), seed
        used.append(float((off / reach).max()))
    return used


@pytest.mark.parametrize("seed", range(12))
def test_the_equilibrium_to_fifty_digits_is_inside(exact, draw, seed):
    at_rest, moved = check_one(exact, draw, seed)
    assert at_rest is not None
    # A bound a thousand times too small would have been caught from the moved state.
    assert moved is None or moved > 1e-3


@pytest.mark.slow
def test_four_hundred_cascades_to_fifty_digits_are_inside(exact, draw):
    found = [check_one(exact, draw, seed) for seed in range(1000, 1400)]
    counts = {
        "draws": len(found),
        "enclosed": sum(used[0] is not None for used in found),
        "enclosed from a moved state": sum(used[1] is not None for used in found),
        "outside": 0,
    }
    if place := os.environ.get("SHEAFDEQ_COUNTS"):
        Path(f"{place}-cascades.json").write_text(json.dumps(counts, indent=1) + "\n")
    assert counts["enclosed"] >= 390
    assert counts["enclosed from a moved state"] >= 300


def test_an_enclosure_that_is_too_small_is_caught(exact, draw):
    model, graph = draw(3)
    state = refined(model, graph) * 1.00001
    tower = enclosed_tower(model, graph, state)
    reach = torch.cat([level.reach for level in tower.levels], 1).numpy()
    off = distance(exact, model, graph, state)
    assert bool((off <= reach).all())
    assert not bool((off <= reach * 1e-2).all())


@pytest.mark.parametrize("seed", [1, 4, 7, 8])
def test_features_within_the_radius_stay_inside(draw, seed):
    model, graph = draw(seed, levels=2)
    state = refined(model, graph)
    for radius in (1e-8, 1e-5, 1e-3):
        tower = enclosed_tower(model, graph, state, radius)
        if tower.reason is not None:
            assert radius > 1e-8
            continue
        reach = torch.cat([level.reach for level in tower.levels], 1)
        used = 0.0
        for trial in range(8):
            noise = 2 * torch.rand(graph.x.shape).double() - 1
            corner = noise.sign() if trial % 2 else noise
            other = refined(model, graph.with_features(graph.x + radius * corner))
            off = (other.log() - state.log()).abs()
            assert bool((off <= reach).all())
            used = max(used, float((off / reach).max()))
        assert used > 1e-4


def test_the_first_order_of_the_bound_is_the_exact_one(draw):
    """One level, one node without edges: nothing to lose but the rate, so the bound is tight."""
    torch.manual_seed(0)
    model = SheafCascade(2, 2, stalk_dim=2, channels=2, levels=1, hidden=3, edge_hidden=3).double()
    graph = Graph.build(torch.tensor([[0.4, -0.7]]).double(), torch.zeros(2, 0).long())
    state = refined(model, graph)
    bound = enclosed_tower(model, graph, state, 1e-7).levels[-1].reach
    worst = torch.zeros_like(state)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        shift = 1e-7 * torch.tensor([signs]).double()
        other = refined(model, graph.with_features(graph.x + shift))
        worst = torch.maximum(worst, (other.log() - state.log()).abs())
    assert bool((worst <= bound).all())
    assert float((bound / worst.clamp(min=1e-12)).min()) < 2.0


# ---------------------------------------------------------------------- labels


def test_labels_margins_and_reasons(draw):
    model, graph = draw(5)
    result = certify_predictions(model, graph)
    with torch.no_grad():
        logits = model.run_to_equilibrium(graph, tolerance=1e-13).logits
    assert torch.equal(result.label, logits.argmax(1))
    assert bool(result.proved.all())
    assert result.delays
    top = logits.topk(2, 1).values
    assert torch.allclose(result.margin, top[:, 0] - top[:, 1], atol=1e-6)
    assert bool((result.margin <= result.lead).all())
    assert result.why == ("",) * graph.num_nodes
    assert result.share == 1.0
    payload = result.to_json()
    assert payload["proved"] == graph.num_nodes
    assert "labels proved" in result.report()
    scores = result.scores(result.label)
    assert scores.proved_right == scores.nodes == graph.num_nodes


def test_two_equal_labels_are_a_tie(draw):
    model, graph = draw(5)
    with torch.no_grad():
        model.output.weight[1] = model.output.weight[0]
        model.output.bias[1] = model.output.bias[0]
        model.output.weight[2:] = 0
        model.output.bias[2:] = -1e3
    result = certify_predictions(model, graph)
    assert not bool(result.proved.any())
    assert all(text.startswith("tie") for text in result.why)


def test_a_radius_too_large_is_not_proved_and_says_why(draw):
    model, graph = draw(5)
    result = certify_predictions(model, graph, radius=10.0)
    assert not bool(result.proved.any())
    assert result.reason is not None
    assert all(result.why)
    assert "not enclosed" in result.report()


def test_a_state_far_from_rest_is_not_taken_for_the_equilibrium(draw):
    model, graph = draw(5)
    state = refined(model, graph)
    result = certify_predictions(model, graph, state=torch.full_like(state, 2.0))
    inside = result.reach is not None
    if inside:
        top = state[:, -model.width :]
        assert bool(((top / 2.0).log().abs() <= result.reach).all())
    else:
        assert not bool(result.proved.any())


def test_float32_models_are_judged_in_float64(draw):
    model, graph = draw(5)
    result = certify_predictions(model.float(), graph.to(torch.float32))
    assert result.state.dtype == torch.float64
    assert bool(result.proved.all())


def test_a_graph_without_nodes():
    model = SheafCascade(2, 2, stalk_dim=2, channels=2, levels=2, hidden=3, edge_hidden=3)
    graph = Graph.build(torch.zeros(0, 2), torch.zeros(2, 0).long())
    assert certify_predictions(model, graph).share == 1.0


class Louder(SheafCascade):
    """A cascade with another map, of which nothing is proved."""

    def step(self, state, context):
        return 2 * super().step(state, context)


def test_what_the_proof_does_not_know_is_not_proved(draw):
    _, graph = draw(5)
    f = graph.x.shape[1]
    options = {"stalk_dim": 2, "channels": 2, "levels": 2, "hidden": 3, "edge_hidden": 3}
    options["edge_dim"] = graph.edge_dim or None
    result = certify_predictions(Louder(f, 2, **options).double(), graph)
    assert not bool(result.proved.any())
    model = SheafCascade(f, 2, **options).double()
    model.readout = lambda state, context: state[:, :2]
    result = certify_predictions(model, graph)
    assert not bool(result.proved.any())
    assert "readout" in result.reason


def test_bad_input_is_named(draw):
    model, graph = draw(5)
    with pytest.raises(InputError, match="radius"):
        certify_predictions(model, graph, radius=-1.0)
    with pytest.raises(InputError, match="radius"):
        certify_predictions(model, graph, radius=float("nan"))
    with pytest.raises(InputError, match="no equilibrium"):
        certify_predictions(MLP(2, 2, 4), graph)
    with pytest.raises(InputError, match="must be"):
        certify_predictions(model, graph, state=torch.ones(1, 1))
    with pytest.raises(InputError, match="positive"):
        certify_predictions(model, graph, state=-refined(model, graph))


# ---------------------------------------------------------------------- late messages, attacks


@pytest.mark.parametrize("seed", [2, 5])
def test_schedules_with_delays_end_with_the_proved_labels(draw, seed):
    """Corollary 40: labels at the equilibrium are labels of every partially asynchronous run."""
    model, graph = draw(seed)
    result = certify_predictions(model, graph)
    for number, (window, delay) in enumerate(((3, 5), (2, 64))):
        run = simulate(model, graph, Schedule(window, delay, seed=number), work=120)
        logits = model.readout(run.state, model.prepare(graph))
        assert torch.equal(logits.argmax(1)[result.proved], result.label[result.proved])


@pytest.mark.parametrize("seed", [5, 8])
def test_no_attack_changes_a_proved_label(draw, seed):
    """Corollary 40(a)."""
    model, graph = draw(seed, levels=2)
    for radius in (1e-6, 1e-3):
        result = certify_predictions(model, graph, radius=radius)
        found = attack(model, graph, radius, restarts=3, ascents=4)
        assert not bool((found.changed & result.proved).any())
        assert bool((found.surviving[result.proved] >= result.margin[result.proved] - 1e-9).all())


def test_the_attack_finds_what_is_there(draw):
    """With a radius as wide as the features every label that can move does."""
    model, graph = draw(8, levels=2)
    found = attack(model, graph, 5.0, restarts=4, ascents=6)
    assert bool(found.changed.any())
    assert found.accuracy(found.label) < 1.0


def test_a_certificate_goes_on_to_the_labels(draw):
    model, graph = draw(5)
    certificate = sheafdeq.certify(model, graph)
    result = certificate.predictions
    assert certificate.predictions is result  # found once
    direct = certify_predictions(model, graph)
    assert torch.equal(result.label, direct.label)
    assert torch.equal(result.proved, direct.proved)
    assert torch.allclose(result.margin, direct.margin)
    assert result.distance.shape == direct.distance.shape == (graph.num_nodes,)
    assert len(result.why) == graph.num_nodes
    read = replace(certificate, subject=None)
    with pytest.raises(InputError, match="does not know its model"):
        _ = read.predictions


def test_a_certificate_at_a_given_state_judges_that_state(draw):
    model, graph = draw(5)
    state = refined(model, graph) * 1.000001
    result = sheafdeq.certify(model, graph, equilibrium=state, effort="quick").predictions
    assert torch.equal(result.state, state)
    assert float(result.distance.max()) > 1e-7
