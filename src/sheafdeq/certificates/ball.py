"""The largest ball around a reached state on which contraction is proved (``docs/theory.md``,
Theorem 28).

The ball is |u_i - centre_i| <= R w_i in log coordinates, min w = 1, so it contains the plain
Thompson ball of radius R. Needed:

    rate r of the step over the whole ball below one      (enclosure of the Jacobian),
    residual of the centre  eps <= (1 - r) R              (then the ball is mapped into itself).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sheafdeq.certificates.interval import Interval, scaled_up
from sheafdeq.certificates.sheaf_enclosure import Enclosed, SheafEnclosure

__all__ = ["Ball", "largest_ball", "weighted_residual"]

LARGEST = 4.0  # no larger radius is asked for
WIDEST = 8.0
"""No entry of a ball is wider than this in log coordinates: beyond a factor of e^8 nothing has ever
been provable."""


@dataclass(frozen=True, eq=False)
class Ball:
    """A ball that the step maps into itself, contracting with ``rate``."""

    centre: Tensor  # (n, c) log of the state at the centre
    weights: Tensor  # (n, c), smallest entry 1
    radius: float  # R
    rate: float  # over the ball of radius R
    residual: float  # eps, weighted
    local_rate: float  # at the centre alone
    # (radius, rate) of every smaller ball that was proved on the way
    rates: tuple[tuple[float, float], ...]

    @property
    def distance_to_equilibrium(self) -> float:
        """The equilibrium is this close to the centre (weighted): eps / (1 - r)."""
        return self.residual / (1.0 - self.rate)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the box of states, rounded inward."""
        width = self.weights * self.radius * (1 - 1e-12)
        return (self.centre - width).exp(), (self.centre + width).exp()


def weighted_residual(enclosed: Enclosed, centre: Tensor) -> float:
    """Upper bound of max |log T(centre) - centre| / w."""
    difference = (enclosed.image_at_centre.log() - Interval.point(centre)).magnitude
    return float(scaled_up(difference / enclosed.weights, 2).max()) if centre.numel() else 0.0


def largest_ball(
    enclosure: SheafEnclosure, state: Tensor, weights: Tensor, evaluations: int = 10
) -> Ball | None:
    """Search for the largest proved radius, within about 10 %; None when the rate at the centre or
    its residual is too large.

    The rate grows with R, roughly linearly at first, so a
    secant proposes the next R.
    """
    weights = weights / weights.min()
    centre = state.log()
    ceiling = min(LARGEST, WIDEST / float(weights.max()))
    at_centre = enclosure.over(centre, weights)
    local, residual = at_centre.rate, weighted_residual(at_centre, centre)
    if not local < 1.0 or not math.isfinite(residual):
        return None
    least = residual / (1.0 - local)  # no smaller ball can be mapped into itself
    proved: list[tuple[float, float]] = []
    good_radius, bad_radius = 0.0, math.inf
    proposal = max(1e-4, 4 * least)
    used = 0
    while used < evaluations and proposal <= ceiling:
        rate = enclosure.over(centre, weights, proposal).rate
        used += 1
        passes = rate < 1.0 and residual <= (1.0 - rate) * proposal
        if passes:
            good_radius = proposal
            proved.append((proposal, rate))
        else:
            bad_radius = proposal
        if bad_radius <= 1.1 * good_radius or (not proved and proposal < 1.01 * least):
            break
        guess = (
            0.95 * proposal * (1.0 - local) / max(rate - local, 1e-15)
            if math.isfinite(rate)
            else 0.1 * proposal
        )
        if good_radius == 0.0:
            proposal = min(max(guess, 1.001 * least, 1e-3 * proposal), 0.5 * bad_radius)
        elif math.isinf(bad_radius):
            proposal = min(max(guess, 1.2 * good_radius), 16 * good_radius)
        else:
            inside = 1.05 * good_radius < guess < bad_radius / 1.05
            proposal = guess if inside else math.sqrt(good_radius * bad_radius)
    if not proved:
        return None
    proved.sort()
    radius, rate = proved[-1]
    return Ball(centre, weights, radius, rate, residual, local, tuple(proved))
