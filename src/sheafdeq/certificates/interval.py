"""Tensors of real intervals, sound under floating point.

An :class:`Interval` is a pair (midpoint, radius) of float64 tensors; it stands for every real
tensor x with |x - midpoint| <= radius. Each operation returns an interval that contains the exact
result for all members of its operands.

Rounding. Sums, differences, products, quotients and square roots of float64 tensors are correctly
rounded (relative error at most 2^-53); every bound computed from them is widened by 4 * 2^-52
relative plus :data:`TINY` absolute (the latter covers underflow). exp, log and tanh of the tensor
library are vectorised functions with a documented error of one unit in the last place (2^-52
relative); they are widened by 16 * 2^-52, ``pow`` by 64 * 2^-52. A product of matrices with inner
length k has error at most k 2^-53 / (1 - k 2^-53) times |A||B| in whatever order it is summed; it
is widened by (k + 4) 2^-52 |A||B|. A test checks the elementary functions against 50-digit decimal
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["EPSILON", "TINY", "Interval", "matmul", "scaled_up"]

EPSILON = 2.0**-52
TINY = 1e-300
ARITHMETIC = 4 * EPSILON
TRANSCENDENTAL = 16 * EPSILON
POWER = 64 * EPSILON


def _up(x: Tensor, slack: float = ARITHMETIC) -> Tensor:
    return x + (x.abs() * slack + TINY)


def _down(x: Tensor, slack: float = ARITHMETIC) -> Tensor:
    return x - (x.abs() * slack + TINY)


def scaled_up(x: Tensor, terms: int) -> Tensor:
    """An upper bound of a float64 sum of ``terms`` non-negative products that was rounded to
    ``x``."""
    return x * (1.0 + (terms + 4) * EPSILON) + TINY


@dataclass(frozen=True, eq=False)
class Interval:
    """All x with |x - midpoint| <= radius; ``radius`` is non-negative, both are float64 of one
    shape."""

    midpoint: Tensor
    radius: Tensor

    # ------------------------------------------------------------------ making and reading

    @staticmethod
    def point(x: Tensor) -> Interval:
        """The single value x, taken as an exact number."""
        return Interval(x, torch.zeros_like(x))

    @staticmethod
    def between(lower: Tensor, upper: Tensor) -> Interval:
        """The smallest representable interval that contains [lower, upper]."""
        midpoint = 0.5 * lower + 0.5 * upper
        radius = torch.maximum(upper - midpoint, midpoint - lower)
        # lower == upper is exact: no slack, so that constants stay constants.
        return Interval(midpoint, torch.where(radius == 0, radius, _up(radius)))

    @property
    def lower(self) -> Tensor:
        """Lower ends, rounded down."""
        return torch.where(self.radius == 0, self.midpoint, _down(self.midpoint - self.radius))

    @property
    def upper(self) -> Tensor:
        """Upper ends, rounded up."""
        return torch.where(self.radius == 0, self.midpoint, _up(self.midpoint + self.radius))

    @property
    def magnitude(self) -> Tensor:
        """sup |x|."""
        return torch.where(
            self.radius == 0, self.midpoint.abs(), _up(self.midpoint.abs() + self.radius)
        )

    @property
    def mignitude(self) -> Tensor:
        """inf |x|."""
        return _down(self.midpoint.abs() - self.radius).clamp(min=0)

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor."""
        return self.midpoint.shape

    def contains(self, x: Tensor) -> bool:
        """Whether every entry of x lies in its interval."""
        return bool(((self.lower <= x) & (x <= self.upper)).all())

    # ------------------------------------------------------------------ shape

    def map(self, rearrange: Callable[[Tensor], Tensor]) -> Interval:
        """Apply an operation that only moves entries (view, index, transpose) to both halves."""
        return Interval(rearrange(self.midpoint), rearrange(self.radius))

    def view(self, *shape: int) -> Interval:
        """``reshape`` of both halves."""
        return self.map(lambda t: t.reshape(shape))

    def __getitem__(self, index: object) -> Interval:
        return self.map(lambda t: t[index])  # type: ignore[index]

    @property
    def mT(self) -> Interval:
        """Last two axes exchanged."""
        return self.map(lambda t: t.transpose(-1, -2))

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Interval) -> Interval:
        midpoint = self.midpoint + other.midpoint
        return Interval(midpoint, _up(self.radius + other.radius + EPSILON * midpoint.abs()))

    def __neg__(self) -> Interval:
        return Interval(-self.midpoint, self.radius)

    def __sub__(self, other: Interval) -> Interval:
        return self + (-other)

    def scale(self, factor: Tensor) -> Interval:
        """Entrywise product with exact numbers."""
        midpoint = self.midpoint * factor
        return Interval(midpoint, _up(self.radius * factor.abs() + EPSILON * midpoint.abs()))

    def __mul__(self, other: Interval) -> Interval:
        """Entrywise product, by the four products of ends (tight for wide intervals)."""
        a, b, c, d = self.lower, self.upper, other.lower, other.upper
        products = (a * c, a * d, b * c, b * d)
        low = torch.minimum(
            torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3])
        )
        high = torch.maximum(
            torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3])
        )
        return Interval.between(_down(low), _up(high))

    def divide_by_positive(self, other: Interval) -> Interval:
        """Entrywise quotient; ``other`` must be above zero."""
        return self.divide_between(other.lower, other.upper)

    def divide_between(self, lower: Tensor, upper: Tensor) -> Interval:
        """Entrywise quotient by numbers between two positive ends.

        Taken by its ends because an interval from a tiny to a large number has, as midpoint and
        radius, a lower end that rounds to zero.
        """
        if not bool((lower > 0).all()):
            raise ZeroDivisionError("interval division by an interval that is not above zero")
        a, b = self.lower, self.upper
        low = torch.minimum(a / lower, a / upper)
        high = torch.maximum(b / lower, b / upper)
        return Interval.between(_down(low), _up(high))

    def square(self) -> Interval:
        """x^2, non-negative."""
        return Interval.between(
            _down(self.mignitude.square()).clamp(min=0), _up(self.magnitude.square())
        )

    def total(self, dim: int) -> Interval:
        """Sum over one axis."""
        terms = self.shape[dim]
        radius = self.radius.sum(dim) + (terms + 4) * EPSILON * self.midpoint.abs().sum(dim)
        return Interval(self.midpoint.sum(dim), scaled_up(radius, terms))

    def intersect(self, other: Interval) -> Interval:
        """Members of both: two enclosures of the same thing are combined into a better one."""
        low = torch.maximum(self.lower, other.lower)
        high = torch.minimum(self.upper, other.upper)
        return Interval.between(torch.minimum(low, high), torch.maximum(low, high))

    def hull(self, other: Interval) -> Interval:
        """Members of either."""
        return Interval.between(
            torch.minimum(self.lower, other.lower), torch.maximum(self.upper, other.upper)
        )

    # ------------------------------------------------------------------ monotone functions

    def _monotone(self, function: Callable[[Tensor], Tensor], slack: float) -> Interval:
        return Interval.between(
            _down(function(self.lower), slack), _up(function(self.upper), slack)
        )

    def tanh(self) -> Interval:
        """tanh, inside [-1, 1]."""
        low, high = _down(self.lower.tanh(), TRANSCENDENTAL), _up(self.upper.tanh(), TRANSCENDENTAL)
        return Interval.between(low.clamp(min=-1.0), high.clamp(max=1.0))

    def exp(self) -> Interval:
        """exp."""
        return self._monotone(torch.exp, TRANSCENDENTAL)

    def log(self) -> Interval:
        """Logarithm of a positive interval."""
        return self._monotone(torch.log, TRANSCENDENTAL)

    def sqrt(self) -> Interval:
        """Square root of a non-negative interval."""
        return Interval.between(
            _down(self.lower.clamp(min=0).sqrt()).clamp(min=0), _up(self.upper.sqrt())
        )

    def power(self, exponent: float) -> Interval:
        """x^p of a non-negative interval, p >= 1."""
        if exponent == 1.0:
            return self
        if exponent == 2.0:
            return self.square()
        return Interval.between(
            _down(self.lower.clamp(min=0).pow(exponent), POWER).clamp(min=0),
            _up(self.upper.pow(exponent), POWER),
        )

    def root(self, exponent: float) -> Interval:
        """x^(1/p) of a non-negative interval."""
        if exponent == 1.0:
            return self
        if exponent == 2.0:
            return self.sqrt()
        # rounded: the relative error of x^(1/p) grows with |log x| / p, see the slack
        inverse = 1.0 / exponent
        lower, upper = self.lower.clamp(min=0), self.upper
        slack = POWER * (
            1.0 + upper.log().abs().clamp(max=800.0).amax().item() if upper.numel() else 1.0
        )
        slack_low = POWER * (
            1.0 + lower.clamp(min=TINY).log().abs().amax().item() if lower.numel() else 1.0
        )
        return Interval.between(
            _down(lower.pow(inverse), slack_low).clamp(min=0), _up(upper.pow(inverse), slack)
        )

    def relu(self) -> Interval:
        """max(x, 0)."""
        return Interval.between(self.lower.clamp(min=0), self.upper.clamp(min=0))

    def step_function(self) -> Interval:
        """The derivative of ReLU: 0, 1, or [0, 1] where the sign is open."""
        return Interval.between(
            (self.lower > 0).to(self.midpoint.dtype), (self.upper >= 0).to(self.midpoint.dtype)
        )


def matmul(a: Interval | Tensor, b: Interval | Tensor) -> Interval:
    """Matrix product of intervals or exact matrices, with the rounding of the product included.

    midpoint = A B,   radius = |A| (rad B + g |B|) + rad A (|B| + rad B),   g = (k + 4) 2^-52
    """
    left = a if isinstance(a, Interval) else None
    right = b if isinstance(b, Interval) else None
    a_mid = left.midpoint if left is not None else a
    b_mid = right.midpoint if right is not None else b
    assert isinstance(a_mid, Tensor)
    assert isinstance(b_mid, Tensor)
    k = a_mid.shape[-1]
    midpoint = a_mid @ b_mid
    b_abs = b_mid.abs()
    b_widened = b_abs * ((k + 4) * EPSILON)
    if right is not None:
        b_widened = b_widened + right.radius
    radius = a_mid.abs() @ b_widened
    if left is not None:
        radius = radius + left.radius @ (b_abs if right is None else b_abs + right.radius)
    return Interval(midpoint, scaled_up(radius, 2 * k + 8))
