"""Sheared boxes hold the equilibria of all features within the radius (Theorem 43)."""

import pytest
import torch

from sheafdeq.errors import InputError
from sheafdeq.predictions import Prover, certify_predictions, largest_radius, refined
from sheafdeq.predictions.first_order import _solve, _sums, first_order
from sheafdeq.predictions.sheared import sheared_tower
from sheafdeq.predictions.tower import enclosed_tower


def corners(graph, radius, count):
    """Features on the boundary and inside, a few of each."""
    for trial in range(count):
        noise = 2 * torch.rand(graph.x.shape, dtype=torch.float64) - 1
        shift = radius * (noise.sign() if trial % 2 else noise)
        yield shift, graph.with_features(graph.x + shift)


def beyond_first_order(model, graph, first, shift, other):
    """(n, c) |u(x + dx) - u(x) - G dx| of the last level."""
    top = slice(-model.width, None)
    off = other[:, top].log() - first.state[:, top].log()
    return off, off - first.top.double() @ shift.reshape(-1)


@pytest.mark.parametrize("seed", range(8))
def test_equilibria_of_moved_features_are_inside(draw, seed):
    model, graph = draw(seed, levels=2)
    first = first_order(model, graph, refined(model, graph))
    used = []
    for radius in (1e-6, 1e-4, 1e-3):
        found = sheared_tower(model, graph, first, radius)
        if found.beyond is None:  # honest: a bound that was not found is not claimed
            assert radius > 1e-6
            continue
        for shift, moved in corners(graph, radius, 6):
            off, rest = beyond_first_order(model, graph, first, shift, refined(model, moved))
            assert bool((off.abs() <= found.tower.levels[-1].reach).all())
            assert bool((rest.abs() <= found.beyond).all())
            used.append(float((rest.abs() / found.beyond).max()))
    # Bounds beyond first order that were ten thousand times too small would have been caught.
    assert max(used) > 1e-4


def test_the_first_order_is_the_derivative(draw):
    model, graph = draw(4, levels=3)
    first = first_order(model, graph, refined(model, graph))
    direction = torch.randn_like(graph.x)
    ends = [refined(model, graph.with_features(graph.x + s * 1e-6 * direction)) for s in (1, -1)]
    slope = (ends[0].log() - ends[1].log())[:, -model.width :] / 2e-6
    assert torch.allclose(first.top.double() @ direction.reshape(-1), slope, atol=1e-4, rtol=1e-4)
    for level in first.levels:
        assert bool((level.defect <= 1e-2 * level.total + 1e-4).all())


def test_a_first_order_that_is_wrong_on_purpose_has_a_defect(draw):
    """G is any matrix; what it misses of its equation is counted."""
    model, graph = draw(5, levels=1)
    level = first_order(model, graph, refined(model, graph)).levels[0]
    right = torch.randn(graph.num_nodes, model.width, 7)
    solved = _solve(level.map, right)
    size = right.double().abs().sum(2)
    total, defect = _sums(level.map, solved, right, size)
    solved[0, 0, 3] += 0.1
    _, worse = _sums(level.map, solved, right, size)
    assert float(defect.max()) < 1e-2 * float(total.max())
    assert float(worse[0, 0]) > 0.1 * (1 - model.level_rate)


@pytest.mark.parametrize("seed", [1, 5])
def test_more_is_proved_than_by_boxes(draw, seed):
    model, graph = draw(seed, levels=3)
    state = refined(model, graph)
    first = first_order(model, graph, state)
    for radius in (1e-7, 1e-5):
        boxes = enclosed_tower(model, graph, state, radius)
        sheared = sheared_tower(model, graph, first, radius).tower
        if boxes.reason is None:
            assert sheared.reason is None
            assert float(sheared.levels[-1].reach.max()) < 1.5 * float(boxes.levels[-1].reach.max())
    labels = [
        certify_predictions(model, graph, radius=1e-5, state=state, form=form)
        for form in ("boxes", "sheared")
    ]
    assert int(labels[1].proved.sum()) >= int(labels[0].proved.sum())
    assert "Theorem 43" in labels[1].grounds
    assert bool((labels[1].margin <= labels[1].lead).all())


def test_the_largest_radius_of_every_node(draw):
    model, graph = draw(5, levels=2)
    prover = Prover(model, graph, form="sheared")
    found = largest_radius(prover.at, lowest=1e-7, highest=1.0, factor=3.0)
    assert found.proved[0] == graph.num_nodes
    assert found.proved[-1] < graph.num_nodes
    assert list(found.tried) == sorted(found.tried)
    assert found.to_json()["quartiles"][0] == float(found.radius.min())
    for shift, moved in corners(graph, float(found.radius.min()), 3):
        label = refined(model, moved)
        assert shift.abs().max() <= found.radius.min()
        logits = model.readout(label, model.prepare(moved))
        assert torch.equal(logits.argmax(1), prover.at(0.0).label)
    with pytest.raises(InputError, match="lowest"):
        largest_radius(prover.at, lowest=1.0, highest=0.5)


def test_an_unknown_form_is_named(draw):
    model, graph = draw(5)
    with pytest.raises(InputError, match="unknown form 'round'"):
        certify_predictions(model, graph, form="round")
