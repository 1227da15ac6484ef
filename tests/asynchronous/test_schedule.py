from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import random_graph
from sheafdeq.asynchronous import Channel, Conditions, Recording, Schedule, Slot
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError


def incidence_of(n: int, e: int, seed: int) -> Edges:
    return random_graph(n, e, seed, isolated=False).edges


channels = st.builds(
    Channel,
    loss=st.sampled_from([0.0, 0.3, 0.9]),
    duplication=st.sampled_from([0.0, 0.5]),
    reordering=st.booleans(),
    limit=st.integers(12, 20),
)
schedules = st.builds(
    lambda window, delay, seed, channel, sleep: Schedule(
        window, delay, seed, channel, sleep=0.2 if sleep else 0.0, sleep_slots=sleep
    ),
    st.integers(1, 8),
    st.integers(0, 6),
    st.integers(0, 2**40),
    channels,
    st.sampled_from([0, 3]),
)


@settings(max_examples=60, deadline=None)
@given(schedules, st.integers(1, 12), st.integers(0, 30), st.integers(0, 100))
def test_every_sampled_schedule_is_partially_asynchronous(
    schedule: Schedule, n: int, e: int, seed: int
) -> None:
    incidence = incidence_of(n, e, seed)
    recording = schedule.record(incidence, 40)
    assert recording.check(incidence) == []
    # The same three conditions, written out from the definition on the full tables.
    active = recording.activations()
    for start in range(len(active) - schedule.window + 1):
        assert active[start : start + schedule.window].any(0).all()
    for slot in recording.taken:
        assert slot.own_delay is None
        edges = incidence.edges_into(slot.active)
        assert (slot.delay >= 0).all()
        assert (slot.delay <= min(schedule.delay_bound, slot.time)).all()
        assert (slot.delay[incidence.source[edges] == incidence.target[edges]] == 0).all()


@settings(max_examples=20, deadline=None)
@given(schedules)
def test_a_schedule_is_replayable_data(schedule: Schedule) -> None:
    incidence = incidence_of(6, 15, 3)
    stored = Schedule.from_json(json.loads(json.dumps(schedule.describe())))
    assert stored == schedule
    recording = schedule.record(incidence, 15)
    again = Recording.from_json(json.loads(json.dumps(recording.to_json())))
    for first, second, third in zip(
        recording.taken, stored.record(incidence, 15).taken, again.taken, strict=True
    ):
        for other in (second, third):
            assert torch.equal(first.active, other.active)
            assert torch.equal(first.delay, other.delay)


def test_all_admissible_gaps_and_delays_occur() -> None:
    incidence = incidence_of(50, 200, 0)
    recording = Schedule(4, 3, seed=1).record(incidence, 60)
    active = recording.activations()
    gaps = {int(gap) for node in range(50) for gap in active[:, node].nonzero().flatten().diff()}
    assert gaps == {1, 2, 3, 4}
    delays = torch.cat([slot.delay for slot in recording.taken[3:]])
    counts = torch.bincount(delays, minlength=4).double() / len(delays)
    assert torch.allclose(counts, torch.full((4,), 0.25, dtype=torch.float64), atol=0.03)


def test_seeds_differ() -> None:
    incidence = incidence_of(30, 100, 0)
    first, second = (Schedule(4, 3, seed=seed).record(incidence, 10) for seed in (0, 1))
    assert not torch.equal(first.activations(), second.activations())


def test_loss_makes_messages_older_but_never_than_the_limit() -> None:
    incidence = incidence_of(40, 200, 0)

    def delays(channel: Channel) -> torch.Tensor:
        return torch.cat(
            [slot.delay for slot in Schedule(1, 2, 0, channel).record(incidence, 80).taken[20:]]
        )

    in_order, lossy = delays(Channel(in_order=True)), delays(Channel(loss=0.8, limit=10))
    assert in_order.max() <= 2
    assert lossy.double().mean() > 2 * in_order.double().mean()
    assert 2 < lossy.max() <= 10


