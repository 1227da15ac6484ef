from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from graphs import random_graph
from sheafdeq.asynchronous import Channel, Schedule, Slot, simulate, simulate_many
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Picard, Status
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, two_node_graph

SCHEDULES = [
    Schedule(1, 0),
    Schedule(2, 1, seed=1),
    Schedule(5, 2, seed=2),
    Schedule(8, 4, seed=3),
    Schedule(1, 32, seed=4),
    Schedule(3, 3, seed=5, channel=Channel(loss=0.3, limit=16)),
    Schedule(3, 3, seed=6, channel=Channel(loss=0.2, duplication=0.4, reordering=True, limit=16)),
    Schedule(2, 2, seed=7, sleep=0.1, sleep_slots=12),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge_dim", [0, 2])
def test_the_synchronous_schedule_is_picard_bit_for_bit(dtype: torch.dtype, edge_dim: int) -> None:
    torch.manual_seed(0)
    graph = random_graph(30, 120, dtype=dtype, edge_dim=edge_dim)
    model = SheafDEQ(2, 3, 2, 4, edge_dim=edge_dim or None).to(dtype)
    with torch.no_grad():
        expected = model.run(graph, steps=37).solution
    assert expected is not None
    for batch in (1, 3):
        for result in simulate_many(
            model, graph, [Schedule(1, 0, seed) for seed in range(batch)], work=37
        ):
            assert torch.equal(result.state, expected.value)
            assert result.trace.slots == 37


def per_node_loop(model: SheafDEQ, graph: Graph, schedule: Schedule, slots: int) -> Tensor:
    """The definition, one node at a time: a stale view of all neighbours, and the row of the map
    that belongs to the node."""
    with torch.no_grad():
        context = model.prepare(graph)
        history = [model.initial_state(context)]
        for slot in schedule.slots(context.edges):
            if slot.time == slots:
                break
            state, position = history[-1].clone(), 0
            for node in slot.active.tolist():
                edges = range(int(graph.pointer[node]), int(graph.pointer[node + 1]))
                received = history[-1][graph.source].clone()
                for edge in edges:
                    received[edge] = history[slot.time - int(slot.delay[position])][
                        graph.source[edge]
                    ]
                    position += 1
                state[node] = model.local_step(history[-1], received, context)[node]
            history.append(state)
        return history[-1]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_simulator_follows_the_definition(schedule: Schedule) -> None:
    torch.manual_seed(1)
    graph = random_graph(12, 40, edge_dim=1)
    model = SheafDEQ(2, 3, 2, 2, edge_dim=1).double()
    recording = schedule.record(graph.edges, 12)
    result = simulate(model, graph, recording, work=1000)
    torch.testing.assert_close(
        result.state, per_node_loop(model, graph, schedule, 12), rtol=0, atol=1e-12
    )
    assert result.violations == ()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_contraction_reaches_its_fixed_point_under_every_schedule(schedule: Schedule) -> None:
    torch.manual_seed(2)
    graph = random_graph(30, 120)
    model = LinearAverage(2, 1, rate=0.7).double()
    result = simulate(model, graph, schedule, work=1500, tolerance=1e-12)
    assert result.status is Status.CONVERGED
    assert result.violations == ()
    assert (result.state - model.exact(graph)).abs().max() < 1e-10


def test_running_together_equals_running_alone() -> None:
    torch.manual_seed(3)
    graph = random_graph(30, 120)
    model = SheafDEQ(2, 3, 2, 3).double()
    together = simulate_many(model, graph, SCHEDULES, work=9)
    few = simulate_many(model, graph, SCHEDULES, work=9, history_bytes=1)
    for schedule, first, second in zip(SCHEDULES, together, few, strict=True):
        alone = simulate(model, graph, schedule, work=9)
        for other in (first, second):
            torch.testing.assert_close(other.state, alone.state, rtol=0, atol=1e-12)
            assert other.trace.to_json() == alone.trace.to_json()
            assert other.work == alone.work >= 9


def test_the_same_run_twice_gives_the_same_bits() -> None:
    torch.manual_seed(3)
    graph = random_graph(30, 120, dtype=torch.float32)
    model = SheafDEQ(2, 3, 2, 3)
    first, second = (simulate(model, graph, Schedule(5, 3, seed=9), work=20) for _ in range(2))
    assert torch.equal(first.state, second.state)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 1000), st.floats(0.1, 0.9))
