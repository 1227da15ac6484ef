"""Refuted means proved; two states that merely hardly move are candidates; and a verdict can be
repeated."""

import json

import pytest
import torch

from sheafdeq.certificates import Certificate, Effort, Level, Verdict, Witness, certify
from sheafdeq.certificates.box import global_box
from sheafdeq.certificates.refute import newton_step, prove_fixed_point
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.constructions.counterexample import counterexample
from sheafdeq.data.graph import Graph
from sheafdeq.models.graph_attn_deq import GraphAttnDEQ
from sheafdeq.models.ignn import IGNN

FAST = Effort("fast", 300, 4, 4, 12, False)


def pairs(count: int) -> Graph:
    index = torch.arange(2 * count)
    return Graph.build(torch.zeros(2 * count, 1), torch.stack([index, index ^ 1]))


def test_at_the_threshold_nothing_is_refuted_whatever_the_seed():
    """Twelve pairs, gain exactly 1/2: one equilibrium, and states of residual 5e-10 that are 1e-3
    away from it."""
    family = counterexample(0.5, 1.01, graph=pairs(12))
    for seed in range(4):
        assert (
            certify(family.model(), family.graph, effort="quick", seed=seed).verdict
            is Verdict.NOT_CERTIFIED
        )


@pytest.mark.parametrize("above", [1e-1, 1e-3, 1e-5])
def test_above_the_threshold_the_refutation_is_proved(above):
    family = counterexample(0.5 + above, 1.01, graph=pairs(3))
    certificate = certify(family.model(), family.graph, effort=FAST)
    assert certificate.verdict is Verdict.REFUTED
    assert certificate.witness.proved
    difference = certificate.witness.first - certificate.witness.second
    assert float(difference.abs().max()) > 0.1 * above**0.5


def test_a_model_without_enclosures_has_candidates_at_most():
    """Corollary 14(b): GraphAttnDEQ with Q = K = 0 and the counterexample's product has three
    equilibria."""
    model = GraphAttnDEQ(2, 2, 1, 2, shift=1.2, pre_norm=True).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        names = dict(model.named_parameters())
        value = next(p for name, p in names.items() if "value" in name and p.dim() == 2)
        output = next(
            p
            for name, p in names.items()
            if ("mixing" in name or "output" in name) and p.shape == (2, 2)
        )
        value.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        output.copy_(torch.eye(2))
    graph = Graph.build(torch.zeros(4, 2), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
    certificate = certify(model, graph, effort=FAST)
    assert certificate.verdict is Verdict.TWO_CANDIDATES
    assert not certificate.witness.proved
    assert max(certificate.witness.newton) < 1e-9
    assert 0.99 < certificate.witness.refuted_rate < 1
    assert "not proved" in certificate.report()
    assert json.loads(json.dumps(certificate.to_json()))["verdict"] == "two candidates"


def test_verdicts_need_what_they_say():
    state = torch.ones(1, 1)
    witness = Witness(state, 2 * state, (1e-14, 1e-14), 0.7, False, "residuals")
    with pytest.raises(ValueError, match="proved to exist"):
        Certificate(Verdict.REFUTED, Level.NONE, "m", "g", witness=witness)
    with pytest.raises(ValueError, match="two states"):
        Certificate(Verdict.TWO_CANDIDATES, Level.NONE, "m", "g")


def test_the_verdict_is_repeatable_and_leaves_the_generator_alone():
    model = IGNN(1, 2, 2)
    with torch.no_grad():
        model.recurrent.copy_(1.5 * torch.eye(2))
    graph = pairs(2)
    records = []
    for noise in (0, 3):
        torch.manual_seed(noise)
        records.append(certify(model, graph, effort=FAST).to_json() | {"seconds": 0})
        assert torch.initial_seed() == noise
    assert records[0] == records[1]


def test_newtons_step_tells_a_fixed_point_from_a_slow_place():
    """Near a double root the residual is tiny and the step is a third of the way."""
    slow = counterexample(0.5, 1.2)
    model, graph = slow.model(), slow.graph
    context = model.prepare(graph)
    state = slow.fixed_points[0].clone()
    state[:, 0] += 1e-3
    state[:, 1] -= 1e-3
    assert 1e-4 < newton_step(model, context, state) < 1e-2
    clear = counterexample(1.0, 1.2)
    model = clear.model()
    assert newton_step(model, model.prepare(graph), clear.fixed_points[1]) < 1e-12


def test_nothing_is_proved_across_a_jump():
    """A generated map of norm near the guard switches off inside the box: continuity fails, and so
    does every proof."""
    family = counterexample(1.0)
    model = family.model()
    with torch.no_grad():
        for generator in (model.source_maps, model.target_maps):
            generator[2].bias.fill_(1e-12)
    enclosure = SheafEnclosure(model, model.prepare(family.graph))
    assert prove_fixed_point(enclosure, family.fixed_points[0]) is None


@pytest.mark.parametrize("gain", [0.0, 0.05, 0.3, 0.45])
def test_the_certified_box_contains_the_equilibrium_and_what_was_entered(gain):
    family = counterexample(gain)
    model = family.model()
    enclosure = SheafEnclosure(model, model.prepare(family.graph))
    for rounds in (1, 2, 5, 60):
        box = global_box(enclosure, rounds=rounds)
        lower, upper = box.bounds()
        equilibrium = family.fixed_points[0]
        assert bool((lower < equilibrium).all() and (equilibrium < upper).all())
        # between K_k and the box on which the rate is proved
        assert bool(
            (lower.log() < box.centre - box.width).all()
            and (upper.log() > box.centre + box.width).all()
        )
        assert bool(
            (lower.log() > box.centre - box.weights).all()
            and (upper.log() < box.centre + box.weights).all()
        )
