"""Definitions 1, 2 and 6; Lemmas 3, 4, 5 and 7: the metric, sensitivity, and what subhomogeneity
gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_tools import SLACK, log_jacobian, log_norm, normal, observed_rate, positive, thompson

from sheafdeq.distances import THOMPSON
from sheafdeq.theory.coefficients import mu

seeds = st.integers(0, 10**6)


def sensitivity(quantity, x, y):
    """Observed |log c(x) - log c(y)| / delta_T(x, y), the largest over entries (Definition 2)."""
    return float((quantity(x).log() - quantity(y).log()).abs().max()) / thompson(x, y)


@given(seed=seeds)
def test_definition_1_thompson_is_a_metric_and_matches_the_library(seed):
    x, y, z = (positive(seed + k, 4, 3) for k in range(3))
    assert thompson(x, x) == 0
    assert thompson(x, y) == thompson(y, x)
    assert thompson(x, z) <= thompson(x, y) + thompson(y, z) + 1e-12
    assert thompson(3.0 * x, 3.0 * y) == pytest.approx(thompson(x, y))
    assert float(THOMPSON(x, y).max()) == pytest.approx(thompson(x, y))


@given(seed=seeds)
def test_lemma_3_calculus(seed):
    x, y = positive(seed, 6), positive(seed + 1, 6)
    w, v = normal(seed + 2, 5, 6).abs(), normal(seed + 3, 5, 6).abs()

    def one(h):  # sensitivity 1: a nonnegative combination of the state
        return w @ h

    def half(h):  # sensitivity 1/2
        return (v @ h).sqrt()

    bound = 1 + SLACK
    assert sensitivity(one, x, y) <= bound
    assert sensitivity(half, x, y) <= 0.5 * bound
    assert sensitivity(lambda h: one(h) + 2 * half(h), x, y) <= bound  # sums keep the largest
    assert sensitivity(lambda h: one(h) * half(h), x, y) <= 1.5 * bound  # products add
    assert sensitivity(lambda h: one(h) / half(h), x, y) <= 1.5 * bound  # quotients add
    assert (
        sensitivity(
            lambda h: torch.linalg.vector_norm(torch.outer(one(h), half(h))).reshape(1), x, y
        )
        <= 1.5 * bound
    )


def test_lemma_3_products_do_need_the_sum():
    """A checker that accepted 'products keep the largest' would be wrong: squaring doubles."""
    x, y = torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    assert sensitivity(lambda h: h * h, x, y) == pytest.approx(2.0)


@settings(max_examples=12)
@given(seed=seeds)
def test_lemma_4_formula_and_lipschitz_equivalence(seed):
    weight = normal(seed, 4, 4)

    def step(h):
        return torch.tanh(weight @ h) + 1.3

    x = positive(seed + 1, 4, spread=1.0)
    m = torch.autograd.functional.jacobian(step, x)
    expected = m * x[None, :] / step(x)[:, None]
    assert torch.allclose(log_jacobian(step, x), expected, atol=1e-12)
    weights = positive(seed + 2, 4, spread=0.5)
    by_hand = ((m.abs() * (x * weights)[None, :]).sum(1) / (step(x) * weights)).max()
    assert log_norm(step, x, weights) == pytest.approx(float(by_hand))
    # if: the rate between two points is at most the largest norm on the segment; only if: close
    # pairs attain it
    y = positive(seed + 3, 4, spread=1.0)
    segment = [
        torch.exp((1 - t) * x.log() + t * y.log())
        for t in torch.linspace(0, 1, 60, dtype=torch.float64)
    ]
    assert observed_rate(step, x, y) <= max(log_norm(step, h) for h in segment) * (1 + 5e-2)
    row = int(log_jacobian(step, x).abs().sum(1).argmax())
    direction = torch.sign(log_jacobian(step, x)[row])
    near = torch.exp(x.log() + 1e-6 * direction)
    assert observed_rate(step, x, near) == pytest.approx(log_norm(step, x), rel=1e-4)


@given(seed=seeds)
def test_lemma_5_error_bounds(seed):
    weight = normal(seed, 5, 5).abs()  # nonnegative, so the scalar coefficient is a Thompson rate

    def step(h):
        return torch.tanh(weight @ h) + 1.4

    rate = mu(1.4).upper
    x = positive(seed + 1, 5)
    limit = x
    for _ in range(200):
        limit = step(limit)
    assert thompson(step(limit), limit) < 1e-13
    first = thompson(step(x), x)
    for k in range(1, 12):
        x = step(x)
        error = thompson(x, limit)
        assert error <= rate**k / (1 - rate) * first + 1e-12
        assert bool(
            (
                (x - limit).abs()
                <= limit * torch.expm1(torch.tensor(error, dtype=torch.float64)) + 1e-12
            ).all()
        )


@given(seed=seeds, scale=st.floats(-3, 3))
def test_lemma_7_ordinary_subhomogeneity_contracts_rays_only(seed, scale):
    weight = normal(seed, 4, 4, scale=3.0)

    def step(h):
        return torch.tanh(weight @ h) + 1.3

    x = positive(seed + 1, 4, spread=1.0)
    assert (
        thompson(step(x * torch.tensor(scale).exp()), step(x)) <= mu(1.3).upper * abs(scale) + 1e-9
    )
    nonnegative = weight.abs()  # (c) no cancelling signs: ordinary and strong agree

    def tame(h):
        return torch.tanh(nonnegative @ h) + 1.3

    assert log_norm(tame, x) <= mu(1.3).upper * (1 + SLACK)


def test_lemma_7_off_rays_the_bound_fails():
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)

    def step(h):
        return torch.tanh(weight @ h) + 1.2

    centre = torch.full((2,), 1.2, dtype=torch.float64)
    assert log_norm(step, centre) == pytest.approx(2.0)  # |M| H / T = 2.4 / 1.2, although M H = 0
