r"""A verified tower in sheared boxes: first order exactly, the rest entry by entry (Theorem 43).

With the fixed matrices of :mod:`.first_order` and dx = x - stored features, |dx| <= R, find reaches
eps_l with

    r + |J - M| (own and below) e + R defect + |M_below| eps_below + |M_own| eps  <=  eps,
    e = R (row sums of |G|) + eps,

every J over the boxes of width e. Then the equilibrium of level l is within eps_l of
u_l + G_l dx, for every x. Absolute values are taken of what is left beyond first order alone, so
what cancels between neighbours and levels stays cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade
from sheafdeq.predictions.arithmetic import EPSILON, Interval, Slope, contract, scaled_up
from sheafdeq.predictions.below import Below, Box
from sheafdeq.predictions.contracting import log_residual
from sheafdeq.predictions.first_order import FirstOrder, LevelSlopes
from sheafdeq.predictions.layer_norm import normalised_rows
from sheafdeq.predictions.lead import Centre, Lead
from sheafdeq.predictions.level import LevelEnclosure, RowSlopes
from sheafdeq.predictions.map_slopes import part_of
from sheafdeq.predictions.own_map import OwnMap
from sheafdeq.predictions.tower import LevelBound, Tower, built, pieces, settled

__all__ = ["Sheared", "sheared_leads", "sheared_tower"]

ROUNDS = 8
LARGEST = 1.0
"""Boxes beyond this (in log coordinates) are given up: no slope is near a fixed one there."""


@dataclass(frozen=True, eq=False)
class Sheared:
    """The tower, and the top level's bound beyond first order."""

    tower: Tower
    beyond: Tensor | None  # (n, c) eps of the last level; None where the tower stops early


@torch.no_grad()
def sheared_tower(model: SheafCascade, graph: Graph, first: FirstOrder, radius: float) -> Sheared:
    """Enclose the equilibria for all features within ``radius``, at the state of ``first``."""
    beyond = [graph.x.new_zeros(graph.num_nodes, 0)]

    def bound(level: LevelEnclosure, below: Below, own: Tensor, scale: float) -> LevelBound | str:
        slopes = first.levels[len(beyond) - 1]
        found = _level(level, below, slopes, own, beyond[-1], radius)
        if isinstance(found, str):
            return found
        beyond.append(found[1])
        return found[0]

    tower = built(model, graph, first.state, radius, bound)
    return Sheared(tower, beyond[-1] if tower.reason is None else None)


def _level(
    enclosure: LevelEnclosure,
    below: Below,
    slopes: LevelSlopes,
    state: Tensor,
    beyond: Tensor,
    radius: float,
) -> tuple[LevelBound, Tensor] | str:
    """The box e of one level and its share eps beyond first order, or why there is none."""
    straight = scaled_up(radius * slopes.total, 2)
    guess = scaled_up(1.2 * straight + 1e-9, 2)
    # features are exactly what dx says, so they have no share beyond first order
    lost = scaled_up(_through(enclosure.graph, slopes, beyond) + radius * slopes.defect, 4)
    why = "no box was found that the level maps into itself (coupling)"
    for tried in range(1, ROUNDS + 1):
        if not bool((guess <= LARGEST).all()):
            return f"the bound grows to {float(guess.max()):.3g} in log coordinates (coupling)"
        over = _over(enclosure, below, slopes, Box.around(state, guess))
        residual = log_residual(over.image, state)
        moved = over.largest.apart(over.smallest, guess)
        needed = scaled_up(residual + over.apart + moved + lost, 6)
        if not bool(torch.isfinite(needed).all()):
            return "the coupling to the level below is not bounded over its box (coupling)"
        rate = float(slopes.map.sizes(torch.ones_like(state)).max())
        found = settled(slopes.map, needed)
        if found is None:
            return f"the rate of the level at the state is {rate:.3g}, not below one (rate)"
        reach = scaled_up(straight + found, 2)
        if bool((reach <= guess).all()):
            gain = float((lost / beyond.max()).max()) if beyond.numel() and beyond.any() else 0.0
            return LevelBound(reach, float(residual.max()), rate, gain, tried), found
        guess = scaled_up(straight * 1.05 + torch.maximum(found * 1.5, guess * 0.05), 2)
    return why


@dataclass(frozen=True, eq=False)
class _Over:
    """A level over a box, against its fixed matrices."""

    image: Interval  # (n, c) T at the centre
    apart: Tensor  # (n, c) |J_below - M_below| e_below + |J_x - M_x| R
    largest: OwnMap  # factors of J_own, no less than those of M_own
    smallest: OwnMap


