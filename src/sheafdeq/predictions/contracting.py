r"""From a certified rate to a bound for every entry (``docs/theory.md``, Proposition 41).

If T contracts a weighted Thompson metric with q on a set that it maps into itself and that contains
the state z, the equilibrium z* of that set satisfies, entry by entry,

    |log z*_i - log z_i| <= r_i + q w_i max_j (r_j / w_j) / (1 - q),    r = |log T(z) - log z|.

For features in x +- R take r over all of them; q must then hold for all of them, as it does where
a theorem gives it for every input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.predictions.arithmetic import Interval, scaled_up

__all__ = ["log_residual", "reach_by_rate"]


def log_residual(image: Interval, state: Tensor) -> Tensor:
    """|log(T(z) / z)| <= |T(z) - z| / min(T(z), z)."""
    difference = (image - Interval.point(state)).magnitude
    return scaled_up(difference / torch.minimum(image.lower, state), 4)


def reach_by_rate(residual: Tensor, rate: float, weights: Tensor | None = None) -> Tensor:
    """(n, c) bounds from residuals (n, c) and a certified ``rate`` below one."""
    w = torch.ones_like(residual) if weights is None else weights.expand_as(residual)
    largest = scaled_up(residual / w, 2).amax() if residual.numel() else residual.sum()
    return scaled_up(residual + w * (largest * rate / (1.0 - rate)) * (1 + 1e-12), 8)
