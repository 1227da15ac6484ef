"""Lemma 31 and Propositions 32 to 36: the comparison models, by dense references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_tools import SLACK, log_norm, normal, positive, random_graph

from sheafdeq.theory.coefficients import mu_positive

seeds = st.integers(0, 10**6)


def normalised_adjacency(seed, n=6, self_loops=True):
    """Dense A-hat of stored (also directed, parallel) edges, and the clamped in-degrees."""
    graph = random_graph(seed, n=n, edges=10)
    a = torch.zeros(n, n, dtype=torch.float64)
    a.index_put_(
        (graph.target, graph.source),
        torch.ones(graph.num_edges, dtype=torch.float64),
        accumulate=True,
    )
    if self_loops:
        a = a + torch.eye(n, dtype=torch.float64)
    degree = a.sum(1).clamp(min=1)
    root = degree.rsqrt()
    return root[:, None] * a * root[None, :], degree


def size(h, degree, order=float("inf")):
    return float((torch.linalg.vector_norm(h, ord=order, dim=1) / degree.sqrt()).max())


@given(seed=seeds, loops=st.booleans(), order=st.sampled_from([1.0, 2.0, float("inf")]))
def test_lemma_31(seed, loops, order):
    a, degree = normalised_adjacency(seed, self_loops=loops)
    root = degree.sqrt()
    assert bool((a @ root <= root * (1 + SLACK)).all())
    h = normal(seed + 1, 6, 4)
    assert size(a @ h, degree, order) <= size(h, degree, order) * (1 + SLACK)


def test_lemma_31_needs_the_weights():
    """In the plain maximum norm a star's hub amplifies: the unweighted statement is false."""
    n = 6
    a = torch.zeros(n, n, dtype=torch.float64)
    a[0, 1:], a[1:, 0] = 1.0, 1.0
    degree = a.sum(1)
    a = a / (degree[:, None] * degree[None, :]).sqrt()
    assert float((a @ torch.ones(n, dtype=torch.float64)).max()) > 2


@given(seed=seeds)
def test_proposition_32_ignn(seed):
    a, degree = normalised_adjacency(seed)
    weight = normal(seed + 1, 4, 4)
    weight = 0.9 * weight / weight.abs().sum(0).max()
    rate = float(weight.abs().sum(0).max())
    drive = normal(seed + 2, 6, 4)

    def step(h):
        return torch.relu(a @ h @ weight + drive)

    x, y = normal(seed + 3, 6, 4, scale=5.0), normal(seed + 4, 6, 4)
    assert size(step(x) - step(y), degree) <= rate * size(x - y, degree) * (1 + SLACK)


@given(seed=seeds, alpha=st.floats(0.05, 0.95), beta=st.floats(1.05, 3.0))
def test_propositions_33_and_34_appnp(seed, alpha, beta):
    a, degree = normalised_adjacency(seed)
    h0 = normal(seed + 1, 6, 3, scale=4.0)

    def linear(h):
        return (1 - alpha) * a @ h + alpha * h0

    def shifted(h):
        return torch.tanh(linear(h)) + beta

    x, y = normal(seed + 2, 6, 3, scale=5.0), normal(seed + 3, 6, 3)
    for step in (linear, shifted):  # 33 and 34(a): any sign of the drive
        assert size(step(x) - step(y), degree) <= (1 - alpha) * size(x - y, degree) * (1 + SLACK)
    positive_drive = h0.abs()
    rate = mu_positive(beta).upper
    state = positive(seed + 4, 6, 3, spread=1.0)
    inside = log_norm(
        lambda h: torch.tanh((1 - alpha) * a @ h + alpha * positive_drive) + beta, state
    )
    outside = log_norm(
        lambda h: torch.tanh((1 - alpha) * a @ h) + alpha * positive_drive + beta, state
    )
    assert max(inside, outside) <= rate * (1 + SLACK)  # 34(b)


def test_proposition_34c_mixed_signs_do_not_contract_thompson():
    def step(h):
        return torch.tanh(0.9 * h - 1.8) + 1.25

    assert log_norm(step, torch.full((1,), 2.0, dtype=torch.float64)) == pytest.approx(1.44)


@given(seed=seeds)
def test_proposition_35_eignn(seed):
    a, degree = normalised_adjacency(seed, self_loops=False)
    f = normal(seed + 1, 4, 4)
    gram = f.T @ f
    matrix = 0.9 * gram / (torch.linalg.matrix_norm(gram) + 1e-12)
    rate = float(torch.linalg.matrix_norm(matrix, 2))
    assert rate <= 0.9 + 1e-12
    difference = normal(seed + 2, 6, 4)
    assert size(a @ difference @ matrix, degree, 2.0) <= rate * size(difference, degree, 2.0) * (
        1 + SLACK
    )


@settings(max_examples=20)
@given(seed=seeds)
def test_proposition_36_strong_convexity(seed):
    """Phi = sum of softplus of linear forms: smooth, convex; Lambda from the weights."""
    weight, bias, beta = normal(seed, 5, 4), normal(seed + 1, 5), 0.04
    lipschitz = beta + 0.25 * float(torch.linalg.matrix_norm(weight, 2)) ** 2

    def gradient(h):
        return weight.T @ torch.sigmoid(weight @ h + bias) + beta * h

    eta = 2 / (lipschitz + beta)
    rate = max(abs(1 - eta * beta), abs(1 - eta * lipschitz))
    x, y = normal(seed + 2, 4, scale=10.0), normal(seed + 3, 4)
    new = (x - eta * gradient(x)) - (y - eta * gradient(y))
    assert float(new.norm()) <= rate * float((x - y).norm()) * (1 + SLACK)  # (c)
    star = torch.zeros(4, dtype=torch.float64)
    for _ in range(60):  # damped Newton
        s = torch.sigmoid(weight @ star + bias)
        hessian = weight.T @ ((s * (1 - s))[:, None] * weight) + beta * torch.eye(
            4, dtype=torch.float64
        )
        star = star - 0.5 * torch.linalg.solve(hessian, gradient(star))
    if float(gradient(star).norm()) < 1e-9:
        assert float((x - star).norm()) <= float(gradient(x).norm()) / beta * (1 + 1e-6)  # (b)
