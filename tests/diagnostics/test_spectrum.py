from __future__ import annotations

import pytest
import torch

from graphs import random_graph
from sheafdeq.data.graph import Graph
from sheafdeq.diagnostics import spectral_radius
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, two_node_graph


@pytest.mark.parametrize("n", [8, 60])  # formed in full, and by Arnoldi
def test_against_the_dense_jacobian(n: int) -> None:
    graph = random_graph(n, 3 * n, undirected=True)
    model = SheafDEQ(2, 3, 2, 4).double()
    state = model.run(graph, steps=40).solution.value.detach()  # type: ignore[union-attr]
    context = model.prepare(graph)
    jacobian = torch.autograd.functional.jacobian(lambda h: model.step(h, context), state).reshape(
        state.numel(), -1
    )
    expected = torch.linalg.eigvals(jacobian).abs().max().item()
    found = spectral_radius(model, graph, state, tolerance=1e-8)
    assert found.converged
    assert found.method == ("dense" if n == 8 else "arnoldi")
    assert found.radius == pytest.approx(expected, rel=1e-5)
    assert found.to_json()["kind"] == "estimate"


def test_a_linear_average_has_its_rate_as_radius() -> None:
    graph = random_graph(150, 400, undirected=True)
    model = LinearAverage(2, 1, rate=0.6).double()
    found = spectral_radius(model, graph, torch.zeros(150, 2, dtype=torch.float64), tolerance=1e-8)
    assert found.radius == pytest.approx(0.6, rel=1e-5)


def test_the_middle_fixed_point_of_the_counterexample_repels() -> None:
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64))
    middle = torch.full((2, 2), 1.2, dtype=torch.float64)
    found = spectral_radius(model, two_node_graph(), middle)
    assert found.residual < 1e-12
    assert found.radius == pytest.approx(2.0)  # d/ds of 2 tanh(s) at 0


def test_a_map_that_ignores_the_state_has_radius_zero() -> None:
    graph = Graph.build(
        torch.zeros(300, 2, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.int64)
    )
    assert (
        spectral_radius(
            LinearAverage(2, 1).double(), graph, torch.zeros(300, 2, dtype=torch.float64)
        ).radius
        == 0.0
    )


def test_non_finite_states_are_refused_and_the_mode_is_restored() -> None:
    graph = random_graph(4, 5, undirected=True)
    model = SheafDEQ(2, 3, 2, 2).double()
    with pytest.raises(InputError, match="NaN"):
        spectral_radius(model, graph, torch.full((4, 4), torch.nan, dtype=torch.float64))
    spectral_radius(model, graph, torch.ones(4, 4, dtype=torch.float64))
    assert model.training
