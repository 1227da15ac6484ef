"""Numbers known to lie between two floats, and the directed decimal arithmetic that proves it.

The binary floating-point library gives no portable bound on the error of ``math.tanh`` or
``math.exp``, so nothing here relies on it. Proofs are carried out with :mod:`decimal` at 50 digits:
its four operations are exact up to the rounding direction asked for (down or up), and its ``exp``
is correctly rounded, to which one further unit in the last place is added on each side. Only the
last step returns to binary floats, outward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

__all__ = ["DOWN", "UP", "Enclosure", "outward", "tanh_bounds"]

DIGITS = 50
DOWN = Context(prec=DIGITS, rounding=ROUND_FLOOR)
UP = Context(prec=DIGITS, rounding=ROUND_CEILING)
_ONE, _TWO = Decimal(1), Decimal(2)


@dataclass(frozen=True)
class Enclosure:
    """A real number proved to satisfy ``lower <= number <= upper``.

    Use ``upper`` wherever a guarantee needs an upper bound (rates) and ``lower`` to show that a
    bound fails.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(
                f"an enclosure needs lower <= upper, got [{self.lower!r}, {self.upper!r}]"
            )

    @property
    def width(self) -> float:
        """Upper minus lower."""
        return self.upper - self.lower

    @property
    def midpoint(self) -> float:
        """A value in the middle, for display only: it proves nothing."""
        return self.lower + 0.5 * self.width

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


def outward(lower: Decimal, upper: Decimal) -> Enclosure:
    """The tightest floats around ``[lower, upper]`` (comparison of Decimal with float is exact)."""
    low, high = float(lower), float(upper)
    if Decimal(low) > lower:
        low = math.nextafter(low, -math.inf)
    if Decimal(high) < upper:
        high = math.nextafter(high, math.inf)
    return Enclosure(low, high)


def tanh_bounds(x: Decimal) -> tuple[Decimal, Decimal]:
    """Lower and upper bound of ``tanh x = 1 - 2 / (exp(2 x) + 1)`` for ``x >= 0``."""
    if x < 0:
        raise ValueError(f"tanh_bounds needs x >= 0, got {x}")
    exp_low = max(_ONE, DOWN.exp(DOWN.multiply(_TWO, x)).next_minus(DOWN))
    exp_high = UP.exp(UP.multiply(_TWO, x)).next_plus(UP)
    low = DOWN.subtract(_ONE, UP.divide(_TWO, DOWN.add(exp_low, _ONE)))
    high = UP.subtract(_ONE, DOWN.divide(_TWO, UP.add(exp_high, _ONE)))
    return max(Decimal(0), low), min(_ONE, high)
