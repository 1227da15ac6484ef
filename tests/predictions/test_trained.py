"""Trained cascades: shares proved, late messages, attacks. Minutes each, except the first.

Run with ``pytest -m slow tests/predictions``; with SHEAFDEQ_COUNTS=PATH the counts are written.
"""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from sheafdeq.asynchronous import Schedule, simulate_many
from sheafdeq.data.catalogue import load_task
from sheafdeq.predictions import (
    Prover,
    attack,
    certify_predictions,
    drawn_schedules,
    largest_radius,
    under_schedules,
)
from sheafdeq.predictions.lead import leads
from sheafdeq.predictions.prove import FORMS, refined
from sheafdeq.predictions.together import steps_together
from sheafdeq.training.checkpoint import load_model

RUNS = Path(__file__).parents[2] / "results" / "runs"
LEVELS = {7: "aa5b95ed", 10: "d0138f6a"}
RADII = (1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)


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
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("level", LEVELS)
def test_two_hundred_schedules_reach_the_proved_labels_of_a_trained_cascade(level, part):
    """Ten times 20, on a graph of the benchmark with 45 nodes; windows and delays up to 64."""
    model, split = trained(level), community(level, 45)
    result = certify_predictions(model, split.graph)
    found = under_schedules(model, split.graph, result, drawn_schedules(20, 64, part))
    counts = {"run": LEVELS[level], "level": level, "part": part, **found.to_json()}
    write(f"schedules-{level}-{part}", counts)
    assert found.proved >= 0.98 * found.nodes
    assert found.differing == 0
    assert found.largest_residual < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("radius", RADII)
def test_no_attack_changes_a_label_that_is_proved(level, radius):
    """90 nodes: share proved by both forms, and what gradient ascent leaves right."""
    model, split = trained(level), community(level, 90)
    proved = {form: Prover(model, split.graph, form=form).at(radius).proved for form in FORMS}
    either = proved["boxes"] | proved["sheared"]
    options = {"restarts": 20, "ascents": 4, "horizon": 16, "groups": 3 if either.any() else 1}
    found = attack(model, split.graph, radius, **options)
    right = found.label == split.target
    write(
        f"curve-{level}-{radius:g}",
        {
            "run": LEVELS[level],
            "level": level,
            "radius": radius,
            "nodes": 90,
            "right": int(right.sum()),
            "proved by boxes": int(proved["boxes"].sum()),
            "proved sheared": int(proved["sheared"].sum()),
            "proved and right": int((either & right).sum()),
            "attack": options,
            "right under attack": int((right & ~found.changed).sum()),
            "labels changed": int(found.changed.sum()),
            "proved labels changed": int((found.changed & either).sum()),
        },
    )
    assert not bool((found.changed & either).any())


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_radius_of_every_node_of_a_trained_cascade(level):
    """90 nodes, radii a factor of 1.5 apart or less."""
    prover = Prover(trained(level), community(level, 90).graph, form="sheared")
    found = largest_radius(prover.at, lowest=1e-7, highest=1e-5)
    write(f"largest-{level}", {"run": LEVELS[level], "nodes": 90, **found.to_json()})
    assert float(found.radius.median()) > 3e-7


SETTLING = (("pilots", "7bcd83e1", 7), ("pilots", "facab846", 7), ("pilots", "3057b529", 7))
SETTLING += (("runs", "5a5f7022", 5), ("runs", "86c76a63", 3))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("store", "run", "level"), SETTLING)
@pytest.mark.parametrize("nodes", [45, 150, 300])
def test_several_steps_together_prove_a_sheaf_deq_taught_to_settle(store, run, level, nodes):
    """Theorem 42 on smaller graphs of the benchmark: 2,160 to 14,400 entries."""
    model = load_model(next((RUNS.parent / store).glob(f"{run}*"))).double().eval()
    split = community(level, nodes)
    graph = split.graph.to(torch.float64)
    state = refined(model, graph)
    started = time.process_time()
    found = steps_together(model, model.prepare(graph), state)
    seconds = time.process_time() - started
    reach = torch.full_like(state, torch.inf) if found.reach is None else found.reach
    proved = torch.zeros(nodes, dtype=torch.bool)
    if found.reach is not None:
        readout = model.readout
        proved = leads(state, reach, readout.weight.detach(), readout.bias.detach(), None).least > 0
    label = model.readout(state, None).argmax(1)
    write(
        f"together-{run}-{nodes}",
        {
            "run": run,
            "level": level,
            "nodes": nodes,
            "entries": state.numel(),
            "reason": found.reason,
            "steps": found.steps,
            "rate": found.rate,
            "factor": found.factor,
            "distance": float(reach.max()) if found.reach is not None else None,
            "proved": int(proved.sum()),
            "right": int((label == split.target).sum()),
            "processor seconds": round(seconds, 1),
        },
    )
    if found.reach is None:
        assert found.reason
        assert nodes > 45
        return
    assert bool(proved.all()) or nodes > 45
    assert found.rate < 1
    # synchronous iteration from the rim of the ball ends within the bound, with the proved labels
    side = torch.ones_like(state)
    side[::2] = -1
    near = state * (0.9 * found.radius / found.factor * side).exp()
    with torch.no_grad():
        for _ in range(2000):
            near = model.step(near, model.prepare(graph))
    assert bool(((near.log() - state.log()).abs() <= 2 * reach + 1e-12).all())
    reached = model.readout(near, None).argmax(1)
    assert torch.equal(reached[proved], label[proved])