def _over(enclosure: LevelEnclosure, below: Below, slopes: LevelSlopes, box: Box) -> _Over:
    graph, fixed = enclosure.graph, slopes.map
    parts: list[RowSlopes] = []
    apart: list[Tensor] = []
    for first, last in pieces(graph):
        rows = enclosure.slopes(below, box, first, last)
        edge = _difference(rows.edge, slopes.edge[rows.edges]).reach
        own = _difference(rows.own, slopes.own[first:last]).reach
        apart.append(scaled_up(own.index_add(0, rows.local, edge), enclosure.deepest + 2))
        parts.append(rows)

    def ends(pick: str, at: Tensor) -> tuple[Tensor, Tensor]:
        values = [getattr(part, pick) for part in parts]
        low = torch.cat([value.lower for value in values]).clamp(min=0)
        return torch.minimum(low, at), torch.maximum(torch.cat([v.upper for v in values]), at)

    def blocks(index: int, at: tuple[Tensor, Tensor], largest: bool) -> tuple[Tensor, Tensor]:
        join = torch.maximum if largest else torch.minimum
        plus, minus = (
            join(torch.cat([part_of(p.turned[index], sign, largest=largest) for p in parts]), known)
            for sign, known in zip((1, -1), at, strict=True)
        )
        return plus, minus

    plus, minus = ends("by_plus", fixed.by_plus), ends("by_minus", fixed.by_minus)
    small, large = (
        OwnMap(
            graph,
            fixed.mixing,
            blocks(0, fixed.edges, bool(k)),
            blocks(1, fixed.diagonal, bool(k)),
            plus[k],
            minus[k],
            box.upper if k else box.lower,
        )
        for k in (0, 1)
    )
    image = Interval(
        torch.cat([part.image.midpoint for part in parts]),
        torch.cat([part.image.radius for part in parts]),
    )
    return _Over(image, torch.cat(apart), large, small)


def _difference(slope: Slope, fixed: Tensor) -> Slope:
    """Slope - fixed, entry by entry before absolute values are taken."""
    rounding = scaled_up(2 * EPSILON * slope.size, 2)
    spread = scaled_up(slope.spread + rounding, 2)
    return Slope(slope.midpoint - fixed.double(), spread, slope.weights)


def _through(graph: Graph, slopes: LevelSlopes, beyond: Tensor) -> Tensor:
    """(n, c) |M_below| eps_below."""
    n, width = beyond.shape
    if width == 0:
        return slopes.total.new_zeros(slopes.total.shape)
    own = torch.bmm(slopes.own[:, :, :width].abs().double(), beyond.unsqueeze(2)).squeeze(2)
    for first in range(0, len(slopes.edge), 2048):
        part = slice(first, first + 2048)
        heard = slopes.edge[part, :, :width].abs().double()
        heard = torch.bmm(heard, beyond[graph.source[part]].unsqueeze(2)).squeeze(2)
        own.index_add_(0, graph.target[part], heard)
    deepest = int(graph.pointer.diff().max()) if n else 0
    return scaled_up(own, (deepest + 1) * (width + 1))


@torch.no_grad()
def sheared_leads(
    state: Tensor,
    found: Sheared,
    first: FirstOrder,
    radius: float,
    weight: Tensor,
    bias: Tensor,
    norm: nn.LayerNorm,
) -> Lead:
    """Leads of the label of ``state`` (n, c), for all features within ``radius``.

    The lead of a over b has slope q (n, c) at the state; |q G|_1 R is what first order can take,
    |q| eps what is beyond it, and |slope - q| e what the readout bends.
    """
    assert found.beyond is not None
    reach, beyond, c = found.tower.levels[-1].reach, found.beyond, state.shape[1]
    z = normalised_rows(Interval.point(state), torch.zeros_like(state), norm).centre
    at_state = Centre.of(z, weight, Interval.point(bias.expand(len(state), -1)))

    def slope_over(box: Box) -> Interval:
        jacobian = normalised_rows(Interval.point(state), box.width, norm).jacobian
        log = jacobian * box.interval.map(lambda t: t.unsqueeze(1).expand(-1, c, -1))
        return contract("noc,ncm->nom", at_state.apart, log)

    fixed = slope_over(Box.around(state, torch.zeros_like(state))).midpoint  # q (n, o, c)
    over = slope_over(Box.around(state, reach))
    bent = scaled_up((over - Interval.point(fixed)).magnitude @ reach.unsqueeze(2), c + 2)
    past = scaled_up(fixed.abs() @ beyond.unsqueeze(2), c + 2)
    straight = torch.bmm(fixed.float(), first.top).double().abs().sum(2)
    # float32: c products and two rounded factors, against |q| times the row sums of |G|
    sizes = scaled_up(fixed.abs() @ first.levels[-1].total.unsqueeze(2), c + 2).squeeze(2)
    straight = scaled_up(straight + (c + 8) * 2.0**-23 * sizes + 1e-28, first.top.shape[2] + 4)
    return at_state.losing(scaled_up((bent + past).squeeze(2) + radius * straight, 8))
