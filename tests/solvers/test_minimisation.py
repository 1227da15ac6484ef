"""L-BFGS and conjugate gradients: exact on quadratics, each graph as it would be alone, and honest
about failure."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.solvers import LBFGS, ConjugateGradients, Partition, Status

DOUBLE = torch.float64


def test_minimise_and_conjugate_gradients_on_quadratics() -> None:
    torch.manual_seed(0)
    roots = torch.randn(2, 6, 6, dtype=torch.float64)
    matrices = roots @ roots.transpose(1, 2) + 0.1 * torch.eye(6, dtype=torch.float64)
    right = torch.randn(4, 3, dtype=torch.float64)  # two graphs of two nodes with three channels
    partition = Partition(torch.tensor([0, 0, 1, 1]), 2)

    def product(v: torch.Tensor) -> torch.Tensor:
        return (matrices @ v.reshape(2, 6, 1)).reshape(4, 3)

    def energy(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image = product(v)
        return partition.dot(v, image / 2 - right), image - right

    exact = torch.linalg.solve(matrices, right.reshape(2, 6, 1)).reshape(4, 3)
    solution = ConjugateGradients(50, 1e-12).solve(product, right, partition=partition)
    assert solution.converged
    assert torch.allclose(solution.value, exact, atol=1e-9)
    start = torch.zeros(4, 3, dtype=torch.float64)
    found = LBFGS(500, 1e-10).minimise(energy, start, partition=partition)
    assert found.converged
    assert torch.allclose(found.value, exact, atol=1e-7)
    short = ConjugateGradients(1, 1e-12).solve(product, right, partition=partition)
    assert short.status is Status.MAX_STEPS


def quartic(v: Tensor) -> tuple[Tensor, Tensor]:
    return (v.square() / 2 + v**4).sum(1), v + 4 * v**3


def test_a_batch_gives_each_graph_what_it_would_get_alone() -> None:
    start = torch.tensor([[3.0, -1.0], [1e-9, 0.0], [40.0, 7.0]], dtype=DOUBLE)
    together = LBFGS(100, 1e-9).minimise(quartic, start, partition=Partition(torch.arange(3), 3))
    assert together.converged
    assert together.steps == int(together.graph_steps.max())
    assert len(together.residuals) == together.steps + 1
    for row in range(3):
        alone = LBFGS(100, 1e-9).minimise(quartic, start[row : row + 1])
        assert torch.equal(alone.value[0], together.value[row])
        assert alone.steps == int(together.graph_steps[row])
        assert float(alone.residual) == float(together.graph_residual[row])


def test_a_kink_is_stagnation_and_infinity_is_non_finite() -> None:
    """|v| has no small gradient anywhere: the line search finds no acceptable step at the kink."""

    def energy(v: Tensor) -> tuple[Tensor, Tensor]:
        slope, broken = torch.where(v[:1] < 0, -1.0, 1.0), torch.full_like(v[1:], torch.inf)
        return torch.cat([v[:1].abs().sum(1), v[1:].sum(1)]), torch.cat([slope, broken])

    start = torch.tensor([[0.3], [1.0]], dtype=DOUBLE)
    found = LBFGS(100, 1e-6).minimise(energy, start, partition=Partition(torch.arange(2), 2))
    assert found.graph_status == (Status.STAGNATED, Status.NON_FINITE)
    assert float(found.value[1]) == 1.0
    assert found.steps < 100


def test_an_indefinite_matrix_is_not_called_solved() -> None:
    signs = torch.tensor([[1.0, -1.0], [1.0, 2.0]], dtype=DOUBLE)
    right = torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=DOUBLE)
    found = ConjugateGradients(50, 1e-12).solve(
        lambda v: signs * v, right, partition=Partition(torch.arange(2), 2)
    )
    assert found.graph_status == (Status.STAGNATED, Status.CONVERGED)
    assert torch.allclose(found.value[1], right[1] / signs[1])
    zero = ConjugateGradients(50, 1e-12).solve(lambda v: v, torch.zeros(2, 2, dtype=DOUBLE))
    assert zero.converged
    assert zero.steps == 0
