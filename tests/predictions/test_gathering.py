"""IGNN, APPNP and EIGNN: bounds in plain coordinates (Proposition 41 with 32 to 35)."""

import numpy
import pytest
import torch

from sheafdeq.data.graph import Graph
from sheafdeq.models import APPNP, EIGNN, IGNN
from sheafdeq.predictions import attack, certify_predictions, refined
from sheafdeq.predictions.arithmetic import Interval
from sheafdeq.predictions.gathering import gathering_image, plain_leads

KINDS = {
    "IGNN": lambda f: IGNN(f, 3, 4),
    "APPNP": lambda f: APPNP(f, 3, 4),
    "shifted": lambda f: APPNP(f, 3, 4, shift=1.25),
    "positive": lambda f: APPNP(f, 3, 4, shift=1.25),
    "EIGNN": lambda f: EIGNN(f, 3, 4),
    "EIGNN unit": lambda f: EIGNN(f, 3, 4, normalise=True, self_loops=True),
}


def make(kind, seed):
    torch.manual_seed(seed)
    n = 2 + seed % 5
    graph = Graph.build(torch.randn(n, 2).double(), torch.randint(n, (2, 3 * n)))
    model = KINDS[kind](2).double().eval()
    if kind == "positive":  # Thompson's metric: a drive that is not negative
        with torch.no_grad():
            model.alpha = 0.01
            model.encoder[1].weight.abs_()
            model.encoder[1].bias.abs_()
    return model, graph


def exact_step(exact, model, graph):
    """The equations written a second time, in fifty digits."""
    edges = list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    n, loops = graph.num_nodes, not isinstance(model, EIGNN) or model.self_loops
    mpf = exact.mpmath.mpf
    degree = [mpf(sum(t == v for _, t in edges) + loops) for v in range(n)]
    root = [exact.mpmath.sqrt(max(d, mpf(1))) for d in degree]
    x = exact.exact(graph.x)

    def linear(layer, values):
        return values @ exact.exact(layer.weight).T + exact.exact(layer.bias)

    if isinstance(model, APPNP):
        drive = linear(model.encoder[1], exact.relu(linear(model.encoder[0], x)))
    else:
        drive = linear(model.drive, x)
    mixing = exact.exact(model.prepare(graph).mixing) if isinstance(model, EIGNN) else None

    def step(state):
        mean = numpy.zeros_like(state) + mpf(0)
        for s, t in edges:
            mean[t] = mean[t] + state[s] / (root[s] * root[t])
        if loops:
            mean = mean + numpy.array([state[v] / (root[v] * root[v]) for v in range(n)])
        if isinstance(model, EIGNN):
            return mean @ mixing + drive
        if isinstance(model, IGNN):
            return exact.relu(mean @ exact.exact(model.recurrent) + drive)
        alpha = mpf(model.alpha)
        mixed = (1 - alpha) * mean + alpha * drive
        return mixed if model.shift is None else exact.tanh(mixed) + mpf(model.shift)

    return step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_equilibrium_to_fifty_digits_is_inside(exact, kind, seed):
    model, graph = make(kind, seed)
    state = refined(model, graph)
    step = exact_step(exact, model, graph)
    true = exact.exact(state)
    for _ in range(400 if kind == "positive" else 1200):  # plain iteration: a contraction
        image = step(true)
        moved = max(abs(entry) for entry in (image - true).ravel())
        true = image
        if moved < 1e-25:
            break
    assert moved < 1e-20
    for start in (state, state + 1e-6 * torch.rand_like(state)):
        result = certify_predictions(model, graph, state=start)
        assert result.reach is not None
        assert result.coordinates == "plain"
        off = numpy.abs(true - exact.exact(start))
        assert bool((off <= result.reach.numpy()).all())
    assert float((off / result.reach.numpy().clip(1e-300)).max()) > 1e-3  # not far too wide


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_of_a_box_holds_the_step(kind):
    model, graph = make(kind, 3)
    state = refined(model, graph)
    with torch.no_grad():
        context = model.prepare(graph)
        point = gathering_image(model, context, graph, Interval.point(state), 0.0)
        assert point.contains(model.step(state, context))
        assert float(point.radius.max()) < 1e-12
        wide = gathering_image(
            model, context, graph, Interval(state, torch.full_like(state, 0.1)), 0.01
        )
        for _ in range(10):
            moved = graph.with_features(graph.x + 0.01 * torch.randn_like(graph.x).sign())
            other = state + 0.1 * (2 * torch.rand_like(state) - 1)
            assert wide.contains(model.step(other, model.prepare(moved)))
        assert not point.contains(wide.upper)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_within_a_radius_stay(kind):
    model, graph = make(kind, 4)
    for radius in (1e-6, 1e-3, 1e-2):
        result = certify_predictions(model, graph, radius=radius)
        if result.reason is not None:
            assert kind == "positive"
            continue
        found = attack(model, graph, radius, restarts=3, ascents=3)
        assert not bool((found.changed & result.proved).any())
        assert bool((found.surviving[result.proved] >= result.margin[result.proved] - 1e-9).all())
        other = refined(model, graph.with_features(graph.x + radius))
        assert bool(((other - result.state).abs() <= result.reach).all())
    assert "Proposition 41" in certify_predictions(model, graph).grounds
    assert bool(certify_predictions(model, graph).proved.all())


def test_rows_that_are_zero_and_short_rows():
    """A zero row known exactly has the label of the bias; one that may turn round has none."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    bias = torch.tensor([0.1, 0.0]).double()
    state = torch.tensor([[0.0, 0.0], [1e-3, 0.0], [1.0, 0.0]]).double()
    reach = torch.tensor([[0.0, 0.0], [1e-2, 1e-2], [0.1, 0.1]]).double()
    lead = plain_leads(state, reach, weight, bias, unit_rows=True)
    assert float(lead.least[0]) == pytest.approx(0.1)
    assert float(lead.least[1]) == -torch.inf
    # |x/|x| - y/|y|| <= 2 |x - y| / (|x| + |y|), and the worst corner of the box is inside
    worst = torch.tensor([0.9, 0.1]).double()
    worst = worst / worst.norm()
    assert float(lead.least[2]) <= float(worst[0] - worst[1] + 0.1)
    assert float(lead.least[2]) > 0.7
