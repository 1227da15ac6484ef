"""Lemmas 8, 9 and 10: the coefficients and their enclosures."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from sheafdeq.errors import InputError
from sheafdeq.theory.coefficients import (
    m,
    m_balance,
    m_rational,
    mu,
    mu_positive,
    shift_for_m,
    shift_for_mu,
    threshold_shift,
)
from sheafdeq.theory.enclosure import Enclosure

shifts = st.floats(1.0001, 50.0)
COEFFICIENTS = [mu, m, mu_positive, m_rational, m_balance]


def sech2(t: float) -> float:
    return 1.0 / math.cosh(t) ** 2 if abs(t) < 300 else 0.0


def ratio_mu(beta: float, t: float) -> float:
    return abs(t) * sech2(t) / (beta + math.tanh(t))


def ratio_m(beta: float, a: float, b: float) -> float:
    return (a * sech2(a) + b * sech2(b)) / (beta + math.tanh(a) - math.tanh(b))


@pytest.mark.parametrize(
    ("beta", "expected"),
    [
        (1.2, 0.99912),
        (1.25, 0.8814),
        (1.3, 0.79117),
        (1.4, 0.66039),
        (1.6, 0.50097),
        (1.603, 0.4992),
        (2.0, 0.3416),
    ],
)
def test_mu_table(beta, expected):
    assert mu(beta).midpoint == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [
        (1.2, 0.99915),
        (1.25, 0.91055),
        (1.3, 0.84777),
        (1.4, 0.75390),
        (1.6, 0.62749),
        (2.0, 0.47877),
        (3.0, 0.30688),
    ],
)
def test_m_table(beta, expected):
    assert m(beta).midpoint == pytest.approx(expected, abs=1e-5)


def test_threshold_is_the_root_of_s_tanh_s():
    threshold = threshold_shift()
    assert threshold.width < 1e-15
    assert threshold.lower * math.tanh(threshold.lower) == pytest.approx(1.0, abs=1e-15)
    above, below = threshold.upper * (1 + 1e-12), threshold.lower * (1 - 1e-12)
    for coefficient in (mu, m):  # both cross one at the same shift
        assert coefficient(above).upper < 1 < coefficient(below).lower


@settings(max_examples=20)
@given(beta=shifts)
def test_enclosures_are_a_few_floats_wide(beta):
    for coefficient in COEFFICIENTS:
        enclosure = coefficient(beta)
        assert 0 < enclosure.lower <= enclosure.upper
        assert enclosure.width <= 4 * math.ulp(enclosure.upper)


@given(beta=shifts, t=st.floats(-40, 40))
def test_no_point_exceeds_mu(beta, t):
    assert ratio_mu(beta, t) <= mu(beta).upper * (1 + 1e-12 + 1e-15 / (beta - 1))
    if t >= 0:
        assert ratio_mu(beta, t) <= mu_positive(beta).upper * (1 + 1e-12)


@given(beta=shifts, a=st.floats(0, 40), b=st.floats(0, 40))
def test_no_point_exceeds_m_or_its_relatives(beta, a, b):
    slack = 1 + 1e-12 + 1e-15 / (beta - 1)
    assert ratio_m(beta, a, b) <= m(beta).upper * slack
    p, s = a / (1 + a), b / (1 + b)
    assert (p * (1 - p) + s * (1 - s)) / (beta + p - s) <= m_rational(beta).upper * slack
    for eps in (1e-6, 1.0):
        d = eps + a + b
        xi = (a - b) / d
        value = (a * (d - (a - b)) + b * (d + (a - b))) / d**2 / (beta + xi)
        assert value <= m_balance(beta).upper * slack


@given(beta=shifts)
def test_the_suprema_are_attained_or_approached(beta):
    """The lower ends are real too: a numerical maximiser comes within 1e-8 of them."""
    best = -minimize_scalar(
        lambda b: -ratio_mu(beta, -b), bounds=(0, 40), method="bounded", options={"xatol": 1e-12}
    ).fun
    assert best >= mu(beta).lower * (1 - 1e-6)
    r = m(beta).midpoint
    b = _root(1 + r)
    a = _root(1 - r) if r < 1 else 0.0
    assert ratio_m(beta, a, b) >= m(beta).lower * (1 - 1e-8)
    rho = m_rational(beta).midpoint
    p, s = (1 - rho) / 2, (1 + rho) / 2
    assert (p * (1 - p) + s * (1 - s)) / (beta + p - s) == pytest.approx(rho, rel=1e-9)
    xi = -beta + math.sqrt(beta * beta - 1)
    assert (1 - xi * xi) / (beta + xi) == pytest.approx(m_balance(beta).midpoint, rel=1e-6)


def _root(value: float) -> float:
    low, high = 0.0, 2.0 + value
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * middle * math.tanh(middle) < value else (low, middle)
    return low


@settings(max_examples=20)
@given(rate=st.floats(0.01, 5.0))
def test_inverse_round_trip(rate):
    for coefficient, shift_for in ((mu, shift_for_mu), (m, shift_for_m)):
        shift = shift_for(rate)
        assert coefficient(shift.upper).lower <= rate
        assert coefficient(shift.lower).upper >= rate
    assert shift_for_mu(rate).lower <= shift_for_m(rate).upper


@settings(max_examples=20)
@given(one=shifts, two=shifts)
def test_monotone_and_ordered(one, two):
    low, high = sorted((one, two))
    for coefficient in COEFFICIENTS:
        assert coefficient(high).lower <= coefficient(low).upper
    assert mu(low).lower <= m(low).upper
    if low > threshold_shift().upper * 1.001:
        assert mu(low).upper < m(low).lower
    assert m_rational(low).upper < 1
    assert (m_balance(low).upper < 1) == (low > 1.25) or low == 1.25


def test_the_papers_rounded_value_is_no_upper_bound():
    assert mu(1.2).lower > 0.99
    assert mu(1.603).upper < 0.4992


@pytest.mark.parametrize("beta", [1.0, 0.5, -3.0, math.inf, math.nan])
def test_shift_out_of_range(beta):
    for coefficient in COEFFICIENTS:
        with pytest.raises(InputError, match="above 1"):
            coefficient(beta)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_rate_out_of_range(rate):
    with pytest.raises(InputError, match="rate"):
        shift_for_m(rate)


def test_an_enclosure_knows_what_it_contains():
    enclosure = Enclosure(1.0, 2.0)
    assert 1.5 in enclosure
    assert 2.5 not in enclosure
    assert enclosure.midpoint == 1.5
    with pytest.raises(ValueError, match="lower <= upper"):
        Enclosure(2.0, 1.0)
