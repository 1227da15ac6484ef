r"""The equilibrium of a cascade, enclosed level by level (``docs/theory.md``, Theorem 39).

For level l with centre z (exact numbers) and the level below within its own proved reach, find an
entrywise reach e with

    r + |J_own| e + |J_below| e_below + |J_features| R  <=  e        (in log coordinates),

r the residual of the centre and every |J| an upper bound over the box. Then the level's equilibrium
is within e of z, for every state below within its reach and all features within R.

|J_own| e is formed with largest factors (:mod:`.own_map`), without a matrix. The slope by the level
below is formed edge by edge (:mod:`.level`), a few nodes at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade
from sheafdeq.predictions.arithmetic import Interval, scaled_up
from sheafdeq.predictions.below import Below, Box
from sheafdeq.predictions.contracting import log_residual
from sheafdeq.predictions.inputs import cascade_inputs
from sheafdeq.predictions.level import LevelEnclosure
from sheafdeq.predictions.own_map import OwnMap

__all__ = ["LevelBound", "Tower", "built", "enclosed_tower", "pieces", "settled"]

EDGES_AT_ONCE = 512
"""Small enough for intermediate blocks to stay in the cache: three times faster than 2048."""
ROUNDS = 8
"""Boxes tried for one level before it is given up."""
WIDEST = 1e3
"""Bounds beyond this (in log coordinates) say nothing."""
SWEEPS = 400
"""Applications of |J_own| in the search for a reach; the rate of a level is below one."""


@dataclass(frozen=True, eq=False)
class LevelBound:
    """What is proved of one level, with what it was made of."""

    reach: Tensor  # (n, c) e
    residual: float  # largest r
    rate: float  # largest row of |J_own| 1
    gain: float  # largest |J_below| e_below / max e_below (or / R for the first level)
    rounds: int


@dataclass(frozen=True, eq=False)
class Tower:
    """The proved box of every level up to the first that failed."""

    levels: tuple[LevelBound, ...]
    reason: str | None  # why the tower stops early; None when all levels are proved
    seconds: float

    @property
    def top(self) -> Tensor | None:
        """(n, c) reach of the last level in log coordinates, if every level is proved."""
        return self.levels[-1].reach if self.reason is None else None


@torch.no_grad()
def enclosed_tower(model: SheafCascade, graph: Graph, state: Tensor, radius: float = 0.0) -> Tower:
    """Enclose the equilibrium near ``state`` (n, L c), for all features within ``radius``."""
    return built(model, graph, state, radius, _level)


Bounding = Callable[[LevelEnclosure, Below, Tensor, float], LevelBound | str]
"""(a level, what is below it, its state, how large the change below is) -> its box, or why none."""


def built(
    model: SheafCascade, graph: Graph, state: Tensor, radius: float, bounding: Bounding
) -> Tower:
    """A tower whose levels are bounded one after the other, up to the first that is not."""
    started = time.perf_counter()
    inputs = cascade_inputs(model, graph, radius)
    bounds: list[LevelBound] = []
    c, reason = model.width, None
    for level in range(model.levels):
        enclosure = LevelEnclosure(model, graph, level, inputs)
        own = state[:, level * c : (level + 1) * c].contiguous()
        try:
            if level == 0:
                below, scale = enclosure.reading.first(graph.num_nodes), radius
            else:
                lower = state[:, (level - 1) * c : level * c].contiguous()
                reach = bounds[-1].reach
                below = enclosure.reading.above(Box.around(lower, reach), reach)
                scale = max(radius, float(reach.max()) if reach.numel() else 0.0)
            found = bounding(enclosure, below, own, scale)
        except ArithmeticError as error:
            reason = f"level {level + 1}: {error}"
            break
        if isinstance(found, str):
            reason = f"level {level + 1}: {found}"
            break
        bounds.append(found)
    return Tower(tuple(bounds), reason, time.perf_counter() - started)


def _level(
    enclosure: LevelEnclosure, below: Below, state: Tensor, scale: float
) -> LevelBound | str:
    """A reach e for one level, or why there is none."""
    guess = torch.full_like(state, max(1e-9, 16.0 * scale))
    why = "no box was found that the level maps into itself"
    for tried in range(1, ROUNDS + 1):
        box = Box.around(state, guess)
        whole = _Whole.of(enclosure, below, box)
        residual = log_residual(whole.image, state)
        needed = scaled_up(residual + whole.coupling, 2)
        if not bool(torch.isfinite(needed).all()):
            return "the coupling to the level below is not bounded over its box (coupling)"
        rate = float(whole.own.sizes(torch.ones_like(state)).max()) if state.numel() else 0.0
        reach = settled(whole.own, needed)
        if reach is None:
            why = f"the rate of the level over the box is {rate:.3g}, not below one (rate)"
            guess = guess * 0.25
            continue
        if bool((reach <= guess).all()):
            gain = float(whole.coupling.max()) / scale if scale and state.numel() else 0.0
            worst = float(residual.max()) if state.numel() else 0.0
            return LevelBound(reach, worst, rate, gain, tried)
        if float(reach.max()) > 1.0:
            return f"the bound grows to {float(reach.max()):.3g} in log coordinates (coupling)"
        guess = torch.maximum(reach * 1.5, guess * 0.1)
        why = "the box that was found is not mapped into itself (coupling)"
    return why


@dataclass(frozen=True, eq=False)
class _Whole:
    """All rows of a level, and |J_own| as an operator."""

    image: Interval
    coupling: Tensor
    own: OwnMap  # with the largest factors of the box

    @staticmethod
    def of(enclosure: LevelEnclosure, below: Below, box: Box) -> _Whole:
        parts = [enclosure.rows(below, box, *ends) for ends in pieces(enclosure.graph)]

        def joined(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors) if tensors else box.centre.new_zeros(0)

        def pair(pick: str) -> tuple[Tensor, Tensor]:
            return (
                joined([getattr(part, pick)[0] for part in parts]),
                joined([getattr(part, pick)[1] for part in parts]),
            )

        return _Whole(
            Interval(
                joined([part.image.midpoint for part in parts]),
                joined([part.image.radius for part in parts]),
            ),
            joined([part.coupling for part in parts]),
            OwnMap(
                enclosure.graph,
                enclosure.weights["channel_mixing"],
                pair("edges"),
                pair("diagonal"),
                joined([part.by_plus for part in parts]),
                joined([part.by_minus for part in parts]),
                box.upper,
            ),
        )


def settled(own: OwnMap, needed: Tensor) -> Tensor | None:
    """e with needed + |J_own| e <= e, by iteration; None when there seems to be none."""
    e = needed
    for _ in range(SWEEPS):
        image = scaled_up(needed + own.sizes(e), 2)
        if not bool((image < WIDEST).all()):
            return None
        if bool((image <= e).all()):
            return e
        done = bool((image <= e * (1 + 1e-3)).all())
        e = image * (1 + 2e-2) if done else image
    return None


def pieces(graph: Graph) -> list[tuple[int, int]]:
    """Runs of nodes with about :data:`EDGES_AT_ONCE` edges each."""
    pointer = graph.pointer
    found, first = [], 0
    while first < graph.num_nodes:
        last = int(torch.searchsorted(pointer, pointer[first] + EDGES_AT_ONCE, right=True)) - 1
        last = min(max(last, first + 1), graph.num_nodes, first + EDGES_AT_ONCE)
        found.append((first, last))
        first = last
    return found
