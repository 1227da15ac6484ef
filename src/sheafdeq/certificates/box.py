"""A bound over every positive state (``docs/theory.md``, Theorem 29), on boxes that shrink.

K_0 = [beta - 1, beta + 1 + B] contains T(H) for every positive H. Let K_{k+1} be K_k intersected
with an enclosure of T(K_k). By induction T(K_k) is inside K_k, every start is in K_k after k + 1
steps (with messages of bounded age: after finitely many), and Theorem 29 applies on K_k. So the
rate may be proved on any K_k: the boxes shrink where the model contracts, and the bound improves
with them. Very thin boxes are widened to 1e-9; a wider box only makes the bound larger.

The rate is proved on a box a little wider than K_k, and the box a certificate states lies between
the two, so that rounding can neither exclude a state of K_k (such as the equilibrium) nor include
one for which nothing is proved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.certificates.interval import Interval, scaled_up
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.errors import InputError

__all__ = ["InvariantBox", "global_box"]


@dataclass(frozen=True, eq=False)
class InvariantBox:
    """The last box examined. ``rate`` below one is a proof; otherwise it is only the bound that was
    reached."""

    centre: Tensor  # (n, c) log coordinates
    width: Tensor  # (n, c) half widths of a box that contains K_k
    # (n, c) half widths of the wider box on which the rate is proved; they also weight the metric
    weights: Tensor
    rate: float
    rounds: int  # k: the rate holds on K_k
    first_rate: float  # the bound on K_0

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the box of states, rounded outward: it contains K_k, and the rate
        is proved on all of it."""
        between = self.width + 0.5 * (self.weights - self.width)
        return (self.centre - between).exp(), (self.centre + between).exp()


def _widened(centre: Tensor, width: Tensor) -> Tensor:
    """Half widths of the box the rate is proved on: by far more than the rounding of exp, log and
    sums at this size."""
    return width * (1 + 1e-9) + 1e-12 * (1 + centre.abs())


@torch.no_grad()
def global_box(enclosure: SheafEnclosure, *, rounds: int = 60, patience: int = 3) -> InvariantBox:
    """Shrink the invariant box until the rate over it is below one and stops improving, or until
    nothing shrinks any more."""
    centre, width = enclosure.invariant_box()
    width = width.clamp(min=1e-9)
    first, stale = float("inf"), 0
    box = InvariantBox(centre, width, _widened(centre, width), float("inf"), 0, float("inf"))
    for k in range(rounds):
        weights = _widened(centre, width)
        try:
            enclosed = enclosure.over(centre, weights, 1.0)
        except (
            InputError,
            ArithmeticError,
        ):  # drives so large that the box cannot be represented above the row guard, or at all
            return box
        first = enclosed.rate if k == 0 else first
        # proved already, and hardly better here
        if box.rate < 1.0 and 1.0 - enclosed.rate < 1.1 * (1.0 - box.rate):
            return box
        box = InvariantBox(centre, width, weights, enclosed.rate, k, first)
        if not torch.isfinite(enclosed.rates).all():
            return box
        # log T over the box twice: by values, and from the centre by the slope bound.
        slope = scaled_up(enclosed.gain.upper * enclosed.reach, 4)
        at_centre = enclosed.image_at_centre.log()
        image = enclosed.image.log().intersect(
            Interval(at_centre.midpoint, scaled_up(at_centre.radius + slope, 2))
        )
        following = image.intersect(Interval(centre, width))
        size = float((following.radius / width).max()) if width.numel() else 0.0
        stale = (
            stale + 1
            if float(following.radius.max()) > 0.99 * float(width.max()) and size > 0.99
            else 0
        )
        if stale >= patience:
            break
        centre, width = following.midpoint, following.radius.clamp(min=1e-9)
    return box
