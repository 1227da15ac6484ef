from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs import random_graph
from sheafdeq.data.graph import Graph
from sheafdeq.diagnostics import continue_iteration, observed_rate
from sheafdeq.diagnostics.residuals import Settling, first_loss
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Status
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, two_node_graph


def test_every_quantity_is_the_equation_in_the_docstring() -> None:
    graph = random_graph()
    model = SheafDEQ(2, 3, 2, 3).double()
    end = continue_iteration(model, graph, iterations=12).end
    found = continue_iteration(
        model, graph, iterations=5, reference=end, score=lambda outputs: float(outputs.sum())
    )
    with torch.no_grad():
        context = model.prepare(graph)
        states = [model.initial_state(context)]
        for _ in range(5):
            states.append(model.step(states[-1], context))
        for k in range(5):
            new, old = states[k + 1], states[k]
            assert found.update[k] == pytest.approx(
                ((new - old).abs().amax(1) / old.abs().amax(1)).max().item(), rel=1e-9
            )
            assert found.thompson[k] == pytest.approx(
                (new.log() - old.log()).abs().max().item(), rel=1e-9
            )
        for k, state in enumerate(states):
            outputs = model.readout(state)
            gap = (state - end.state).abs().amax(1) / end.state.abs().amax(1)
            assert found.state_discrepancy[k] == pytest.approx(gap.max().item(), rel=1e-9)
            worst = (outputs - end.outputs).abs().max() / end.outputs.abs().max()
            assert found.prediction_discrepancy[k] == pytest.approx(worst.item(), rel=1e-9)
            assert found.score[k] == pytest.approx(outputs.sum().item())
    assert torch.equal(found.end.state, states[-1])


def test_the_reference_meets_itself() -> None:
    graph = random_graph()
    model = SheafDEQ(2, 3, 2, 3)
    model, graph = model.float(), graph.to(torch.float32)
    end = continue_iteration(model, graph, iterations=30).end
    again = continue_iteration(model, graph, iterations=30, reference=end)
    assert again.state_discrepancy[-1] == 0.0
    assert again.prediction_discrepancy[-1] == 0.0


class Halving(LinearAverage):
    """Node v moves towards 1 by the factor ``rate[v]`` a step, whatever its neighbours say."""

    rates = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)

    def initial_state(self, context: Any) -> Tensor:
        return torch.full((3, 1), math.e, dtype=torch.float64)

    def step(self, state: Tensor, context: Any) -> Tensor:
        # log state shrinks by the rate: the Thompson metric contracts exactly so
        return state ** self.rates[:, None]

    def readout_of(self, state: Tensor) -> Tensor:
        return state


def three_nodes() -> Graph:
    return Graph.build(torch.zeros(3, 1, dtype=torch.float64), torch.tensor([[0], [1]]))


def test_settling_times_and_rate_of_a_known_recurrence() -> None:
    model = Halving(1, 1).double()
    found = continue_iteration(model, three_nodes(), iterations=200, settling_tolerance=1e-3)
    # log h_v(k) = rate^k, so node v changes by 1 - exp(rate^k (rate - 1)) relative to itself.
    expected = []
    for rate in model.rates.tolist():
        changes = [1 - math.exp(rate**k * (rate - 1)) for k in range(200)]
        expected.append(max(k + 1 for k, change in enumerate(changes) if change > 1e-3))
    times = [k for k, count in enumerate(found.settling.counts) for _ in range(count)]
    assert sorted(times) == sorted(expected)
    assert found.settling.unsettled == 0
    assert found.settling.median == sorted(expected)[1]
    assert found.rate == pytest.approx(0.9, rel=1e-6)  # the slowest node decides
    assert found.status is Status.CONVERGED


def test_a_node_that_never_rests_is_unsettled() -> None:
    class Flip(Halving):
        rates = torch.tensor([0.1, 0.1, -1.0], dtype=torch.float64)  # e, 1/e, e, ...

    found = continue_iteration(Flip(1, 1).double(), three_nodes(), iterations=50)
    assert found.settling.unsettled == 1
    assert sum(found.settling.counts) == 2
    assert found.status is Status.MAX_STEPS
    assert found.rate == pytest.approx(1.0)


def test_median_settling_time_is_none_when_half_the_nodes_move() -> None:
    assert Settling(1e-3, (2, 0), 2).median is None
    assert Settling(1e-3, (0, 3), 2).median == 1