def test_contractions_settle_whatever_the_schedule(
    window: int, delay: int, seed: int, rate: float
) -> None:
    graph = random_graph(10, 25)
    torch.manual_seed(0)
    model = LinearAverage(2, 1, rate=rate).double()
    result = simulate(model, graph, Schedule(window, delay, seed), work=1500, tolerance=1e-12)
    assert (result.state - model.exact(graph)).abs().max() < 1e-10
    # the exact end is recognised, and the rest of the work is not computed
    assert result.stationary is not None
    assert result.work < 1500


# ---------------------------------------------------------------------- the counterexample


LIMITS = list(
    torch.tensor([[2.15750402, 0.24249598], [0.24249598, 2.15750402]], dtype=torch.float64)
)


def counterexample() -> SheafDEQ:
    return constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    "schedule", [Schedule(1, 0), Schedule(2, 1, 0), Schedule(5, 2, 0), Schedule(8, 4, 1)], ids=str
)
def test_the_counterexample_has_two_limits_from_two_starts(schedule: Schedule) -> None:
    for start, limit in zip(([2.0, 0.1], [0.1, 2.0]), LIMITS, strict=True):
        state = torch.tensor([start, start], dtype=torch.float64)
        pair = (counterexample(), two_node_graph())
        result = simulate(*pair, schedule, work=400, initial_state=state, tolerance=1e-10)
        assert result.status is Status.CONVERGED
        torch.testing.assert_close(result.state, limit.expand(2, 2), rtol=0, atol=1e-7)


def test_the_counterexample_has_two_limits_from_one_start_under_two_schedules() -> None:
    # One node leans each way: who speaks first decides for both.
    start = torch.tensor([[1.3, 1.1], [1.1, 1.3]], dtype=torch.float64)
    schedules = [Schedule(3, 2, seed) for seed in range(12)]
    ends = set()
    for result in simulate_many(
        counterexample(),
        two_node_graph(),
        schedules,
        work=150,
        initial_state=start,
        tolerance=1e-10,
    ):
        assert result.violations == ()
        if result.status is Status.CONVERGED:
            ends.add(
                next(
                    (
                        k
                        for k, limit in enumerate(LIMITS)
                        if (result.state - limit).abs().max() < 1e-6
                    ),
                    None,
                )
            )
    assert {0, 1} <= ends


# ---------------------------------------------------------------------- failure is data


@dataclass(frozen=True, eq=False)
class PlainContext:
    edges: Edges


class Growing(LinearAverage):
    """Doubles every state: overflows float64 after about a thousand steps."""

    def prepare(self, graph: Graph) -> Any:
        return PlainContext(graph.edges)

    def initial_state(self, context: Any) -> Tensor:
        return torch.ones(context.edges.num_targets, 2, dtype=torch.float64)

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        return self.factor * own

    factor = 2.0


def test_divergence_is_reported() -> None:
    result = simulate(Growing(2, 1), random_graph(30, 120), Schedule(2, 1), work=100)
    assert result.status is Status.DIVERGED
    assert torch.isfinite(result.state).all()
    assert result.work < 100


def test_overflow_is_reported_with_the_last_finite_state() -> None:
    model = Growing(2, 1)
    model.factor = 1e200
    for schedule in (Schedule(1, 0), Schedule(2, 1)):
        result = simulate(model, random_graph(30, 120), schedule, work=100)
        assert result.status in (Status.DIVERGED, Status.NON_FINITE)
        assert torch.isfinite(result.state).all()
    model.factor = float("inf")
    result = simulate(model, random_graph(30, 120), Schedule(2, 1), work=100)
    assert result.status is Status.NON_FINITE
    assert torch.isfinite(result.state).all()


