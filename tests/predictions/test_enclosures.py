"""The pieces of an enclosure against derivatives by autograd and against samples."""

import itertools

import pytest
import torch
from torch import nn

from sheafdeq.layers.gates import gate_by_name
from sheafdeq.predictions.arithmetic import Interval, Slope, contract, rows_scaled
from sheafdeq.predictions.below import Box
from sheafdeq.predictions.gate_ranges import gate_range
from sheafdeq.predictions.inputs import cascade_inputs
from sheafdeq.predictions.layer_norm import normalised_rows
from sheafdeq.predictions.level import LevelEnclosure


def test_a_contraction_contains_every_product_of_members():
    a = Interval(torch.randn(4, 3, 2).double(), torch.rand(4, 3, 2).double())
    b = Interval(torch.randn(4, 2, 5).double(), torch.rand(4, 2, 5).double())
    product = contract("kij,kjl->kil", a, b)
    for _ in range(50):
        left = a.midpoint + a.radius * (2 * torch.rand_like(a.radius) - 1)
        right = b.midpoint + b.radius * (2 * torch.rand_like(b.radius) - 1)
        assert product.contains(left @ right)
    assert not product.contains(product.upper + 1e-6)


def test_scaled_rows_keep_what_a_slope_promises():
    weights = torch.rand(3, 4).double()
    slope = Slope.of(Interval(torch.randn(3, 2, 4).double(), torch.rand(3, 2, 4).double()), weights)
    factor = Interval(torch.randn(3, 2).double(), torch.rand(3, 2).double())
    scaled = rows_scaled(slope, factor)
    for _ in range(50):
        sign = torch.sign(torch.randn(3, 2, 4).double())
        member = slope.midpoint + slope.spread.unsqueeze(2) * sign / weights.unsqueeze(1) / 4
        number = factor.midpoint + factor.radius * (2 * torch.rand(3, 2).double() - 1)
        off = ((member * number.unsqueeze(2) - scaled.midpoint).abs() * weights.unsqueeze(1)).sum(2)
        assert bool((off <= scaled.spread).all())


def test_layer_norm_contains_values_and_derivatives():
    norm = nn.LayerNorm(5).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    centre = torch.randn(7, 5).double()
    radius = 0.05 * torch.rand(7, 5).double()
    rows = normalised_rows(Interval.point(centre), radius, norm)
    assert rows.centre.contains(norm(centre).detach())
    for _ in range(30):
        x = centre + radius * (2 * torch.rand_like(radius) - 1)
        jacobian = torch.autograd.functional.jacobian(lambda v: norm(v).sum(0), x)
        assert rows.jacobian.contains(jacobian.permute(1, 0, 2))
    point = normalised_rows(Interval.point(centre), torch.zeros_like(centre), norm)
    assert float(point.jacobian.radius.max()) < 1e-12


def test_layer_norm_refuses_a_box_as_wide_as_its_rows():
    norm = nn.LayerNorm(3).double()
    with pytest.raises(ArithmeticError, match="wider"):
        normalised_rows(Interval.point(torch.ones(1, 3).double()), torch.ones(1, 3).double(), norm)
    huge = torch.full((1, 3), 2.0**41).double()
    with pytest.raises(ArithmeticError, match="rescaled"):
        normalised_rows(Interval.point(huge), torch.zeros(1, 3).double(), norm)


