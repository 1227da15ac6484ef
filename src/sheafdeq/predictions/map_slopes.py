r"""From the slope by the blocks of a sheaf to the slope by its maps.

With K[a, b, c] = d T[a, c] / d P[a, b] for an edge block P = w F_t^T F_s, and K_D the same for the
diagonal block D = I - (1/deg) sum F_t^T F_t of the edge's target,

    d T[a, c] / d F_s[i, b] = w F_t[i, a] K[a, b, c],
    d T[a, c] / d F_t[i, j] = [a = j] (w sum_b F_s[i, b] K[a, b, c]
                                       - (1/deg) sum_b F_t[i, b] K_D[a, b, c])
                              - (1/deg) F_t[i, a] K_D[a, j, c].
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.predictions.arithmetic import EPSILON, Interval, Slope, contract, divided, scaled_up

__all__ = ["by_maps", "part_of", "transported"]


def by_maps(
    maps: Interval, weight: Interval, degree: Tensor, steep: Interval, own: Interval
) -> Interval:
    """(k, c, 2 d d) d T / d (F_s, F_t).

    ``maps`` (k, 2, d, d), ``weight`` w and ``degree`` of the target (k,), ``steep`` K and ``own``
    K_D (k, d, d, q), all of the same k edges.
    """
    k, _, d, _ = maps.shape
    q = steep.shape[3]
    source, target = maps[:, 0], maps[:, 1]
    weighted_source = contract("kia,k->kia", source, weight)
    weighted_target = contract("kia,k->kia", target, weight)
    shared = divided(target, degree.view(-1, 1, 1))
    through_source = contract("kia,kabc->kacib", weighted_target, steep)
    diagonal = contract("kib,kabc->kaci", weighted_source, steep)
    diagonal = diagonal - contract("kib,kabc->kaci", shared, own)
    placed = diagonal.map(
        lambda t: torch.diag_embed(t.permute(0, 2, 3, 1)).permute(0, 3, 1, 2, 4)
    )  # (k, a, c, i, j), zero unless j = a
    through_target = placed - contract("kia,kajc->kacij", shared, own)
    shape = (k, d * q, d * d)
    return Interval(
        torch.cat([t.midpoint.reshape(shape) for t in (through_source, through_target)], 2),
        torch.cat([t.radius.reshape(shape) for t in (through_source, through_target)], 2),
    )


def transported(blocks: Interval, slope: Slope) -> Slope:
    """Blocks (k, d, d) times slopes (k, d * q, m), channel by channel."""
    k, d, _ = blocks.shape
    q, m = slope.midpoint.shape[1] // d, slope.midpoint.shape[2]
    rows = slope.midpoint.reshape(k, d, q * m)
    midpoint = torch.bmm(blocks.midpoint, rows).reshape(slope.midpoint.shape)
    narrow = (slope.spread + slope.size * ((d + 4) * EPSILON)).reshape(k, d, q)
    spread = blocks.midpoint.abs() @ narrow + blocks.radius @ slope.reach.reshape(k, d, q)
    return Slope(midpoint, scaled_up(spread.reshape(k, d * q), 2 * d + 8), slope.weights)


def part_of(blocks: Interval, sign: int, *, largest: bool) -> Tensor:
    """The positive (sign 1) or negative (sign -1) part of blocks: its largest or smallest value."""
    if sign > 0:
        return (blocks.upper if largest else blocks.lower).clamp(min=0)
    return (-(blocks.lower if largest else blocks.upper)).clamp(min=0)
