"""Enclosures of the sheaf step contain what the step does, and shrink to the Jacobian itself."""

import pytest
import torch

from graphs import random_graph
from sheafdeq.certificates.jacobian import jacobian, log_jacobian
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ


def problem(seed: int, order: float = 2, pre_norm: bool = True, edge_dim: int | None = None):
    torch.manual_seed(seed)
    graph = random_graph(6, 16, seed, edge_dim=edge_dim or 0, isolated=False)
    model = (
        SheafDEQ(2, 3, 2, 3, pre_norm=pre_norm, norm_order=order, edge_dim=edge_dim).double().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        context = model.prepare(graph)
        state = model.run(graph, steps=60).solution.value
    return model, context, state


@pytest.mark.parametrize(
    ("order", "pre_norm", "edge_dim"),
    [(2, True, None), (1, True, 2), (3, True, None), (torch.inf, True, None), (2, False, None)],
)
def test_the_step_and_its_slopes_stay_inside(order, pre_norm, edge_dim):
    model, context, state = problem(7, order, pre_norm, edge_dim)
    enclosure = SheafEnclosure(model, context, edges_at_once=5)
    centre, weights = state.log(), torch.rand_like(state) + 0.5
    generator = torch.Generator().manual_seed(0)
    for radius in (0.0, 1e-6, 1e-2, 0.2):
        enclosed = enclosure.over(centre, weights, radius, keep_slopes=True)
        values = enclosure.image(centre, radius * weights)
        for _ in range(6):
            where = 2 * torch.rand(state.shape, generator=generator, dtype=torch.float64) - 1
            u = centre + radius * weights * where
            with torch.no_grad():
                image = model.step(u.exp(), context)
            assert enclosed.image.contains(image)
            assert values.contains(image)
            rows = log_jacobian(model, u.exp(), context).magnitude().apply(weights) / weights
            assert bool((rows <= enclosed.rates * (1 + 1e-9)).all())
            slope = (1 - (image - model.shift - context.drive).square()).clamp(min=1e-300)
            assert bool((slope / image <= enclosed.gain.upper * (1 + 1e-12)).all())
            difference = jacobian(model, u.exp(), context).scale(slope.reciprocal(), u.exp())
            gaps = type(difference)(
                difference.edges,
                (difference.own - enclosed.slopes.own).abs(),
                (difference.edge - enclosed.slopes.edge).abs(),
            )
            assert bool((gaps.apply(weights) <= enclosed.spread * (1 + 1e-9) + 1e-7).all())


def test_at_a_point_the_enclosure_is_the_jacobian():
    model, context, state = problem(3)
    ones = torch.ones_like(state)
    rate = SheafEnclosure(model, context).over(state.log(), ones).rate
    exact = float(log_jacobian(model, state, context).magnitude().apply(ones).max())
    assert exact <= rate * (1 + 1e-10)
    assert rate <= exact * (1 + 1e-7)


def test_larger_boxes_have_larger_rates():
    model, context, state = problem(5)
    enclosure, ones = SheafEnclosure(model, context), torch.ones_like(state)
    rates = [
        enclosure.over(state.log(), ones, radius).rate for radius in (0.0, 1e-5, 1e-3, 1e-2, 1e-1)
    ]
    assert rates == sorted(rates)


def test_every_image_lies_in_the_invariant_box():
    model, context, state = problem(11)
    centre, width = SheafEnclosure(model, context).invariant_box()
    for scale in (1e-3, 1.0, 1e3):
        with torch.no_grad():
            image = model.step(scale * torch.rand_like(state), context)
        assert bool(((image.log() - centre).abs() <= width * (1 + 1e-12)).all())


def test_a_map_that_may_vanish_has_no_rate():
    model, context, state = problem(2)
    with torch.no_grad():
        for parameter in model.source_maps.parameters():
            parameter.mul_(1e-13)
        model.source_maps[2].bias.fill_(0.5e-12)  # norm 1e-12: on the edge between a map and none
    enclosed = SheafEnclosure(model, context).over(state.log(), torch.ones_like(state), 0.1)
    assert enclosed.rate == float("inf")


def test_single_precision_is_refused():
    model, context, _ = problem(2)
    model = model.float()
    with pytest.raises(InputError, match="float64"):
        SheafEnclosure(model, type(context)(context.edges, context.drive.float()))
