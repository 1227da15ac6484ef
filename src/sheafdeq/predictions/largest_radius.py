"""The largest radius of feature noise for which each node's label is proved to stay the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.predictions.predictions import Predictions

__all__ = ["LargestRadius", "largest_radius"]


@dataclass(frozen=True, eq=False)
class LargestRadius:
    """One radius a node. A proof for R is one for every smaller radius, so the largest counts."""

    radius: Tensor  # (n,) the largest tried radius at which the label is proved; 0: at none
    tried: tuple[float, ...]  # radii, ascending
    proved: tuple[int, ...]  # nodes proved at each of them

    def to_json(self) -> dict[str, Any]:
        """Plain numbers: every node, and the quartiles."""
        at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
        quantiles = torch.quantile(self.radius, at).tolist() if self.radius.numel() else []
        return {
            "tried": list(self.tried),
            "proved": list(self.proved),
            "quartiles": quantiles,
            "radius": [float(f"{value:.6g}") for value in self.radius.tolist()],
        }


def largest_radius(
    prove: Callable[[float], Predictions],
    *,
    lowest: float = 1e-10,
    highest: float = 1e-1,
    factor: float = 1.5,
) -> LargestRadius:
    """Bisection on a logarithmic scale, for all nodes together.

    Args:
        prove: radius -> predictions, e.g. ``Prover(model, graph, form="sheared").at``.
        lowest, highest: where to look, 0 < lowest < highest.
        factor: how close two neighbouring radii get before the search between them stops.
    """
    if not 0 < lowest < highest < math.inf or not factor > 1:
        raise InputError(
            "0 < lowest < highest and a factor above 1 are needed, got "
            f"{lowest!r}, {highest!r} and {factor!r}"
        )
    found: dict[float, Tensor] = {}

    def proved(radius: float) -> Tensor:
        if radius not in found:
            found[radius] = prove(radius).proved
        return found[radius]

    spans = [(lowest, highest)]
    while spans:
        low, high = spans.pop()
        # Proved at `high` means proved at `low`, whatever the bounds there say.
        if bool(proved(high).all()) or not bool(proved(low).any()):
            continue
        if high <= low * factor or torch.equal(proved(low) | proved(high), proved(high)):
            continue
        middle = math.sqrt(low * high)
        spans += [(low, middle), (middle, high)]
    radii = sorted(found)
    best = torch.zeros(len(found[radii[0]]), dtype=torch.float64)
    for radius in radii:
        best = torch.where(found[radius], radius, best)
    counts = tuple(int(found[radius].sum()) for radius in radii)
    return LargestRadius(best, tuple(radii), counts)
