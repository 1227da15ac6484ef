"""Autocast around a model, and derivatives of derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sheafdeq import Graph, SheafCascade, SheafDEQ, multistart
from sheafdeq.errors import DerivativeError, InputError
from sheafdeq.ops import native_available, use_kernel
from sheafdeq.registry import COMMUNITY, MODELS, build_model

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 5], [1, 0, 2, 3, 2, 3, 4, 0]])
KERNELS = ["reference", *(["native"] if native_available() else [])]


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_leaves_autocast_at_its_door(name: str, kernel: str) -> None:
    torch.manual_seed(1)
    model = build_model(name, COMMUNITY).eval()
    with use_kernel(kernel):
        model(X, EDGES).sum().backward()
        plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        expected = model(X, EDGES)
        model.zero_grad()
        with autocast():
            outputs, solution = model(X, EDGES, return_info=True)
        outputs.sum().backward()
    assert outputs.dtype == torch.float32
    assert torch.equal(outputs, expected)
    assert solution is None or solution.value.dtype == torch.float32
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_layers_around_it_stay_in_autocast(gradient: str) -> None:
    torch.manual_seed(0)
    before, model, after = nn.Linear(2, 4), SheafDEQ(4, 8, gradient=gradient), nn.Linear(8, 3)
    with autocast():
        hidden = before(X)
        assert hidden.dtype == torch.bfloat16
        states, solution = model(hidden, EDGES, return_info=True, steps=200)
        assert states.dtype == torch.float32
        assert solution.residual < 1e-4
        outputs = after(states)
        assert outputs.dtype == torch.bfloat16
        outputs.float().sum().backward()  # inside the region, as many loops have it
    assert solution.backward is None or solution.backward.converged
    for parameter in (*before.parameters(), *model.parameters()):
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())


def test_outside_autocast_half_precision_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="float32 or float64"):
        SheafDEQ(2, 3)(X.bfloat16(), EDGES)


def test_studies_leave_autocast_too() -> None:
    torch.manual_seed(0)
    model, graph = SheafCascade(2, 3, 2, 2, levels=2), Graph.build(X, EDGES)
    with autocast():
        study = multistart(model, graph, iterations=40)
    assert study.agreement.agree
    assert all(trajectory.end.state.dtype == torch.float32 for trajectory in study.trajectories)


@pytest.mark.parametrize(
    "model",
    [
        lambda: SheafDEQ(2, 2, 2, 2, steps=3),
        lambda: SheafDEQ(2, 2, 2, 2, steps=3, pre_norm=False),
        lambda: SheafCascade(2, 2, 2, 2, levels=2, level_steps=2, hidden=3, edge_hidden=3),
    ],
)
def test_second_derivatives_by_the_reference_path(model) -> None:
    torch.manual_seed(0)
    made = model().double()
    x = X[:4].double().requires_grad_()
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 1, 2]])
    with use_kernel("reference"):
        assert torch.autograd.gradcheck(lambda x: made(x, edges), x)
        assert torch.autograd.gradgradcheck(lambda x: made(x, edges), x)


@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_a_second_derivative_that_is_not_written_is_refused(gradient: str) -> None:
    if gradient == "unrolled" and not native_available():
        pytest.skip("the native kernel is not built")
    torch.manual_seed(0)
    model = SheafDEQ(2, 2, 2, 2, gradient=gradient)
    x = X.clone().requires_grad_()
    # the incoming gradient is constant: torch's own check stays silent here
    (slope,) = torch.autograd.grad(model(x, EDGES, steps=200).sum(), x, create_graph=True)
    penalty = slope.square().sum() + x.square().sum()
    with pytest.raises(DerivativeError, match="reference"):
        penalty.backward()


def test_a_gradient_penalty_trains_by_the_reference_path() -> None:
    torch.manual_seed(0)
    model = SheafDEQ(2, 2, 2, 2, steps=5)
    x = X.clone().requires_grad_()
    with use_kernel("reference"):
        (slope,) = torch.autograd.grad(model(x, EDGES).sum(), x, create_graph=True)
        slope.square().sum().backward()
    assert model.stalk_mixing.grad is not None
    assert float(model.stalk_mixing.grad.abs().sum()) > 0
