"""Every registered recurrence under the simulator."""

from __future__ import annotations

import pytest
import torch

from graphs import random_graph
from sheafdeq.asynchronous import Schedule, simulate
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.registry import MODELS, Shape, build_model
from sheafdeq.solvers import Picard

SHAPE = Shape(2, 3, None, 2, 2, 4)
LOCAL = sorted(
    name
    for name in MODELS
    if isinstance(model := build_model(name, SHAPE), EquilibriumModel)
    and hasattr(model, "local_step")
)


def test_the_studied_models_are_all_here() -> None:
    sheaves = {"sheafdeq", "sheafdeq-no-norm", "strong-sheaf", "sheaf-cascade"}
    assert sheaves | {"ignn", "appnp", "graph-attn-deq", "loop-transformer"} <= set(LOCAL)


@pytest.mark.parametrize("name", LOCAL)
def test_synchronous_is_picard_and_stale_is_the_local_step(name: str) -> None:
    torch.manual_seed(0)
    graph, model = random_graph(16, 40, undirected=True), build_model(name, SHAPE).double().eval()
    assert isinstance(model, EquilibriumModel)
    with torch.no_grad():
        context = model.prepare(graph)
        start = model.initial_state(context)
        expected = Picard(steps=6).solve(lambda state: model.step(state, context), start).value
        assert torch.equal(simulate(model, graph, Schedule(1, 0), work=6).state, expected)
        # Slot by slot against local_step on the whole graph, with fresh rows for those who sleep.
        recording = Schedule(3, 2, seed=1).record(graph.edges, 8)
        history = [start]
        for slot in recording.taken:
            received = history[-1][graph.source].clone()
            edges = context.edges.edges_into(slot.active)
            received[edges] = torch.stack(history)[slot.time - slot.delay, graph.source[edges]]
            state = history[-1].clone()
            state[slot.active] = model.local_step(history[-1], received, context)[slot.active]  # type: ignore[operator]
            history.append(state)
        found = simulate(model, graph, recording, work=1000)
    torch.testing.assert_close(found.state, history[-1], rtol=1e-10, atol=1e-12)
    assert found.violations == ()
