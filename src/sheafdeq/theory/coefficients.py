"""The two contraction coefficients of a shifted tanh, with rigorous enclosures.

    mu(beta) = sup over t of   |t| sech^2(t) / (beta + tanh t)   (paper)
    m(beta)  = sup over a, b >= 0 of (a sech^2 a + b sech^2 b) / (beta + tanh a - tanh b)   (split
             form)

Both are computed through their inverses, because those separate into one-dimensional suprema with a
single critical point each (``docs/theory.md``, Lemmas 8 and 9):

    mu(beta) <= r  <=>  beta >= B(r),   B(r) = sup over b >= 0 of  b sech^2(b) / r + tanh b
    m(beta)  <= r  <=>  beta >= A(r) + B(r),   A(r) = sup over a >= 0 of  a sech^2(a) / r - tanh a

B is attained where ``2 b tanh b = 1 + r``; A where ``2 a tanh a = 1 - r`` if r < 1, and A = 0
otherwise. So both coefficients fall below one at the same shift, the root of ``s tanh s = 1``:
beta_0 = 1.19967864...

Three relatives (Lemma 10): ``mu_positive`` restricts mu to t >= 0 (nonnegative propagation);
``m_rational`` and ``m_balance`` belong to two other gates of the repaired update and have closed
forms.

No grid and no libm: every bound is proved in directed decimal arithmetic (:mod:`.enclosure`).
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from functools import lru_cache

from sheafdeq.errors import InputError
from sheafdeq.theory.enclosure import DOWN, UP, Enclosure, outward, tanh_bounds

__all__ = [
    "m",
    "m_balance",
    "m_rational",
    "mu",
    "mu_positive",
    "shift_for_m",
    "shift_for_mu",
    "threshold_shift",
]

_Bounds = tuple[Decimal, Decimal]
_ZERO, _ONE, _TWO = Decimal(0), Decimal(1), Decimal(2)
_NEGATIVE, _POSITIVE, _BOTH = (+1,), (-1,), (+1, -1)  # which suprema bound the shift
_BRACKET = Decimal("1e-40")  # half width of the proved bracket around a critical point


def mu(beta: float) -> Enclosure:
    """Enclosure of mu(beta), the scalar coefficient of ``tanh + beta``, for ``beta > 1``.

    Strong and ordinary subhomogeneity coincide for a scalar map; for the signed sheaf update mu
    bounds only the change under scaling (Lemmas 7, 8 and 12; Theorem 13).
    """
    return _coefficient(_checked_shift(beta), _NEGATIVE)


def m(beta: float) -> Enclosure:
    """Enclosure of m(beta), the coefficient of ``tanh(a) - tanh(b) + beta`` with ``a, b >= 0``
    (Lemma 9).

    The repaired update contracts the Thompson metric with m(beta) when its maps are fixed
    (Corollary 19). ``mu(beta) <= m(beta)``, with equality exactly when ``beta <=
    threshold_shift()``.
    """
    return _coefficient(_checked_shift(beta), _BOTH)


def mu_positive(beta: float) -> Enclosure:
    """Enclosure of ``sup over t >= 0 of t sech^2(t) / (beta + tanh t)``: the rate of a nonnegative
    propagation (Lemma 10)."""
    return _coefficient(_checked_shift(beta), _POSITIVE)


def m_rational(beta: float) -> Enclosure:
    """Enclosure of ``beta - sqrt(beta^2 - 1)``, the coefficient of ``a/(1+a) - b/(1+b) + beta``
    (Lemma 10)."""
    return _closed_form(_checked_shift(beta), _ONE)


def m_balance(beta: float) -> Enclosure:
    """Enclosure of ``2 (beta - sqrt(beta^2 - 1))``, the coefficient of ``(a - b)/(eps + a + b) +
    beta`` (Lemma 10).

    Below one exactly when beta > 5/4.
    """
    return _closed_form(_checked_shift(beta), _TWO)


def shift_for_mu(rate: float) -> Enclosure:
    """Enclosure of the smallest shift beta with ``mu(beta) <= rate`` (``rate > 0``)."""
    return outward(*_smallest_shift(_checked_rate(rate), _NEGATIVE))


def shift_for_m(rate: float) -> Enclosure:
    """Enclosure of the smallest shift beta with ``m(beta) <= rate`` (``rate > 0``)."""
    return outward(*_smallest_shift(_checked_rate(rate), _BOTH))


@lru_cache(maxsize=1)
def threshold_shift() -> Enclosure:
    """Enclosure of beta_0 = 1.19967864..., above which mu and m are below one: ``beta_0 tanh beta_0
    = 1``."""
    low, high = _critical_point(_TWO)
    return outward(low, high)


# ---------------------------------------------------------------------- the proofs in arithmetic


@lru_cache(maxsize=4096)
def _coefficient(beta: float, signs: tuple[int, ...]) -> Enclosure:
    """Bisect the inverse (rate -> smallest shift, strictly decreasing) on floats; every accepted
    end is proved."""
    exact = Decimal(beta)
    guess = _float_coefficient(beta, signs)
    low, high = guess * (1 - 1e-14), guess * (1 + 1e-14)
    while _smallest_shift(Decimal(low), signs)[0] < exact:  # low is no proved lower bound yet
        low *= 0.999
    while _smallest_shift(Decimal(high), signs)[1] > exact:  # high is no proved upper bound yet
        high *= 1.001
    while True:
        middle = low + 0.5 * (high - low)
        if middle <= low or middle >= high:  # neighbouring floats
            return Enclosure(low, high)
        shift_low, shift_high = _smallest_shift(Decimal(middle), signs)
        if shift_high <= exact:
            high = middle
        elif shift_low >= exact:
            low = middle
        else:  # beta lies inside a 40-digit enclosure: only the neighbouring floats can be proved
            below, above = math.nextafter(middle, 0.0), math.nextafter(middle, math.inf)
            low = below if _smallest_shift(Decimal(below), signs)[0] >= exact else low
            high = above if _smallest_shift(Decimal(above), signs)[1] <= exact else high
            return Enclosure(low, high)


def _smallest_shift(rate: Decimal, signs: tuple[int, ...]) -> _Bounds:
    """Bounds of B(r) (sign +1), A(r) (sign -1; zero from r = 1 on), or their sum."""
    low, high = _ZERO, _ZERO
    for sign in signs:
        if sign > 0 or rate < _ONE:
            part_low, part_high = _supremum(rate, sign)
            low, high = DOWN.add(low, part_low), UP.add(high, part_high)
    return low, high


def _closed_form(beta: float, factor: Decimal) -> Enclosure:
    """``factor (beta - sqrt(beta^2 - 1)) = factor / (beta + sqrt(beta^2 - 1))``, the form without
    cancellation."""
    exact = Decimal(beta)
    low = DOWN.sqrt(DOWN.subtract(DOWN.multiply(exact, exact), _ONE)).next_minus(DOWN)
    high = UP.sqrt(UP.subtract(UP.multiply(exact, exact), _ONE)).next_plus(UP)
    return outward(
        DOWN.divide(factor, UP.add(exact, high)), UP.divide(factor, DOWN.add(exact, low))
    )


def _supremum(rate: Decimal, sign: int) -> _Bounds:
    """Bounds of ``sup over s >= 0 of s sech^2(s) / r + sign tanh(s)`` (at ``2 s tanh s = 1 + sign
    r``).

    The lower bound is the value at one end of a proved bracket of the critical point; the upper
    bound evaluates every factor of the value at the end of the bracket where it is largest.
    """
    if sign > 0:
        left, right = _critical_point(DOWN.add(_ONE, rate), UP.add(_ONE, rate))
    else:
        left, right = _critical_point(DOWN.subtract(_ONE, rate), UP.subtract(_ONE, rate))
    left_low, left_high = tanh_bounds(left)
    right_high = tanh_bounds(right)[1]
    low = DOWN.divide(DOWN.multiply(left, _sech2(left_high, DOWN)), rate)
    high = UP.divide(UP.multiply(right, _sech2(left_low, UP)), rate)
    if sign > 0:
        return DOWN.add(low, left_low), UP.add(high, right_high)
    return DOWN.subtract(low, left_high), UP.subtract(high, left_low)


def _sech2(tanh: Decimal, context: Context) -> Decimal:
    """``1 - tanh^2`` rounded in the direction of ``context`` (the square is rounded the other
    way)."""
    if context is DOWN:
        return max(_ZERO, DOWN.subtract(_ONE, UP.multiply(tanh, tanh)))
    return UP.subtract(_ONE, DOWN.multiply(tanh, tanh))


def _critical_point(value: Decimal, value_high: Decimal | None = None) -> _Bounds:
    """Proved bracket of the root of ``2 s tanh s = value`` (unique: the left side increases from
    0)."""
    value_high = value if value_high is None else value_high
    s = Decimal(_float_root(float(value)))
    with localcontext(DOWN):
        for _ in range(2):  # Newton: 15, 30, 50 digits; the proof is the sign check below
            t = tanh_bounds(s)[0]
            s -= (2 * s * t - value) / (2 * (t + s * (1 - t * t)))
    radius = max(_BRACKET, _BRACKET * s)
    for _ in range(40):
        left, right = max(_ZERO, DOWN.subtract(s, radius)), UP.add(s, radius)
        below = UP.multiply(_TWO, UP.multiply(left, tanh_bounds(left)[1])) <= value
        above = DOWN.multiply(_TWO, DOWN.multiply(right, tanh_bounds(right)[0])) >= value_high
        if below and above:
            return left, right
        radius *= 4
    raise ArithmeticError(f"no bracket of 2 s tanh s = {value} could be proved")  # pragma: no cover


# ---------------------------------------------------------------------- starting points (floats;
# nothing is proved here)


def _float_coefficient(beta: float, signs: tuple[int, ...]) -> float:
    """Approximate inverse of the smallest shift."""

    def shift(rate: float) -> float:
        total = 0.0
        for sign in signs:
            if sign > 0 or rate < 1.0:
                s = _float_root(1.0 + sign * rate)
                total += s / math.cosh(s) ** 2 / rate + sign * math.tanh(s)
        return total

    low, high = 1e-3 / beta, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if shift(middle) > beta else (low, middle)
    return math.sqrt(low * high)


def _float_root(value: float) -> float:
    """Approximate root of ``2 s tanh s = value``, by Newton from the left."""
    s = max(0.5 * value, math.sqrt(0.5 * value))
    for _ in range(8):
        t = math.tanh(s)
        s -= (2.0 * s * t - value) / (2.0 * (t + s * (1.0 - t * t)))
    return s


def _checked_shift(beta: float) -> float:
    beta = float(beta)
    if not (math.isfinite(beta) and beta > 1.0):
        raise InputError(
            f"the shift must be finite and above 1, or the update is not positive; got {beta!r}"
        )
    return beta


def _checked_rate(rate: float) -> Decimal:
    rate = float(rate)
    if not (math.isfinite(rate) and rate > 0.0):
        raise InputError(f"the rate must be finite and positive, got {rate!r}")
    return Decimal(rate)
