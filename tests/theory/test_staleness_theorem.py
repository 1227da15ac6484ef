"""Theorem 25 and Corollary 26: bounded staleness, simulated directly from the definition."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafdeq.theory.coefficients import m

seeds = st.integers(0, 10**6)


def stale_run(update, start, slots, spacing, delay, rng, own_current=True):
    """All states x(0..slots); block i reads block j at a random age up to ``delay``, updates at
    least every ``spacing`` slots."""
    n = len(start)
    history, last = [start.clone()], [-1] * n
    for t in range(slots):
        new = history[-1].clone()
        for i in range(n):
            if rng.random() < 0.4 or t - last[i] >= spacing:
                ages = [0 if own_current and j == i else rng.randint(0, delay) for j in range(n)]
                view = torch.stack([history[max(0, t - age)][j] for j, age in enumerate(ages)])
                new[i] = update(view, i)
                last[i] = t
        history.append(new)
    return history


def windows(errors, size):
    """E(t) of Theorem 25: the largest error over the last ``size`` slots (constant before slot
    0)."""
    return [max(errors[max(0, t - size + 1) : t + 1]) for t in range(len(errors))]


def split_update(seed, n=5, beta=1.5, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    plus = scale * torch.rand(n, n, dtype=torch.float64, generator=g)
    minus = scale * torch.rand(n, n, dtype=torch.float64, generator=g)

    def step(h):
        return beta + torch.tanh(plus @ h) - torch.tanh(minus @ h)

    return step


@settings(max_examples=15)
@given(seed=seeds, spacing=st.integers(1, 5), delay=st.integers(0, 6), own=st.booleans())
def test_theorem_25_and_corollary_26a(seed, spacing, delay, own):
    beta = 1.5
    step = split_update(seed, beta=beta)
    rate = m(beta).upper
    star = torch.full((5,), beta, dtype=torch.float64)
    for _ in range(200):
        star = step(star)
    rng = random.Random(seed)
    start = torch.exp(
        2 * torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    )
    window = max(spacing, delay + 1)
    period = 2 * window - 1
    history = stale_run(lambda view, i: step(view)[i], start, 6 * period, spacing, delay, rng, own)
    e = windows([float((x.log() - star.log()).abs().max()) for x in history], window)
    for t in range(len(e) - 1):
        assert e[t + 1] <= e[t] + 1e-12
    for t in range(len(e) - period):
        assert e[t + period] <= rate * e[t] + 1e-12


def test_theorem_25_the_window_is_needed():
    """The deliberately false 'E shrinks by the rate at every slot' is caught when nodes sleep and
    messages age."""
    beta = 1.5
    step = split_update(3, beta=beta)
    star = torch.full((5,), beta, dtype=torch.float64)
    for _ in range(200):
        star = step(star)
    rng = random.Random(0)
    start = torch.full((5,), 30.0, dtype=torch.float64)
    history = stale_run(lambda view, i: step(view)[i], start, 60, 4, 4, rng)
    e = windows([float((x.log() - star.log()).abs().max()) for x in history], 5)
    assert any(e[t + 1] > m(beta).upper * e[t] + 1e-12 for t in range(len(e) - 1))


@pytest.mark.parametrize("seed", range(4))
def test_corollary_26b_cascade_under_staleness(seed):
    """Two levels, the upper one's weights an unconstrained function of the lower one; views lie in
    K after L (2B - 1) slots."""
    n, beta = 4, 1.5
    lower = split_update(seed, n, beta)
    g = torch.Generator().manual_seed(seed)
    first, second = (3 * torch.randn(n, n, n, dtype=torch.float64, generator=g) for _ in range(2))

    def step(h):  # (2n,): level 1, then level 2
        x, z = h[:n], h[n:]
        weight = torch.einsum("ijk,k->ij", first, x - beta)
        drive = torch.relu(second[0] @ (x - beta))
        plus, minus = weight.clamp(min=0) @ z, (-weight).clamp(min=0) @ z
        return torch.cat([lower(x), beta + drive + torch.tanh(plus) - torch.tanh(minus)])

    star = torch.full((2 * n,), beta, dtype=torch.float64)
    for _ in range(400):
        star = step(star)
    assert float((step(star) - star).abs().max()) < 1e-12
    spacing, delay = 3, 3
    window = max(spacing, delay + 1)
    rng = random.Random(seed)
    start = torch.exp(3 * torch.randn(2 * n, dtype=torch.float64, generator=g))
    history = stale_run(lambda view, i: step(view)[i], start, 400, spacing, delay, rng)
    top = beta + 1 + torch.cat([torch.zeros(n, dtype=torch.float64), second[0].abs().sum(1)])
    for x in history[2 * (2 * window - 1) :]:
        assert bool((x >= beta - 1).all())
        assert bool((x <= top).all())
    assert float((history[-1].log() - star.log()).abs().max()) < 1e-8
