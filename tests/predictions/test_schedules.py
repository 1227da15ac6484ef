"""Drawn schedules against proved labels, and who an attack is after."""

from dataclasses import replace

import pytest
import torch

from sheafdeq.errors import InputError
from sheafdeq.predictions import attack, certify_predictions, drawn_schedules, under_schedules
from sheafdeq.predictions.attack import _targets


def test_schedules_reach_the_proved_labels_and_a_wrong_claim_is_caught(draw):
    model, graph = draw(5, levels=2)
    result = certify_predictions(model, graph)
    found = under_schedules(model, graph, result, drawn_schedules(3, 16))
    assert found.differing == found.differing_unproved == 0
    assert found.schedules == 3
    assert found.largest_residual < 1e-4
    wrong = replace(result, label=(result.label + 1) % model.out_channels)
    assert under_schedules(model, graph, wrong, drawn_schedules(1, 16)).differing == graph.num_nodes
    unproved = replace(wrong, proved=torch.zeros_like(result.proved))
    found = under_schedules(model, graph, unproved, drawn_schedules(1, 16))
    assert (found.differing, found.differing_unproved) == (0, graph.num_nodes)
    assert found.to_json()["longest_delay"] == 16


def test_schedules_are_drawn_within_their_bounds_and_all_differ():
    schedules = drawn_schedules(60, 64, seed=1)
    assert (schedules[0].window, schedules[0].delay_bound) == (64, 64)
    assert all(8 <= s.window <= 64 and 0 <= s.delay_bound <= 64 for s in schedules)
    assert len({s.delay_bound for s in schedules}) > 20
    assert {s.seed for s in schedules}.isdisjoint({s.seed for s in drawn_schedules(60, 64, seed=2)})
    for count, longest in ((0, 64), (5, 4)):
        with pytest.raises(InputError, match="at least one schedule"):
            drawn_schedules(count, longest)


def test_groups_are_after_every_node_in_every_restart(draw):
    generator = torch.Generator().manual_seed(0)
    masks = list(_targets(10, 3, 4, generator))
    assert len(masks) == 12
    for restart in range(3):
        total = torch.stack(masks[4 * restart : 4 * restart + 4]).long().sum(0)
        assert torch.equal(total, torch.ones(10).long())
    single = list(_targets(10, 3, None, generator))
    assert bool(single[0].all())
    model, graph = draw(8, levels=2)
    found = attack(model, graph, 5.0, restarts=1, ascents=4, groups=graph.num_nodes)
    assert bool(found.changed.any())
