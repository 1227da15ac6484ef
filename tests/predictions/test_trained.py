"""Trained cascades: shares proved, late messages, attacks. Minutes each, except the first.

Run with ``pytest -m slow tests/predictions``; with SHEAFDEQ_COUNTS=PATH the counts are written.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from sheafdeq.asynchronous import Schedule, simulate_many
from sheafdeq.data.catalogue import load_task
from sheafdeq.predictions import attack, certify_predictions
from sheafdeq.training.checkpoint import load_model

RUNS = Path(__file__).parents[2] / "results" / "runs"
LEVELS = {7: "aa5b95ed", 10: "d0138f6a"}


def trained(level):
    found = sorted(RUNS.glob(f"{LEVELS[level]}*"))
    if not found:
        pytest.skip(f"run {LEVELS[level]} is not among the results")
    return load_model(found[0]).eval()


def community(level, nodes):
    """A test graph of the benchmark with fewer nodes, its labels known."""
    task = load_task("community", level=level, nodes=nodes, train_seeds=[1], test_seeds=[100])
    return task.splits["test"]


def write(name, counts):
    if place := os.environ.get("SHEAFDEQ_COUNTS"):
        Path(f"{place}-{name}.json").write_text(json.dumps(counts, indent=1) + "\n")


@pytest.mark.parametrize("level", LEVELS)
def test_a_trained_cascade_on_a_small_graph(level):
    split = community(level, 45)
    result = certify_predictions(trained(level), split.graph)
    assert bool(result.proved.all())
    assert float(result.distance.max()) < 1e-2
    assert len(result.levels) == 8
    # the couplings that a product of norms would waste everything on
    assert all(row["rate"] < 0.9 and row["gain"] < 60 for row in result.levels)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_98_percent_of_the_test_nodes_are_proved(level):
    split = load_task("community", level=level).splits["test"]
    result = certify_predictions(trained(level), split.graph)
    scores = result.scores(split.target, split.mask)
    assert scores.share >= 0.98
    assert scores.nodes == 4500


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_twenty_restarts_change_no_proved_label(level):
    model, split = trained(level), community(level, 300)
    for radius in (1e-9, 3e-9):
        result = certify_predictions(model, split.graph, radius=radius)
        found = attack(model, split.graph, radius, restarts=20, ascents=6, horizon=16)
        assert not bool((found.changed & result.proved).any())
        write(
            f"attack-{level}-{radius:g}",
            {"proved": int(result.proved.sum()), "changed": int(found.changed.sum())},
        )


@pytest.mark.slow
def test_two_hundred_schedules_with_delays_up_to_64(draw):
    """Small random cascades: ten of them, twenty schedules each."""
    total = differing = 0
    for seed in range(30, 40):
        model, graph = draw(seed)
        result = certify_predictions(model, graph)
        generator = torch.Generator().manual_seed(seed)
        schedules = [
            Schedule(
                int(torch.randint(1, 9, (1,), generator=generator)),
                int(torch.randint(0, 65, (1,), generator=generator)) if number else 64,
                seed=number,
            )
            for number in range(20)
        ]
        for run in simulate_many(model, graph, schedules, work=300):
            label = model.readout(run.state, model.prepare(graph)).argmax(1)
            total += 1
            differing += int((label != result.label)[result.proved].sum())
    write("schedules", {"schedules": total, "longest delay": 64, "labels differing": differing})
    assert total == 200
    assert differing == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_late_messages_reach_the_proved_labels_of_a_trained_cascade(level):
    model, split = trained(level).double(), community(level, 45)
    graph = split.graph.to(torch.float64)
    result = certify_predictions(model, graph)
    schedules = [Schedule(4, delay, seed=delay) for delay in (8, 64)]
    for run in simulate_many(model, graph, schedules, work=400):
        label = model.readout(run.state, model.prepare(graph)).argmax(1)
        assert torch.equal(label[result.proved], result.label[result.proved])
