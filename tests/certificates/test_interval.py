"""Intervals contain what they must, also where rounding bites."""

from decimal import Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafdeq.certificates.interval import Interval, matmul
from sheafdeq.theory.enclosure import DOWN, UP, tanh_bounds

SIZES = st.floats(-8, 8).filter(lambda x: abs(x) > 1e-9)  # the oracle has 50 digits after the point


def random_interval(shape: tuple[int, ...], seed: int) -> Interval:
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Interval(middle, torch.rand(shape, generator=generator, dtype=torch.float64))


def member(interval: Interval, seed: int) -> torch.Tensor:
    where = (
        2
        * torch.rand(
            interval.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        - 1
    )
    return interval.midpoint + where * interval.radius


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_operations_contain_the_images_of_members(seed):
    a, b = random_interval((4, 5), seed), random_interval((4, 5), seed + 1)
    x, y = member(a, seed + 2), member(b, seed + 3)
    assert (a + b).contains(x + y)
    assert (a - b).contains(x - y)
    assert (a * b).contains(x * y)
    assert a.square().contains(x.square())
    assert a.tanh().contains(x.tanh())
    assert a.exp().contains(x.exp())
    assert a.exp().log().contains(x)
    assert a.relu().contains(x.relu())
    assert a.step_function().contains((x > 0).double())
    positive = b.exp()
    assert a.divide_by_positive(positive).contains(x / y.exp())
    assert positive.power(3.0).root(3.0).contains(y.exp())
    assert positive.sqrt().contains(y.exp().sqrt())
    assert matmul(a, b.mT).contains(x @ y.T)
    assert matmul(x, b.mT).contains(x @ y.T)
    assert a.total(1).contains(x.sum(1))


@given(SIZES)
@settings(max_examples=60, deadline=None)
def test_elementary_functions_against_decimal_arithmetic(x):
    value = torch.tensor([x], dtype=torch.float64)
    exact = Decimal(x)
    for enclosed, low, high in (
        (Interval.point(value).exp(), DOWN.exp(exact), UP.exp(exact)),
        (Interval.point(value.abs()).tanh(), *tanh_bounds(abs(exact))),
    ):
        assert Decimal(float(enclosed.lower)) <= low
        assert Decimal(float(enclosed.upper)) >= high
    if x > 0:
        enclosed = Interval.point(value).log()
        assert Decimal(float(enclosed.lower)) <= DOWN.ln(exact) <= Decimal(float(enclosed.upper))


def test_the_rounding_of_a_matrix_product_is_inside():
    # One row whose exact product is 1 while float64 loses it to cancellation.
    a = torch.tensor([[1e16, 1.0, -1e16]], dtype=torch.float64)
    b = torch.ones(3, 1, dtype=torch.float64)
    assert matmul(a, b).contains(torch.ones(1, 1, dtype=torch.float64))


def test_constants_stay_constants():
    x = torch.randn(5, dtype=torch.float64)
    assert torch.equal(Interval.point(x).lower, x)
    assert torch.equal(Interval.between(x, x).radius, torch.zeros_like(x))


def test_intersection_and_hull():
    a = Interval.between(torch.tensor([0.0]).double(), torch.tensor([2.0]).double())
    b = Interval.between(torch.tensor([1.0]).double(), torch.tensor([3.0]).double())
    both, either = a.intersect(b), a.hull(b)
    assert both.contains(torch.tensor([1.5]).double())
    assert not both.contains(torch.tensor([0.5]).double())
    assert either.contains(torch.tensor([0.0]).double())
    assert either.contains(torch.tensor([3.0]).double())


def test_division_by_zero_is_refused():
    with pytest.raises(ZeroDivisionError):
        Interval.point(torch.ones(1).double()).divide_by_positive(
            Interval(torch.zeros(1).double(), torch.ones(1).double())
        )


def test_division_between_a_tiny_and_a_large_number():
    one = Interval.point(torch.ones(1, dtype=torch.float64))
    tiny, large = (
        torch.tensor([5e-13], dtype=torch.float64),
        torch.tensor([1e5], dtype=torch.float64),
    )
    quotient = one.divide_between(tiny, large)
    assert float(quotient.upper) >= 2e12
    assert float(quotient.lower) <= 1e-5
    with pytest.raises(ZeroDivisionError):
        one.divide_between(torch.zeros(1, dtype=torch.float64), large)
