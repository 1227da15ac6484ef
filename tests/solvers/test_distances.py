"""Thompson's distance judged row by row is the distance entry by entry."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sheafdeq.distances import THOMPSON
from sheafdeq.solvers.iterate import _broken_rows


def entry_by_entry(new: Tensor, old: Tensor) -> Tensor:
    change = (new - old) / old
    near = change.abs() < 0.5
    logarithms = torch.where(near, torch.log1p(change.clamp(-0.5, 0.5)), new.log() - old.log())
    inside = ((new > 0) & (old > 0)).all(dim=1)
    values = logarithms.abs().amax(dim=1)
    return torch.where(inside, values, torch.full_like(values, torch.inf))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-7, 1e-3, 0.9, 3.0])
def test_thompson_is_the_largest_logarithm(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    old = torch.rand(300, 17, generator=generator, dtype=dtype) + 0.5
    new = old * (1 + size * torch.rand(300, 17, generator=generator, dtype=dtype))
    for first, second in ((new, old), (old, new)):
        assert torch.equal(THOMPSON(first, second), entry_by_entry(first, second))


@pytest.mark.parametrize("entry", [0.0, -1.0, float("nan"), float("inf")])
def test_thompson_is_infinite_outside_the_cone(entry: float) -> None:
    old, new = torch.ones(3, 4), torch.full((3, 4), 1.1)
    new[1, 2] = entry
    assert torch.isinf(THOMPSON(new, old)).tolist() == [False, True, False]
    broken = _broken_rows(new).tolist()
    assert broken == [False, entry not in (0.0, -1.0), False]


def test_empty_states_have_no_distance() -> None:
    assert THOMPSON(torch.ones(3, 0), torch.ones(3, 0)).tolist() == [0.0, 0.0, 0.0]
    assert THOMPSON(torch.ones(0, 3), torch.ones(0, 3)).shape == (0,)
    assert _broken_rows(torch.ones(2, 0)).tolist() == [False, False]
