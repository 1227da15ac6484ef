import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers import CellularSheaf, SheafOperator
from sheafdeq.solvers import Picard

DOUBLE = torch.float64


@st.composite
def sheaves(draw):
    n, d, seed = draw(st.integers(2, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 10**6))
    g = torch.Generator().manual_seed(seed)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    keep = [p for p in pairs if float(torch.rand(1, generator=g)) < 0.6] or pairs[:1]
    maps = torch.randn(2, len(keep), d, d, generator=g, dtype=DOUBLE)
    maps = maps / torch.linalg.matrix_norm(maps, keepdim=True)
    return CellularSheaf(n, torch.tensor(keep).T, maps[0], maps[1])


@given(sheaves())
def test_operator_is_identity_minus_the_normalised_laplacian(sheaf):
    n, d = sheaf.num_nodes, sheaf.stalk_dim
    dense = sheaf.operator.to_dense()
    assert torch.allclose(
        dense, torch.eye(n * d, dtype=DOUBLE) - sheaf.normalised_laplacian, atol=1e-12
    )
    assert torch.allclose(dense, dense.T, atol=1e-12)
    values = torch.randn(n, d, 3, dtype=DOUBLE)
    assert torch.allclose(
        sheaf.operator.apply(values).reshape(n * d, 3), dense @ values.reshape(n * d, 3), atol=1e-12
    )


@given(sheaves())
def test_laplacian_is_positive_semidefinite_with_spectrum_at_most_two(sheaf):
    eigenvalues = torch.linalg.eigvalsh(sheaf.normalised_laplacian)
    assert float(eigenvalues.min()) > -1e-10
    # unit Frobenius norm bounds every map's spectral norm by one
    assert float(eigenvalues.max()) < 2 + 1e-10


@given(sheaves())
def test_sections_are_exactly_the_kernel_of_the_coboundary(sheaf):
    sections = sheaf.global_sections()
    assert float((sheaf.coboundary @ sections).abs().max() if sections.numel() else 0.0) < 1e-6
    rank = int(torch.linalg.matrix_rank(sheaf.coboundary, tol=1e-6))
    assert sections.shape[1] == sheaf.num_nodes * sheaf.stalk_dim - rank


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 14))
def test_transpose_of_any_operator(seed, d, e):
    g = torch.Generator().manual_seed(seed)
    graph = Graph.build(torch.zeros(5, 0, dtype=DOUBLE), torch.randint(0, 5, (2, e), generator=g))
    operator = SheafOperator.on(graph, *torch.randn(2, e, d, d, generator=g, dtype=DOUBLE))
    x, y = torch.randn(2, 5, d, 2, generator=g, dtype=DOUBLE)
    assert torch.allclose(
        (operator.apply(x) * y).sum(), (x * operator.transpose().apply(y)).sum(), atol=1e-10
    )
    assert torch.allclose(operator.transpose().to_dense(), operator.to_dense().T)
    assert operator.transpose().transpose() is operator


def constant_sheaf(n, edges, d=1):
    maps = (torch.eye(d, dtype=DOUBLE) / math.sqrt(d)).expand(len(edges), d, d)
    return CellularSheaf(n, torch.tensor(edges).T, maps, maps)


def test_constant_sheaf_on_a_connected_graph_has_constant_sections():
    sheaf = constant_sheaf(4, [(0, 1), (1, 2), (2, 3)])
    sections = sheaf.global_sections()
    assert sections.shape == (4, 1)
    assert torch.allclose(sections, sections[:1].expand(4, 1), atol=1e-9)


def test_sign_flipped_triangle_has_no_section():
    """An odd number of sign reversals around a cycle leaves nothing that agrees on every edge."""
    one = torch.ones(3, 1, 1, dtype=DOUBLE)
    head = one.clone()
    head[2] = -1
    assert (
        CellularSheaf(3, torch.tensor([[0, 1, 0], [1, 2, 2]]), one, head).global_sections().shape[1]
        == 0
    )


@given(sheaves())
def test_diffusion_ends_in_the_harmonic_projection(sheaf):
    values = torch.randn(sheaf.num_nodes * sheaf.stalk_dim, 2, dtype=DOUBLE)
    eigenvalues = torch.linalg.eigvalsh(sheaf.normalised_laplacian)
    gap = float(eigenvalues[eigenvalues > 1e-6].min()) if bool((eigenvalues > 1e-6).any()) else 1.0
    limit = sheaf.harmonic_projection(values, tolerance=1e-6)
    late = sheaf.diffuse(values, time=30.0 / gap)
    assert torch.allclose(late, limit, atol=1e-6)
    assert torch.allclose(sheaf.diffuse(values, time=0.0), values)


def test_discrete_diffusion_settles_for_small_steps_and_reports_failure_for_large_ones():
    sheaf = constant_sheaf(2, [(0, 1)])
    values = torch.tensor([[[1.0]], [[3.0]]], dtype=DOUBLE)
    settled = sheaf.diffuse_steps(values, step_size=0.5)
    assert settled.converged
    assert torch.allclose(settled.value, torch.full((2, 1), 2.0, dtype=DOUBLE), atol=1e-8)
    # lambda_max = 2 here, so step size 1 is the boundary: the unit step flips the values for ever
    assert not sheaf.diffuse_steps(
        values, step_size=1.0, solver=Picard(steps=600, stop_early=True)
    ).converged


@settings(max_examples=15)
@given(sheaves(), st.floats(0.1, 0.95))
def test_pagerank_recurrence_reaches_the_resolvent(sheaf, teleport):
    signal = torch.randn(sheaf.num_nodes, sheaf.stalk_dim, 2, dtype=DOUBLE)
    limit = sheaf.resolvent(signal, teleport)
    solution = sheaf.pagerank_steps(
        signal, teleport, Picard(steps=3000, tolerance=1e-11, stop_early=True)
    )
    assert solution.converged
    assert torch.allclose(solution.value.view_as(limit), limit, atol=1e-7)


def test_teleport_interpolates_between_hard_consensus_and_the_signal():
    sheaf = constant_sheaf(3, [(0, 1), (1, 2)])
    signal = torch.randn(3, 1, 1, dtype=DOUBLE)
    hard = sheaf.harmonic_projection(signal.view(3, 1))
    assert torch.allclose(sheaf.resolvent(signal, 1e-7).view(3, 1), hard, atol=1e-5)
    assert torch.allclose(sheaf.resolvent(signal, 1 - 1e-9), signal, atol=1e-6)


@pytest.mark.parametrize("teleport", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_bad_teleport(teleport):
    with pytest.raises(InputError, match="teleport"):
        constant_sheaf(2, [(0, 1)]).resolvent(torch.zeros(2, 1, 1, dtype=DOUBLE), teleport)


def test_bad_maps_are_named():
    graph = Graph.build(torch.zeros(2, 0), torch.tensor([[0], [1]]))
    with pytest.raises(InputError, match="source_maps"):
        SheafOperator.on(graph, torch.zeros(2, 1, 1), torch.zeros(1, 1, 1))
    with pytest.raises(InputError, match="agree"):
        SheafOperator.on(graph, torch.zeros(1, 1, 1), torch.zeros(1, 2, 2))
    with pytest.raises(InputError, match="self-loops"):
        CellularSheaf(2, torch.tensor([[0], [0]]), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