@pytest.mark.parametrize("name", ["balance", "rational", "tanh"])
def test_a_gate_and_its_slopes_stay_in_their_ranges(name):
    gate = gate_by_name(name)
    low = torch.rand(200).double() * torch.tensor([0.0, 1e-3, 1.0, 30.0]).double().repeat(50)
    other = torch.rand(200).double() * torch.tensor([1.0, 1e-2, 1.0, 3.0]).double().repeat(50)
    a = Interval.between(low, low + torch.rand(200).double())
    b = Interval.between(other, other + torch.rand(200).double())
    ranges = gate_range(name, gate.floor, a, b)
    tight = [torch.full((200,), -torch.inf), torch.full((200,), -torch.inf)]
    for s, t in itertools.product(torch.linspace(0, 1, 9).double(), repeat=2):
        plus = (a.lower + s * (a.upper - a.lower)).clamp(min=0).requires_grad_()
        minus = (b.lower + t * (b.upper - b.lower)).clamp(min=0).requires_grad_()
        value = gate.of_parts(plus, minus)
        by_plus, by_minus = torch.autograd.grad(value.sum(), (plus, minus))
        if name == "tanh":  # 1 - tanh^2, as autograd has it, cancels where tanh is near one
            by_plus, by_minus = plus.detach().cosh() ** -2.0, -(minus.detach().cosh() ** -2.0)
        assert ranges.value.contains(value.detach())
        assert ranges.by_plus.contains(by_plus)
        assert ranges.by_minus.contains(-by_minus)
        tight = [torch.maximum(x, y) for x, y in zip(tight, (by_plus, -by_minus), strict=True)]
    assert float((ranges.by_plus.upper / tight[0]).max()) < 1.3  # the grid nearly reaches the end


def test_an_unknown_gate_is_refused():
    with pytest.raises(ArithmeticError, match="no enclosure of the gate"):
        gate_range("mine", 0.0, *(Interval.point(torch.ones(1).double()),) * 2)


def jacobians(model, graph, state, level):
    """d log T / d (own log states), by (log states below), by (features): dense, by autograd."""
    c = model.width
    own = state[:, level * c : (level + 1) * c].log()
    below = state[:, (level - 1) * c : level * c].log() if level else None

    def image(own, below, x):
        context = model.prepare(graph.with_features(x))
        sheaf = model.sheaf(level, None if below is None else below.exp(), context)
        return model.level_map(level, sheaf, context)(own.exp()).log()

    if below is None:
        inputs = (own, graph.x)
        return torch.autograd.functional.jacobian(lambda h, x: image(h, None, x), inputs)
    return torch.autograd.functional.jacobian(image, (own, below, graph.x))


@pytest.mark.parametrize("seed", range(12))
def test_the_slopes_of_a_level_are_those_of_autograd(draw, seed):
    """On a tiny box the bound is |J| times the reach, to two digits: neither less nor more."""
    model, graph = draw(seed)
    state = torch.rand(graph.num_nodes, model.levels * model.width).double() + 0.7
    reach = 1e-8 * (0.2 + torch.rand(graph.num_nodes, model.width).double())
    inputs = cascade_inputs(model, graph, 1e-8)
    c = model.width
    for level in range(model.levels):
        enclosure = LevelEnclosure(model, graph, level, inputs)
        dense = [j.abs().flatten(2) for j in jacobians(model, graph, state, level)]
        with torch.no_grad():
            box = Box.around(state[:, level * c : (level + 1) * c].contiguous(), reach)
            if level:
                lower = state[:, (level - 1) * c : level * c].contiguous()
                below = enclosure.reading.above(Box.around(lower, reach), reach)
            else:
                below = enclosure.reading.first(graph.num_nodes)
            rows = enclosure.rows(below, box, 0, graph.num_nodes)
            context = model.prepare(graph)
            sheaf = model.sheaf(
                level, state[:, (level - 1) * c : level * c] if level else None, context
            )
            image = model.level_map(level, sheaf, context)(box.centre)
        assert rows.image.contains(image)
        assert float((rows.image.radius / image).max()) < 1e-10
        expected = dense[-1] @ torch.full((graph.x.numel(),), 1e-8).double()
        if level:
            expected = expected + dense[1] @ reach.flatten()
        assert bool((rows.coupling >= expected * (1 - 1e-6)).all())
        # parallel edges and loops are bounded one by one, so only simple graphs are tight
        simple = len({*zip(graph.source.tolist(), graph.target.tolist(), strict=True)})
        loops = bool((graph.source == graph.target).any())
        if simple == graph.num_edges and not loops:
            slack = 1e-5 * float(expected.max()) + 1e-14
            assert bool((rows.coupling <= expected * (1 + 1e-2) + slack).all())
