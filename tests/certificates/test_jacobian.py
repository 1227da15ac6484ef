"""Block Jacobians equal dense automatic differentiation; Perron bounds bracket the Perron root."""

import pytest
import torch

from graphs import random_graph
from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.collatz_wielandt import (
    block_norms,
    collatz_wielandt,
    damped_weights,
    quotients,
    spectral_norm_bound,
    spectral_radius_estimate,
)
from sheafdeq.certificates.jacobian import jacobian, log_jacobian
from sheafdeq.errors import InputError
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_deq import SheafDEQ


def random_matrix(seed: int, n: int = 6, c: int = 3) -> BlockMatrix:

    graph = random_graph(n, 15, seed)
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(n, c, c, generator=generator, dtype=torch.float64)
    return BlockMatrix(
        graph.edges, own, torch.randn(15, c, c, generator=generator, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    "make", [lambda: SheafDEQ(2, 3, 2, 3), lambda: IGNN(2, 3, 4), lambda: APPNP(2, 3, 4, shift=1.3)]
)
def test_blocks_equal_the_dense_jacobian(make):
    torch.manual_seed(0)
    graph, model = random_graph(5, 12), make().double().eval()
    context = model.prepare(graph)
    state = (
        model.initial_state(context).detach().abs()
        + torch.rand(5, model.initial_state(context).shape[1]).double()
    )
    dense = torch.autograd.functional.jacobian(lambda h: model.step(h, context), state).reshape(
        state.numel(), -1
    )
    assert torch.allclose(jacobian(model, state, context).to_dense(), dense, atol=1e-10)
    if isinstance(model, SheafDEQ):
        image = model.step(state, context).detach()
        logged = dense * state.reshape(1, -1) / image.reshape(-1, 1)
        assert torch.allclose(log_jacobian(model, state, context).to_dense(), logged, atol=1e-10)
        with pytest.raises(InputError, match="positive"):
            log_jacobian(model, -state, context)


def test_products_equal_the_dense_twin():
    matrix = random_matrix(1)
    x = torch.randn(6, 3, dtype=torch.float64)
    dense = matrix.to_dense()
    assert torch.allclose(matrix.apply(x).reshape(-1), dense @ x.reshape(-1))
    rows, columns = torch.rand(6, 3).double(), torch.rand(6, 3).double()
    assert torch.allclose(
        matrix.scale(rows, columns).to_dense(), rows.reshape(-1, 1) * dense * columns.reshape(1, -1)
    )


@pytest.mark.parametrize("seed", range(5))
def test_collatz_wielandt_brackets_the_perron_root(seed):
    matrix = random_matrix(seed).magnitude()
    root = float(torch.linalg.eigvals(matrix.to_dense()).abs().max())
    bounds = collatz_wielandt(matrix)
    assert bounds.lower <= root * (1 + 1e-12)
    assert root <= bounds.upper * (1 + 1e-12)
    assert bounds.upper < 1.05 * root
    weights = damped_weights(matrix, 1.5 * root)
    assert float(quotients(matrix, weights).max()) <= 1.5 * root * (1 + 1e-6)
    assert spectral_radius_estimate(random_matrix(seed)) <= bounds.upper * (1 + 1e-9)


def test_any_weights_give_a_bound_and_zero_is_zero():
    matrix = random_matrix(3).magnitude()
    root = float(torch.linalg.eigvals(matrix.to_dense()).abs().max())
    for _ in range(5):
        assert float(quotients(matrix, torch.rand(6, 3).double() + 0.01).max()) >= root
    zero = BlockMatrix(matrix.edges, torch.zeros_like(matrix.own), torch.zeros_like(matrix.edge))
    assert collatz_wielandt(zero).upper < 1e-200


def test_spectral_norms_are_bounded_from_above_and_tightly():
    blocks = torch.randn(40, 6, 6, dtype=torch.float64)
    blocks[0] = 0
    exact = torch.linalg.matrix_norm(blocks, 2)
    bound = spectral_norm_bound(blocks)
    assert bool((bound >= exact * (1 - 1e-15)).all())
    assert bool((bound[1:] <= exact[1:] * (1 + 1e-9)).all())


def test_block_norms_bound_the_spectral_radius():
    matrix = random_matrix(4)
    for norm in ("two", "inf"):
        assert collatz_wielandt(block_norms(matrix, norm)).upper >= spectral_radius_estimate(
            matrix
        ) * (1 - 1e-9)