def test_a_run_that_fails_does_not_disturb_the_others() -> None:
    class Fragile(LinearAverage):
        def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
            image = super().local_step(own, received, context)
            return torch.full_like(image, torch.nan) if len(own) == 29 else image

    # Only a slot with exactly 29 active nodes breaks, and only alone: schedule 1 never has one.
    torch.manual_seed(0)
    graph = random_graph(30, 120)
    model = Fragile(2, 1).double()

    @dataclass(frozen=True)
    class Most:
        window: int = 1
        delay_bound: int = 0

        def describe(self) -> dict[str, Any]:
            return {}

        def slots(self, incidence: Edges) -> Iterator[Slot]:
            for time in range(50):
                nodes = torch.arange(incidence.num_targets - (time == 7))
                yield Slot(
                    time, nodes, torch.zeros(len(incidence.edges_into(nodes)), dtype=torch.int64)
                )

    broken, healthy = simulate_many(model, graph, [Most(), Schedule(1, 0)], work=40, tolerance=1e-9)
    assert broken.status is Status.NON_FINITE
    assert torch.isfinite(broken.state).all()
    assert broken.work < 40
    assert healthy.status is Status.CONVERGED


def test_a_schedule_that_breaks_its_promise_is_reported_or_refused() -> None:
    @dataclass(frozen=True)
    class Lazy:
        """Node 0 sleeps for ever."""

        late: int = 0
        window: int = 2
        delay_bound: int = 1

        def describe(self) -> dict[str, Any]:
            return {"kind": "lazy"}

        def slots(self, incidence: Edges) -> Iterator[Slot]:
            nodes = torch.arange(1, incidence.num_targets)
            count = len(incidence.edges_into(nodes))
            for time in range(20):
                yield Slot(
                    time, nodes, torch.full((count,), min(self.late, time), dtype=torch.int64)
                )

    model = LinearAverage(2, 1).double()
    result = simulate(model, random_graph(30, 120), Lazy(), work=10)
    assert {violation.condition for violation in result.violations} == {1}
    with pytest.raises(InputError, match="promises at most 1"):
        simulate(model, random_graph(30, 120), Lazy(late=5), work=10)


def test_what_cannot_run_is_refused() -> None:
    graph = random_graph(30, 120)
    with pytest.raises(InputError, match="work"):
        simulate(LinearAverage(2, 1).double(), graph, Schedule(), work=0)
    with pytest.raises(InputError, match="feed-forward"):
        simulate(nn.Linear(2, 2), graph, Schedule(), work=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="29 rows"):
        simulate(
            LinearAverage(2, 1).double(),
            graph,
            Schedule(),
            work=1,
            initial_state=torch.ones(29, 2).double(),
        )


def test_dropout_is_off_and_the_mode_is_restored() -> None:
    graph = random_graph(30, 120)
    model = SheafDEQ(2, 3, 2, 2).double().train()
    simulate(model, graph, Schedule(2, 1), work=2)
    assert model.training


def test_marks_are_observed_at_their_work() -> None:
    graph = random_graph(30, 120)
    model = LinearAverage(2, 1).double()
    seen: list[float] = []
    result = simulate(
        model,
        graph,
        Schedule(5, 2),
        work=10,
        marks=[1, 2, 4],
        observe=lambda run, work, state: seen.append(work),
    )
    assert seen[0] == 0
    assert seen[-1] == result.work >= 10
    assert len(seen) == 5
    assert all(work >= mark for work, mark in zip(seen[1:4], (1, 2, 4), strict=True))


def test_picard_is_the_reference_of_the_synchronous_simulation() -> None:
    graph = random_graph(30, 120)
    model = LinearAverage(2, 1).double()
    context = model.prepare(graph)
    states: list[Tensor] = []
    with torch.no_grad():
        Picard(steps=5).solve(
            lambda state: model.step(state, context),
            model.initial_state(context),
            observe=lambda k, state: states.append(state),
        )
    seen: list[Tensor] = []
    simulate(
        model,
        graph,
        Schedule(),
        work=5,
        marks=range(1, 6),
        observe=lambda r, w, state: seen.append(state.clone()),
    )
    for expected, found in zip(states, seen, strict=True):
        assert torch.equal(expected, found)
