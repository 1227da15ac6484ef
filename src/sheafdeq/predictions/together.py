r"""Contraction of several steps together (``docs/theory.md``, Theorem 42).

Let M be one fixed matrix, |v|_w = max |v_i| / w_i, and |M^k|_w <= theta^k for some k, theta < 1.
In the norm

    N(v) = max over 0 <= i < k of  theta^-i |M^i v|_w,      |v|_w <= N(v) <= kappa |v|_w,

with kappa = max theta^-i |M^i|_w, M contracts with theta. Where the Jacobian of the step in log
coordinates differs from M by at most s (weighted row sums) on the ball N(u - centre) <= rho, the
step contracts N with theta + kappa s; it maps the ball into itself when

    kappa r <= (1 - theta - kappa s) rho,        r = |log T(centre) - centre|_w.

Then there is one equilibrium in the ball, reached from everywhere in it by synchronous iteration.
N mixes the entries of different nodes, so nothing follows about late messages. The powers of M are
formed densely with their rounding bounded, which limits the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.models import SheafDEQ
from sheafdeq.predictions.arithmetic import EPSILON, Interval, scaled_up

__all__ = ["LARGEST_DENSE", "StepsTogether", "steps_together"]

LARGEST_DENSE = 2500
"""Entries of a state (nodes times width) up to which dense powers are formed."""
MOST_STEPS = 96


@dataclass(frozen=True, eq=False)
class StepsTogether:
    """What was found: a bound, or the reason why there is none."""

    reach: Tensor | None  # (n, c) in log coordinates
    reason: str | None
    steps: int = 0  # k
    rate: float = 0.0  # theta + kappa s
    factor: float = 0.0  # kappa
    spread: float = 0.0  # s
    radius: float = 0.0  # rho, in the norm N


@torch.no_grad()
def steps_together(model: SheafDEQ, context: object, state: Tensor) -> StepsTogether:
    """A ball around ``state`` (n, c) on which some number of steps contracts together."""
    size = state.numel()
    if size > LARGEST_DENSE:
        return StepsTogether(
            None,
            f"the product of several Jacobians is formed densely, up to {LARGEST_DENSE} entries; "
            f"this state has {size:,} (rate)",
        )
    enclosure = SheafEnclosure(model, context)  # type: ignore[arg-type]
    centre = state.log()
    weights = torch.ones_like(state)
    point = enclosure.over(centre, weights, keep_slopes=True)
    assert point.slopes is not None
    rows = point.slopes.to_dense() * point.gain.midpoint.reshape(-1, 1)  # M, exact numbers
    powers = _power_norms(rows)
    if powers is None:
        return StepsTogether(
            None, f"no product of up to {MOST_STEPS} Jacobians is below one in size (rate)"
        )
    steps, theta, kappa = powers
    image = enclosure.image(centre, torch.zeros_like(centre)).log()
    residual = (image - Interval.point(centre)).magnitude
    start = kappa * float(residual.max()) * (1 + 1e-9)
    radius = max(4.0 * start / (1.0 - theta), 1e-13)
    spread = math.inf
    for _ in range(12):
        if not radius <= 1.0:
            break  # an entry would be uncertain by a factor of e: no Jacobian is constant there
        spread = _spread(enclosure, centre, weights, radius, rows)
        rate = (theta + kappa * spread) * (1 + 1e-12)
        if rate < 1.0 and start <= (1.0 - rate) * radius:
            bound = start / (1.0 - rate) * (1 + 1e-9)
            # The ball is around log(state) as it was rounded; the bound is around the state.
            reach = scaled_up(bound + 8 * EPSILON * (1.0 + centre.abs()), 4)
            return StepsTogether(reach, None, steps, rate, kappa, spread, radius)
        radius = radius * 0.3 if not rate < 1.0 else start / (1.0 - rate) * 1.5
    reason = (
        f"{steps} steps together contract with {theta:.4g} a step at the state (norms within a "
        f"factor {kappa:.3g}, residual {float(residual.max()):.2g}), but on no ball: the Jacobian "
        f"moves by {spread:.2g} (rate)"
    )
    return StepsTogether(None, reason, steps, theta, kappa)


def _spread(
    enclosure: SheafEnclosure,
    centre: Tensor,
    weights: Tensor,
    radius: float,
    rows: Tensor,
) -> float:
    """s: how far the Jacobian is from M anywhere on the ball, in weighted row sums."""
    over = enclosure.over(centre, weights, radius, keep_slopes=True)
    assert over.slopes is not None
    gain = over.gain
    moved = over.slopes.to_dense() * gain.midpoint.reshape(-1, 1)
    apart = (moved - rows).abs().sum(1).view_as(centre)
    rounding = EPSILON * 4 * moved.abs().sum(1).view_as(centre)
    wide = gain.midpoint.abs() * over.spread + gain.radius * over.reach
    total = scaled_up(apart + rounding + wide, len(rows) + 8)
    return float(total.max()) if bool(torch.isfinite(total).all()) else math.inf


def _power_norms(matrix: Tensor) -> tuple[int, float, float] | None:
    """(k, theta, kappa) with kappa / (1 - theta) smallest within 1 %; None: no power below one.

    theta = |M^k|^(1/k). True powers: M^i = P_i + E_i with P_i as computed, E_i = E_(i-1) M + D_i
    and D_i the rounding of one product, so |E_i| <= sum_j |D_j| |M^(i-j)|, by powers whose true
    norm is known already.
    """
    size = len(matrix)
    sums = matrix.abs().sum(1)
    norms, rounding = [1.0], [0.0]
    power = torch.eye(size, dtype=matrix.dtype)
    slack = (size + 8) * EPSILON
    best: tuple[int, float, float] | None = None
    for k in range(1, MOST_STEPS + 1):
        rounding.append(float((power.abs() @ sums).max()) * slack * 1.01)
        power = power @ matrix
        error = sum(rounding[j] * norms[k - j] for j in range(1, k + 1))
        computed = float(power.abs().sum(1).max()) * (1 + slack)
        norms.append((computed + error) * (1 + 1e-12))
        if not norms[-1] < 1e12:
            return best
        theta = norms[-1] ** (1.0 / k) * (1 + 1e-12)
        if 0.0 < theta < 1.0:
            kappa = max(norms[i] * theta**-i for i in range(k)) * (1 + 1e-12)
            if best is None or kappa / (1.0 - theta) < 0.99 * best[2] / (1.0 - best[1]):
                best = k, theta, kappa
            elif k > 2 * best[0] + 8:
                return best  # it has been getting worse for long
    return best