def test_an_unnumbered_link_can_go_back_in_time() -> None:
    incidence = incidence_of(10, 60, 0)

    def goes_back(channel: Channel) -> bool:
        taken = Schedule(1, 5, 0, channel).record(incidence, 60).taken
        stamps = torch.stack([slot.time - slot.delay for slot in taken])
        loops = incidence.source == incidence.target
        return bool((stamps.diff(dim=0)[:, ~loops] < 0).any())

    assert goes_back(Channel(reordering=True))
    assert not goes_back(Channel(in_order=True))
    assert not goes_back(Channel(duplication=0.5))


# ---------------------------------------------------------------------- deliberately broken
# schedules


def break_slot(recording: Recording, time: int, **changes: object) -> Recording:
    taken = list(recording.taken)
    taken[time] = replace(taken[time], **changes)  # type: ignore[arg-type]
    return replace(recording, taken=tuple(taken))


def conditions_broken(recording: Recording, incidence: Edges) -> set[int]:
    return {violation.condition for violation in recording.check(incidence)}


def test_the_checker_rejects_broken_schedules() -> None:
    incidence = incidence_of(8, 30, 1)
    good = Schedule(3, 2, seed=0).record(incidence, 30)
    assert conditions_broken(good, incidence) == set()
    slot = good.taken[10]
    late = slot.delay.clone()
    late[0] = 3
    assert conditions_broken(break_slot(good, 10, delay=late), incidence) >= {2}
    from_the_future = slot.delay.clone()
    from_the_future[0] = -1
    assert conditions_broken(break_slot(good, 10, delay=from_the_future), incidence) >= {2}
    stale_self = torch.zeros_like(slot.active)
    stale_self[0] = 1
    assert conditions_broken(break_slot(good, 10, own_delay=stale_self), incidence) == {3}
    # Node 0 never updates: silence in the middle and silence until the end are both found.
    silent = replace(good, taken=tuple(_without_node(slot, 0, incidence) for slot in good.taken))
    assert conditions_broken(silent, incidence) == {1}
    pause = replace(
        good,
        taken=tuple(_without_node(s, 0, incidence) if 5 <= s.time < 12 else s for s in good.taken),
    )
    assert conditions_broken(pause, incidence) == {1}


def _without_node(slot: Slot, node: int, incidence: Edges) -> Slot:
    keep = slot.active != node
    edges = incidence.edges_into(slot.active)
    return replace(
        slot, active=slot.active[keep], delay=slot.delay[incidence.target[edges] != node]
    )


def test_a_stale_self_loop_is_a_stale_own_state() -> None:
    incidence = Graph.build(torch.zeros(1, 1), torch.tensor([[0], [0]])).edges
    conditions = Conditions(incidence, 1, 1)
    conditions.see(Slot(0, torch.tensor([0]), torch.tensor([0])))
    conditions.see(Slot(1, torch.tensor([0]), torch.tensor([1])))
    assert [violation.condition for violation in conditions.finish()] == [3]


@pytest.mark.parametrize(
    "options",
    [
        {"update_window": 0},
        {"max_delay": -1},
        {"max_delay": 1.5},
        {"seed": -1},
        {"sleep": 0.5},
        {"sleep_slots": 3},
        {"sleep": 1.0, "sleep_slots": 1},
    ],
)
def test_wrong_parameters_are_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Schedule(**options)  # type: ignore[arg-type]


def test_wrong_channels_are_named() -> None:
    with pytest.raises(InputError, match="loss"):
        Channel(loss=1.0)
    with pytest.raises(InputError, match="limit 3 is below"):
        Schedule(1, 4, 0, Channel(loss=0.1, limit=3)).delay_bound  # noqa: B018
    with pytest.raises(InputError, match="no entry colour"):
        Schedule.from_json({"colour": 1})
