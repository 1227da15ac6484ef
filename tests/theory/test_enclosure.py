"""Directed decimal arithmetic behind the enclosures (used by Lemmas 8 to 10)."""

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafdeq.theory.enclosure import outward, tanh_bounds


@given(x=st.floats(0, 60))
def test_tanh_bounds_bracket_a_longer_computation(x):
    exact = Decimal(x)
    low, high = tanh_bounds(exact)
    with localcontext() as context:
        context.prec = 90
        e = (2 * exact).exp()
        reference = (e - 1) / (e + 1)
    assert low <= reference <= high
    assert high - low < Decimal("1e-47")
    assert float(low) == pytest.approx(math.tanh(x), rel=1e-15, abs=1e-45)


@given(numerator=st.integers(-(10**30), 10**30), denominator=st.integers(1, 10**20))
def test_outward_contains_and_is_tight(numerator, denominator):
    with localcontext() as context:
        context.prec = 60
        value = Decimal(numerator) / Decimal(denominator)
    enclosure = outward(value, value)
    assert Decimal(enclosure.lower) <= value <= Decimal(enclosure.upper)
    assert enclosure.upper in (enclosure.lower, math.nextafter(enclosure.lower, math.inf))


def test_negative_argument():
    with pytest.raises(ValueError, match=">= 0"):
        tanh_bounds(Decimal(-1))
