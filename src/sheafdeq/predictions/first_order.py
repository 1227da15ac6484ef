r"""How a cascade's equilibrium moves with the features, to first order: fixed matrices and defects.

Level by level, in log coordinates and with M the slopes at the stored state (any fixed numbers
would do; the closer to the slopes, the better the bound that is made of them),

    G_l = M_own G_l + M_below G_(l-1) + M_x          (n c, n f),    G_l = d u_l / d x.

G is iterated in float32, column by column, and stops when it hardly moves. What it misses of the
equation is summed over each row and bounded with the rounding: the *defect*. Nothing here is
claimed of a radius; :mod:`.sheared` makes bounds of it (``docs/theory.md``, Theorem 43).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models import SheafCascade
from sheafdeq.predictions.arithmetic import scaled_up
from sheafdeq.predictions.below import Box
from sheafdeq.predictions.inputs import cascade_inputs
from sheafdeq.predictions.level import LevelEnclosure, RowSlopes
from sheafdeq.predictions.own_map import OwnMap
from sheafdeq.predictions.tower import pieces

__all__ = ["FirstOrder", "LevelSlopes", "first_order"]

POINT = 1e-200
"""A radius that is none, so that the slopes by the features are formed."""
COLUMNS = 250
"""Columns of G iterated together."""
ITERATIONS = 60
SETTLED = 3e-7
"""Largest change of a column, relative to its largest entry, at which iteration stops."""
UNIT = 2.0**-23
MOST_BYTES = 4 * 2**30
"""Of one matrix G: about 4,600 nodes with 24 entries and two features each."""


@dataclass(frozen=True, eq=False)
class LevelSlopes:
    """One level: fixed matrices, and how far features within 1 move it to first order."""

    edge: Tensor  # (e, c, m) float32: M_below and M_x by the variables of the source
    own: Tensor  # (n, c, m) float32: by those of the node itself
    map: OwnMap  # M_own
    total: Tensor  # (n, c) sum of |G| over a row, at least
    defect: Tensor  # (n, c) the same of M_own G + M_below G_below + M_x - G


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """All levels of one cascade on one graph at one state; good for every radius."""

    state: Tensor  # (n, L c)
    levels: tuple[LevelSlopes, ...]
    top: Tensor  # (n, c, n f) float32: G of the last level
    seconds: float


@torch.no_grad()
def first_order(model: SheafCascade, graph: Graph, state: Tensor) -> FirstOrder:
    """G of every level at ``state`` (n, L c); model, graph and state in float64."""
    n, f, c = graph.num_nodes, graph.x.shape[1], model.width
    if 4 * n * c * n * f > MOST_BYTES:
        raise InputError(
            f"the first-order form keeps {n * c:,} x {n * f:,} numbers, more than "
            f"{MOST_BYTES // 2**30} GiB: examine fewer graphs at once"
        )
    started = time.perf_counter()
    inputs = cascade_inputs(model, graph, POINT)
    levels: list[LevelSlopes] = []
    top = torch.zeros(0)
    for level in range(model.levels):
        enclosure = LevelEnclosure(model, graph, level, inputs)
        own = state[:, level * c : (level + 1) * c].contiguous()
        none = torch.zeros_like(own)
        if level:
            lower = state[:, (level - 1) * c : level * c].contiguous()
            below = enclosure.reading.above(Box.around(lower, none), none)
        else:
            below = enclosure.reading.first(n)
        box = Box.around(own, none)
        rows = [enclosure.slopes(below, box, *ends) for ends in pieces(graph)]
        slopes, drive = _matrices(enclosure, rows, own), levels[-1].total if level else none[:, :0]
        edge, near, own_map = slopes
        right, size = _right_side(graph, edge, near, top if level else None, drive, n * f)
        solved = _solve(own_map, right)
        total, defect = _sums(own_map, solved, right, size)
        levels.append(LevelSlopes(edge, near, own_map, total, defect))
        top = solved
    return FirstOrder(state, tuple(levels), top, time.perf_counter() - started)


def _matrices(
    enclosure: LevelEnclosure, rows: list[RowSlopes], own: Tensor
) -> tuple[Tensor, Tensor, OwnMap]:
    """The midpoints of the slopes at the centre, which are any numbers near them."""
    edge = torch.cat([part.edge.midpoint.float() for part in rows])
    near = torch.cat([part.own.midpoint.float() for part in rows])
    turned = [torch.cat([part.turned[k].midpoint for part in rows]) for k in (0, 1)]
    blocks, diagonal = ((m.clamp(min=0), (-m).clamp(min=0)) for m in turned)
    by_plus, by_minus = (
        torch.cat([getattr(part, name).midpoint for part in rows])
        for name in ("by_plus", "by_minus")
    )
    mixing = enclosure.weights["channel_mixing"]
    return edge, near, OwnMap(enclosure.graph, mixing, blocks, diagonal, by_plus, by_minus, own)


def _right_side(
    graph: Graph, edge: Tensor, near: Tensor, below: Tensor | None, total: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """M_below G_below + M_x (n, c, n f), and the row sums of |M_below| |G_below| + |M_x|."""
    n, c, m = near.shape
    f = width // n
    states = m - f if below is not None else 0
    sizes = torch.cat([total, total.new_ones(n, f)], 1) if states else total.new_ones(n, f)
    size = torch.bmm(near.abs().double(), sizes.unsqueeze(2)).squeeze(2)
    heard = torch.bmm(edge.abs().double(), sizes[graph.source].unsqueeze(2)).squeeze(2)
    size = size.index_add(0, graph.target, heard)
    result = near.new_zeros(n, c, width)
    pointer = graph.pointer.tolist()
    for node in range(n):
        first, last = pointer[node], pointer[node + 1]
        sources = torch.cat([graph.source[first:last], torch.tensor([node])])
        blocks = torch.cat([edge[first:last], near[node : node + 1]])  # (k, c, m)
        row = result[node]
        if below is not None:
            wide = blocks[:, :, :states].transpose(0, 1).reshape(c, -1)
            torch.mm(wide, below[sources].view(-1, width), out=row)
        by_features = blocks[:, :, states:]  # (k, c, f)
        columns = (sources.view(-1, 1) * f + torch.arange(f)).view(-1)
        row.index_add_(1, columns, by_features.transpose(0, 1).reshape(c, -1))
    return result, scaled_up(size, 4 * (len(edge) + 1))


def _solve(own: OwnMap, right: Tensor) -> Tensor:
    """G with G = M_own G + right, nearly."""
    apply = own.columns()
    result = torch.empty_like(right)
    for first in range(0, right.shape[2], COLUMNS):
        part = right[:, :, first : first + COLUMNS].contiguous()
        x = part
        for _ in range(ITERATIONS):
            image = apply(x).add_(part)
            change = (image - x).abs_().amax((0, 1))
            x = image
            if bool((change <= SETTLED * image.abs().amax((0, 1)) + 1e-30).all()):
                break
        result[:, :, first : first + COLUMNS] = x
    return result


def _sums(own: OwnMap, solved: Tensor, right: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Row sums of |G| and of the defect, both with everything that float32 can hide."""
    apply = own.columns()
    n, c, width = solved.shape
    total, missed = (torch.zeros(n, c, dtype=torch.float64) for _ in range(2))
    for first in range(0, width, COLUMNS):
        x = solved[:, :, first : first + COLUMNS].contiguous()
        gap = apply(x).add_(right[:, :, first : first + COLUMNS]).sub_(x)
        total += x.double().abs().sum(2)
        missed += gap.double().abs().sum(2)
    total = scaled_up(total, width)
    if not bool(torch.isfinite(total).all()):
        raise ArithmeticError("the first-order form is not finite (rate)")
    deepest = int(own.graph.pointer.diff().max())
    rounding = own.column_rounding(total)
    # Two rounded sums of numbers no larger than |M_own| |G| + |right| + |G|, and the products.
    sums = 4 * UNIT * (own.sizes(total) + rounding + size + total)
    products = size * (((deepest + 1) * (c + 2) + 8) * UNIT)
    return total, scaled_up(missed + rounding + sums + products + 1e-28, width)
