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
from sheafdeq.predictions import (
    Prover,
    attack,
    certify_predictions,
    largest_radius,
    under_schedules,
)
from sheafdeq.predictions.prove import FORMS
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
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
def test_two_hundred_schedules_reach_the_proved_labels_of_a_trained_cascade(level):
    """On a graph of the benchmark with fewer nodes; windows and delays up to 64."""
    model, split = trained(level), community(level, 90)
    result = certify_predictions(model, split.graph)
    found = under_schedules(model, split.graph, result, count=200, longest=64)
    write(f"schedules-{level}", {"run": LEVELS[level], "level": level, **found.to_json()})
    assert found.proved >= 0.98 * found.nodes
    assert found.differing == 0
    assert found.largest_residual < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
def test_the_curve_of_sheared_boxes_has_no_gap_and_no_proved_label_falls(level):
    """Share proved by both forms and accuracy under attack, every half decade, 300 nodes."""
    model, split = trained(level), community(level, 300)
    boxes, sheared = (Prover(model, split.graph, form=form) for form in FORMS)
    rows = []
    for exponent in range(-18, -2):
        radius = float(f"{10 ** (exponent / 2):.1e}")
        by_boxes = boxes.at(radius).proved if radius < 1e-7 else torch.zeros(300).bool()
        result = sheared.at(radius)
        proved = by_boxes | result.proved
        found = attack(
            model,
            split.graph,
            radius,
            restarts=20,
            ascents=4,
            horizon=16,
            groups=3 if proved.any() else None,
        )
        rows.append(
            {
                "radius": radius,
                "nodes": 300,
                "proved by boxes": int(by_boxes.sum()),
                "proved sheared": int(result.proved.sum()),
                "right": int((result.label == split.target).sum()),
                "proved and right": int((proved & (result.label == split.target)).sum()),
                "right under attack": found.accuracy(split.target),
                "labels changed": int(found.changed.sum()),
                "proved labels changed": int((found.changed & proved).sum()),
            }
        )
        write(f"curve-{level}", {"run": LEVELS[level], "restarts": 20, "curve": rows})
        assert rows[-1]["proved labels changed"] == 0
    best = largest_radius(sheared.at, lowest=1e-8, highest=1e-4, factor=1.3).to_json()
    write(f"curve-{level}", {"run": LEVELS[level], "restarts": 20, "curve": rows, "largest": best})
    assert rows[0]["proved by boxes"] == 300
    assert max(row["radius"] for row in rows if row["proved sheared"] > 150) >= 9e-7
