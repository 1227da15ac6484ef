"""Theorems 27, 28 and 29 and Proposition 30: certificates of one map, and refutations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_tools import SLACK, generator, log_jacobian, log_norm, normal, positive, thompson

from sheafdeq.constructions.counterexample import counterexample

seeds = st.integers(0, 10**6)


def spectral_radius(matrix):
    return float(torch.linalg.eigvals(matrix).abs().max())


@given(seed=seeds)
def test_theorem_27a_collatz_wielandt(seed):
    jacobian = normal(seed, 6, 6)
    a = jacobian.abs()
    rho = spectral_radius(a)
    w = positive(seed + 1, 6, spread=1.0)
    ratios = (a @ w) / w
    assert float(ratios.min()) <= rho * (1 + 1e-10)
    assert float(ratios.max()) >= rho * (1 - 1e-10)
    assert spectral_radius(jacobian) <= rho * (1 + 1e-10)
    values, vectors = torch.linalg.eig(a)  # the Perron vector attains it
    w = vectors[:, values.real.argmax()].real.abs()
    assert float(((a @ w) / w).max()) == pytest.approx(rho, rel=1e-9)


@given(seed=seeds)
def test_theorem_27c_node_blocks(seed):
    n, c = 3, 2
    jacobian = normal(seed, n * c, n * c)
    blocks = jacobian.view(n, c, n, c).permute(0, 2, 1, 3)
    norms = torch.linalg.matrix_norm(blocks, 2)
    w = positive(seed + 1, n, spread=0.5)
    r = float(((norms @ w) / w).max())
    assert spectral_radius(jacobian) <= spectral_radius(norms) * (1 + 1e-10) <= r * (1 + 1e-9)
    x = normal(seed + 2, n * c)

    def size(v):
        return float((torch.linalg.vector_norm(v.view(n, c), dim=1) / w).max())

    assert size(jacobian @ x) <= r * size(x) * (1 + 1e-10)


def weighted(x, y, w):
    return float(((x.log() - y.log()).abs() / w).max())


@settings(max_examples=10)
@given(seed=seeds)
def test_theorem_28_ball(seed):
    """A bound of |J| on the ball by its entries (here exact for the map), the radius condition, and
    what follows."""
    weight = normal(seed, 4, 4, scale=0.25)

    def step(h):
        return torch.tanh(weight @ h) + 1.5

    star = torch.full((4,), 1.5, dtype=torch.float64)
    for _ in range(300):
        star = step(star)
    if thompson(step(star), star) > 1e-12:
        return
    centre = torch.exp(star.log() + 1e-3 * normal(seed + 1, 4))
    w = positive(seed + 2, 4, spread=0.2)
    epsilon = weighted(step(centre), centre, w)
    radius = 0.3
    low, high = centre * torch.exp(-radius * w), centre * torch.exp(radius * w)
    # interval bound: |J_ij| = sech^2(p_i) |weight_ij| H_j / T_i <= |weight_ij| high_j / (1.5 +
    # tanh(p_i low end))
    p_low = weight.clamp(min=0) @ low + weight.clamp(max=0) @ high
    bound = weight.abs() * high[None, :] / (1.5 + torch.tanh(p_low))[:, None]
    rate = float(((bound @ w) / w).max())
    if rate >= 1 or epsilon > (1 - rate) * radius:
        return
    assert weighted(star, centre, w) <= epsilon / (1 - rate) + 1e-12
    for k in range(5):
        start = torch.exp(centre.log() + radius * w * (2 * torch.rand(4, dtype=torch.float64) - 1))
        assert log_norm(step, start, w) <= rate * (1 + SLACK)
        image = step(start)
        assert weighted(image, centre, w) <= radius * (1 + SLACK)
        assert weighted(image, star, w) <= rate * weighted(start, star, w) + 1e-12
        noisy = image
        eta = ((1 - rate) * radius - epsilon) * 0.999
        for step_number in range(30):  # perturbations inside the margin never leave the ball
            noise = (
                eta
                * w
                * (
                    2
                    * torch.rand(4, dtype=torch.float64, generator=generator(31 * k + step_number))
                    - 1
                )
            )
            noisy = torch.exp(step(noisy).log() + noise)
            assert weighted(noisy, centre, w) <= radius * (1 + SLACK)


@pytest.mark.parametrize("gain", [0.05, 0.1, 0.15])
def test_theorem_29_box_certifies_small_gains(gain):
    """Interval bound over K = [beta - 1, beta + 1] for the family of Theorem 13."""
    example = counterexample(gain)
    high = 1.2 + 1
    span = 2 * gain  # |p| <= gain * (h1 - h2) <= 2 gain on K
    rate = 2 * gain * high / (1.2 - float(torch.tanh(torch.tensor(span))))
    assert rate < 1
    low = 0.2
    for seed in range(20):
        h = low + (high - low) * torch.rand(
            2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        assert log_norm(example.step, h) <= rate * (1 + SLACK)
    ends = []
    for scale in (1e-3, 1.0, 1e3):
        state = scale * positive(7, 2, 2)
        for _ in range(200):
            state = example.step(state)
        ends.append(state)
    assert max(thompson(ends[0], end) for end in ends) < 1e-10


@pytest.mark.parametrize("gain", [0.51, 0.7, 1.0, 4.0])
def test_proposition_30_witness(gain):
    example = counterexample(gain)
    x, y = example.fixed_points[1:]
    residuals = thompson(example.step(x), x) + thompson(example.step(y), y)
    refuted_below = 1 - residuals / thompson(x, y)  # (b): no rate below this
    assert refuted_below > 1 - 1e-12
    # (c): a ball around each, by the local rate at the point and a small radius
    for point in (x, y):
        assert log_norm(example.step, point, local_weights(example, point)) < 1
    # (d): a pair that moves apart
    near = torch.exp(
        example.fixed_points[0].log() + 1e-4 * torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    assert thompson(example.step(near), example.fixed_points[0]) > thompson(
        near, example.fixed_points[0]
    )


def local_weights(example, point):
    """Perron vector of |J| at the point (Theorem 27)."""
    a = log_jacobian(example.step, point).abs() + 1e-12
    w = torch.ones(len(a), dtype=torch.float64)
    for _ in range(500):
        w = a @ w
        w = w / w.max()
    return w


def test_a_search_that_finds_nothing_proves_nothing():
    """Below the bifurcation two runs agree: (b) then refutes nothing near one, as it must."""
    example = counterexample(0.3)
    x, y = (positive(seed, 2, 2) for seed in (1, 2))
    for _ in range(10):
        x, y = example.step(x), example.step(y)
    bound = 1 - (thompson(example.step(x), x) + thompson(example.step(y), y)) / thompson(x, y)
    assert bound < 1


def test_a_jump_has_no_derivative_and_two_fixed_points():
    """Why Theorems 28 and 29 ask for local Lipschitz continuity: the derivative is zero almost
    everywhere, and all else holds."""

    def jump(u: float) -> float:
        return 0.5 if u >= 0 else -0.5

    rate, radius, centre = 0.0, 1.0, 0.0
    assert abs(jump(centre) - centre) <= (1 - rate) * radius
    assert all(abs(jump(u)) <= radius for u in (-1.0, -0.1, 0.0, 0.1, 1.0))
    assert jump(0.5) == 0.5
    assert jump(-0.5) == -0.5


def test_small_residuals_far_from_the_only_fixed_point():
    """Proposition 30(b) refutes rates, not uniqueness: at gain 1/2 the defect of the difference s
    is s^3 / 12."""
    import math

    for s in (1e-1, 1e-2, 1e-3):
        defect = s - 2 * math.tanh(0.5 * s)
        assert 0 < defect < 1.01 * s**3 / 12
