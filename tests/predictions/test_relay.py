"""SheafRelay: labels from the rate of Theorem 38."""

from fractions import Fraction

import pytest
import torch

from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafRelay
from sheafdeq.predictions import certify_predictions, refined
from sheafdeq.predictions.relay import relay_image


def make(seed):
    torch.manual_seed(seed)
    ring = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 4]])
    graph = Graph.build(torch.randn(5, 2).double(), torch.cat([ring, ring.flip(0)], 1))
    return SheafRelay(2, 3, 2, 1, hidden=4).double().eval(), graph


@pytest.mark.parametrize("seed", range(4))
def test_the_exact_equilibrium_is_inside(seed):
    """The step is affine: rational arithmetic solves it to any precision by iteration."""
    model, graph = make(seed)
    with torch.no_grad():
        context = model.prepare(graph)
        state = refined(model, graph)
    offset = 1e-7 * torch.rand_like(state)
    used = 0.0
    for start in (state, state + offset):
        result = certify_predictions(model, graph, state=start)
        assert result.reach is not None
        assert result.coordinates == "plain"
        assert result.delays
        # Plain iteration in float64 ends at the equilibrium up to rounding.
        with torch.no_grad():
            near = start
            for _ in range(3000):
                near = model.step(near, context)
        off = (near - start).abs()
        assert bool((off <= result.reach + 1e-13).all())
        used = max(used, float((off / result.reach.clamp(min=1e-300)).max()))
    assert used > 1e-3
    label = model.readout(near, context).argmax(1)
    assert torch.equal(result.label[result.proved], label[result.proved])


def test_the_image_is_the_step_without_rounding():
    model, graph = make(1)
    with torch.no_grad():
        context = model.prepare(graph)
        state = torch.randn_like(model.initial_state(context))
        image = relay_image(model, context, state)
        assert image.contains(model.step(state, context))
    # one message in rational numbers
    edge = 0
    source, target = int(context.edges.source[edge]), int(context.edges.target[edge])
    slots, c = context.slots, model.width
    heard = [Fraction(h) for h in context.heard[edge].tolist()]
    rows = state[source].view(slots, c).tolist()
    total = [
        sum(h * Fraction(row[j]) for h, row in zip(heard, rows, strict=True)) for j in range(c)
    ]
    value = sum(
        Fraction(f) * t for f, t in zip(context.transport[edge][0].tolist(), total, strict=True)
    )
    value += Fraction(float(context.origin[edge, 0]))
    place = int(context.slot[edge]) * c
    low, high = float(image.lower[target, place]), float(image.upper[target, place])
    assert Fraction(low) <= value <= Fraction(high)
    assert high - low < 1e-13


def test_a_radius_is_refused():
    model, graph = make(0)
    result = certify_predictions(model, graph, radius=1e-3)
    assert "stored features" in result.reason
