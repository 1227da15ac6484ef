"""The one spectral estimator: small, large, empty and nilpotent maps."""

import pytest
import torch

from sheafdeq.diagnostics.eigenvalue import DENSE, largest_eigenvalue


@pytest.mark.parametrize("size", [1, 2, 3, 5, DENSE, DENSE + 44])
def test_the_largest_eigenvalue_of_a_diagonal_map(size):
    matrix = torch.diag(torch.arange(1.0, size + 1, dtype=torch.float64))
    matrix[0, 0] = -1.5 * size
    found = largest_eigenvalue(lambda v: (matrix @ v.reshape(-1)).view(v.shape), (size, 1))
    assert found.radius == pytest.approx(1.5 * size, rel=1e-3)
    assert found.value == pytest.approx(-1.5 * size, rel=1e-3)
    assert found.converged
    assert found.method == ("dense" if size <= DENSE else "arnoldi")


def test_complex_pairs_are_found():
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    matrix = torch.block_diag(*[turn * (0.5 + 0.001 * k) for k in range(200)])
    found = largest_eigenvalue(lambda v: (matrix @ v.reshape(-1)).view(v.shape), (200, 2))
    assert found.radius == pytest.approx(0.699, rel=1e-2)


def test_empty_and_nilpotent_maps():
    assert largest_eigenvalue(lambda v: v, (0, 4)).radius == 0.0
    shifted = largest_eigenvalue(lambda v: torch.zeros_like(v), (DENSE + 1, 2))
    assert shifted.radius == 0.0