def test_a_non_finite_run_is_reported_and_cut() -> None:
    class Overflowing(Halving):
        rates = torch.tensor([0.5, 0.5, 3.0], dtype=torch.float64)

    found = continue_iteration(
        Overflowing(1, 1).double(), three_nodes(), iterations=50, score=lambda outputs: 1.0
    )
    assert found.status is Status.NON_FINITE
    assert not found.finite
    assert len(found.update) + 1 == len(found.score) < 50
    assert torch.isfinite(found.end.state).all()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["status"] == "non-finite"


def test_states_outside_the_cone_have_no_thompson_rate() -> None:
    model = LinearAverage(2, 1).double()  # starts at zero
    found = continue_iteration(model, random_graph(), iterations=20)
    assert found.rate is None
    assert found.to_json()["thompson"][0] is None


def test_outputs_are_watched_when_the_state_is_not_exposed() -> None:
    graph = random_graph()
    model = SheafDEQ(2, 3, 2, 2).double()
    end = continue_iteration(model, graph, iterations=4).end
    found = continue_iteration(model, graph, iterations=4, reference=end, exposed=False)
    with torch.no_grad():
        context = model.prepare(graph)
        first = model.initial_state(context)
        old, new = model.readout(first), model.readout(model.step(first, context))
    assert found.update[0] == pytest.approx(
        ((new - old).abs().amax(1) / old.abs().amax(1)).max().item()
    )
    assert found.state_discrepancy == ()
    assert len(found.prediction_discrepancy) == 5


def test_first_loss() -> None:
    assert first_loss([0.1, 0.9, 0.9, 0.895, 0.88, 0.9], 1, 0.01) == 4
    assert first_loss([0.1, 0.9, 0.9], 1, 0.01) is None
    assert first_loss([0.9, 0.1], 5, 0.01) is None


def test_observed_rate() -> None:
    assert observed_rate([0.5**k for k in range(20)], 1e-16) == pytest.approx(0.5)
    # rounding is left out
    assert observed_rate([0.5**k for k in range(200)], 2.2e-16) == pytest.approx(0.5)
    assert observed_rate([1.0, 0.5], 1e-16) is None
    assert observed_rate([1.0, math.inf, 0.1, 0.1, 0.1], 1e-16) is None


def test_the_counterexample_from_two_starts() -> None:
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64))
    ends = [
        continue_iteration(
            model,
            two_node_graph(),
            iterations=200,
            start=torch.tensor([row, row], dtype=torch.float64),
            tolerance=1e-10,
        )
        for row in ([2.0, 0.1], [0.1, 2.0])
    ]
    assert all(end.status is Status.CONVERGED for end in ends)
    assert ends[0].end.state[0, 0].item() == pytest.approx(2.15750402, abs=1e-7)
    assert ends[1].end.state[0, 0].item() == pytest.approx(0.24249598, abs=1e-7)


class Flip(LinearAverage):
    """z -> 2 / z: every start but sqrt(2) is on a cycle of two."""

    def step(self, state: Tensor, context: Any) -> Tensor:
        return 2.0 / state


def test_damping_settles_a_cycle_and_its_updates_are_still_residuals_of_the_map() -> None:
    graph = random_graph(4, 6)
    model = Flip(2, 3).double()
    start = torch.full_like(model.initial_state(model.prepare(graph)), 1.2)
    cycle = continue_iteration(model, graph, iterations=40, start=start)
    assert cycle.status is not Status.CONVERGED
    assert cycle.update[-1] > 0.1
    damped = continue_iteration(model, graph, iterations=40, start=start, damping=0.5)
    assert damped.status is Status.CONVERGED
    assert damped.update[0] == pytest.approx((2 / 1.2 - 1.2) / 1.2)
    assert damped.end.state[0, 0] == pytest.approx(math.sqrt(2.0))


def test_undamped_steps_forget_a_far_start_at_once() -> None:
    graph = random_graph()
    model = SheafDEQ(2, 3, 2, 3).double()
    far = 1e6 * torch.ones_like(model.initial_state(model.prepare(graph)))
    plain = continue_iteration(model, graph, iterations=3, start=far)
    mixed = continue_iteration(model, graph, iterations=3, start=far, damping=0.5, undamped=2)
    damped = continue_iteration(model, graph, iterations=3, start=far, damping=0.5)
    assert mixed.update[:2] == plain.update[:2]
    # the residual at the same state, whatever share of it is taken
    assert mixed.update[2] == pytest.approx(plain.update[2])
    assert float(mixed.end.state.max()) < 20 < float(damped.end.state.max())
