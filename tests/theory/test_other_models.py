"""Lemma 31 and Propositions 32 to 36: the comparison models themselves, held against dense
references and against the proved rates."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_tools import SLACK, log_norm, normal, positive

from graphs import random_graph
from sheafdeq.models import APPNP, EIGNN, IGNN
from sheafdeq.theory.coefficients import mu_positive

seeds = st.integers(0, 10**6)


def normalised_adjacency(seed, n=6, self_loops=True):
    """Dense A-hat of stored (also directed, parallel) edges, and the clamped in-degrees."""
    graph = random_graph(n, 10, seed, isolated=False)
    return dense_adjacency(graph, self_loops)


def dense_adjacency(graph, self_loops=True):
    n = graph.num_nodes
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


def stepping(model, graph, seed, **changes):
    """The model with random weights, its context with parts replaced, and its step there."""
    model = model.double().eval()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(normal(seed + place, *parameter.shape))
    context = replace(model.prepare(graph), **changes)

    def step(h):
        with torch.no_grad():
            return model.step(h, context)

    return model, context, step


def assert_same(step, dense, h):
    torch.testing.assert_close(step(h), dense(h), rtol=1e-11, atol=1e-11)


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
    graph = random_graph(6, 10, seed, channels=1, isolated=False)
    a, degree = dense_adjacency(graph)
    drive = normal(seed + 2, 6, 4)
    model, _, step = stepping(IGNN(1, 2, 4, kappa=0.9), graph, seed + 10, drive=drive)
    model.project()
    weight = model.recurrent.detach()
    rate = float(weight.abs().sum(0).max())
    assert rate <= 0.9 * (1 + SLACK)
    x, y = normal(seed + 3, 6, 4, scale=5.0), normal(seed + 4, 6, 4)
    assert_same(step, lambda h: torch.relu(a @ h @ weight + drive), x)
    assert size(step(x) - step(y), degree) <= rate * size(x - y, degree) * (1 + SLACK)


@given(seed=seeds, alpha=st.floats(0.05, 0.95), beta=st.floats(1.05, 3.0))
def test_propositions_33_and_34_appnp(seed, alpha, beta):
    graph = random_graph(6, 10, seed, channels=1, isolated=False)
    a, degree = dense_adjacency(graph)
    h0 = normal(seed + 1, 6, 3, scale=4.0)
    plain, shift = APPNP(1, 2, 3, alpha=alpha), APPNP(1, 2, 3, alpha=alpha, shift=beta)
    linear = stepping(plain, graph, seed + 10, drive=h0)[2]
    shifted = stepping(shift, graph, seed + 10, drive=h0)[2]
    x, y = normal(seed + 2, 6, 3, scale=5.0), normal(seed + 3, 6, 3)
    assert_same(linear, lambda h: (1 - alpha) * a @ h + alpha * h0, x)
    assert_same(shifted, lambda h: torch.tanh((1 - alpha) * a @ h + alpha * h0) + beta, x)
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
    graph = random_graph(6, 10, seed, channels=1, isolated=False)
    a, degree = dense_adjacency(graph, self_loops=False)
    drive = normal(seed + 2, 6, 4)
    _, context, step = stepping(EIGNN(1, 2, 4, gamma=0.9), graph, seed + 10, drive=drive)
    matrix = context.mixing.detach()
    rate = float(torch.linalg.matrix_norm(matrix, 2))
    assert rate <= 0.9 + 1e-12
    x, y = normal(seed + 3, 6, 4, scale=5.0), normal(seed + 4, 6, 4)
    assert_same(step, lambda h: a @ h @ matrix + drive, x)
    assert size(step(x) - step(y), degree, 2.0) <= rate * size(x - y, degree, 2.0) * (1 + SLACK)


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
