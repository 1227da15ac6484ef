"""What a gate and its slopes can be over a box of (y+, y-), both nonnegative.

    tanh       tanh a - tanh b                 slopes  sech^2 a,  -sech^2 b
    rational   a/(1+a) - b/(1+b)               slopes  (1+a)^-2,  -(1+b)^-2
    balance    (a - b) / (eps + a + b)         slopes  (eps+2b)/(eps+a+b)^2,  -(eps+2a)/(eps+a+b)^2

Each gate grows with a and falls with b, so its range over a box is that of two corners. The slopes
of the first two fall with their one argument. For *balance* the first slope falls with a; at fixed
a it grows with b up to b = a and falls from there (its derivative has the sign of a - b), so its
largest value is at the smallest a and the b nearest to it, its smallest at the largest a and one
end of b. The second slope is the same with a and b exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.predictions.arithmetic import EPSILON, Interval

__all__ = ["KNOWN_GATES", "GateRange", "gate_range"]

KNOWN_GATES = ("balance", "rational", "tanh")
SLACK = 64 * EPSILON
"""Relative, of slopes: at most eight elementary operations, exp among them (16 * 2^-52)."""
VALUE_SLACK = {"tanh": 40 * EPSILON, "rational": 8 * EPSILON, "balance": 8 * EPSILON}
"""Absolute, of values: all intermediate quotients are below one."""


@dataclass(frozen=True, eq=False)
class GateRange:
    """Enclosures over a box of (a, b)."""

    value: Interval  # phi
    by_plus: Interval  # d phi / d a >= 0
    by_minus: Interval  # -d phi / d b >= 0


def _widened(low: Tensor, high: Tensor) -> Interval:
    """Slopes: nonnegative, computed without cancellation."""
    return Interval.between((low * (1 - SLACK)).clamp(min=0), high * (1 + SLACK))


def _value(
    function: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval, slack: float
) -> Interval:
    low = function(a.lower.clamp(min=0), b.upper) - slack
    high = function(a.upper, b.lower.clamp(min=0)) + slack
    return Interval.between(low.clamp(min=-1.0), high.clamp(max=1.0))


def gate_range(name: str, floor: float, a: Interval, b: Interval) -> GateRange:
    """``floor`` is eps of the balance gate; ``a`` and ``b`` are y+ and y-."""
    slack = VALUE_SLACK.get(name, 0.0)
    a_low, a_high = a.lower.clamp(min=0), a.upper.clamp(min=0)
    b_low, b_high = b.lower.clamp(min=0), b.upper.clamp(min=0)
    if name == "tanh":

        def steepness(y: Tensor) -> Tensor:
            # sech^2 = 4 e^-2y / (1 + e^-2y)^2, without cancellation for large y
            small = torch.exp(-2.0 * y)
            return 4.0 * small / (1.0 + small).square()

        return GateRange(
            _value(lambda p, m: torch.tanh(p) - torch.tanh(m), a, b, slack),
            _widened(steepness(a_high), steepness(a_low)),
            _widened(steepness(b_high), steepness(b_low)),
        )
    if name == "rational":
        return GateRange(
            _value(lambda p, m: p / (1 + p) - m / (1 + m), a, b, slack),
            _widened((1 + a_high) ** -2.0, (1 + a_low) ** -2.0),
            _widened((1 + b_high) ** -2.0, (1 + b_low) ** -2.0),
        )
    if name == "balance":

        def slope(first: Tensor, second: Tensor) -> Tensor:
            return (floor + 2 * second) / (floor + first + second).square()

        def steepest(low: Tensor, other_low: Tensor, other_high: Tensor) -> Tensor:
            return slope(low, torch.minimum(torch.maximum(low, other_low), other_high))

        def flattest(high: Tensor, other_low: Tensor, other_high: Tensor) -> Tensor:
            return torch.minimum(slope(high, other_low), slope(high, other_high))

        return GateRange(
            _value(lambda p, m: (p - m) / (floor + p + m), a, b, slack),
            _widened(flattest(a_high, b_low, b_high), steepest(a_low, b_low, b_high)),
            _widened(flattest(b_high, a_low, a_high), steepest(b_low, a_low, a_high)),
        )
    raise ArithmeticError(f"no enclosure of the gate {name!r} is known: {', '.join(KNOWN_GATES)}")
