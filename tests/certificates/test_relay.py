"""The certificate of SheafRelay: its metric contracts, its number of steps is exact, and a broken
relay gets none."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import random_graph
from sheafdeq.certificates import certify
from sheafdeq.certificates.certificate import Verdict
from sheafdeq.certificates.rules.sheaf_relay import gathering_depth
from sheafdeq.data.graph import Graph
from sheafdeq.models.sheaf_relay import SheafRelay


def relay(seed: int, size: float = 1.0) -> SheafRelay:
    torch.manual_seed(seed)
    model = SheafRelay(2, 1, 2, 2, hidden=4, core_rate=0.8).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return model


def path(n: int) -> Graph:
    edges = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    return Graph.build(
        torch.randn(n, 2, dtype=torch.float64), torch.cat([edges, edges.flip(0)], dim=1)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_observed_rates_never_exceed_the_certified_one(seed):
    graph, model = random_graph(6, 7, seed, undirected=True), relay(seed)
    certificate = certify(model, graph, effort="quick")
    assert certificate.verdict is Verdict.CERTIFIED
    assert certificate.delays
    with torch.no_grad():
        context = model.prepare(graph)
        shape = model.initial_state(context).shape
        for _ in range(4):
            x, y = torch.randn(2, *shape, dtype=torch.float64)
            before = certificate.metric(x, y)
            after = certificate.metric(model.step(x, context), model.step(y, context))
            assert after <= certificate.rate * before * (1 + 1e-9)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_on_a_path_the_proved_number_of_steps_is_the_one_needed(n):
    graph, model = path(n), relay(n)
    certificate = certify(model, graph, effort="quick")
    (steps,) = certificate.proved.values()
    assert steps == n - 1
    assert certificate.grounds == "Theorem 38(c)"
    with torch.no_grad():
        context = model.prepare(graph)
        state = torch.randn_like(model.initial_state(context))
        for _ in range(steps):
            state = model.step(state, context)
        assert torch.equal(model.step(state, context), state)


def test_a_cycle_has_no_last_step():
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graph = Graph.build(
        torch.randn(3, 2, dtype=torch.float64), torch.cat([ring, ring.flip(0)], dim=1)
    )
    model = relay(1)
    assert gathering_depth(model.prepare(graph)) is None
    certificate = certify(model, graph, effort="quick")
    assert certificate.grounds == "Theorem 38(b)"
    assert certificate.rate <= 0.9 * (1 + 1e-9)


class Unbounded(SheafRelay):
    """A relay that does not scale its core."""

    def prepare(self, graph):
        context = super().prepare(graph)
        return dataclasses.replace(
            context, transport=2 * torch.eye(2, dtype=torch.float64).expand_as(context.transport)
        )


def test_a_relay_with_another_map_is_not_certified():
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graph = Graph.build(
        torch.randn(3, 2, dtype=torch.float64), torch.cat([ring, ring.flip(0)], dim=1)
    )
    model = Unbounded(2, 1, 2, 2, hidden=4).double()
    assert certify(model, graph, effort="quick").verdict is not Verdict.CERTIFIED


def test_transports_beyond_the_range_of_float64_give_a_reason():
    certificate = certify(relay(3, 1e6), path(60), effort="quick")
    assert certificate.verdict is Verdict.NOT_CERTIFIED
    assert certificate.reason
