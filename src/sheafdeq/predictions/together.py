r"""Contraction of several steps together (``docs/theory.md``, Theorem 42).

Let M be one fixed matrix, |v|_w = max |v_i| / w_i, and |M^k|_w <= theta^k for some k, theta < 1.
In the norm

    N(v) = max over 0 <= i < k of  theta^-i |M^i v|_w,      |v|_w <= N(v) <= kappa |v|_w,

with kappa = max theta^-i |M^i|_w, M contracts with theta. Where the Jacobian of the step in log
coordinates differs from M by at most s (weighted row sums) on the ball N(u - centre) <= rho, the
step contracts N with theta + kappa s; it maps the ball into itself when

    kappa r <= (1 - theta - kappa s) rho,        r = |log T(centre) - centre|_w.

Then there is one equilibrium in the ball, reached from everywhere in it by synchronous iteration.
N mixes the entries of different nodes, so nothing follows about late messages. The powers of M are
formed some rows at a time, with blocks for nodes and edges: memory is no limit, but k steps cost
2 k (stored entries of M) (entries of a state) operations. So M is rounded to float32, which any
fixed matrix may be (s counts how far it is from the Jacobian), and its powers are formed in float32
with the rounding bounded, which is faster than in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.models import SheafDEQ
from sheafdeq.predictions.arithmetic import EPSILON, Interval, scaled_up

__all__ = ["MOST_ENTRIES", "StepsTogether", "steps_together"]

MOST_ENTRIES = 80_000
"""Entries of a state (nodes times width) up to which powers are formed: 1,500 nodes of width 48
took 25 minutes of one core for fifteen steps (docs/predictions.md), and the cost grows with the
square."""
UNIT = 2.0**-24
"""Relative rounding of one operation in float32."""
UNDERFLOW = 1e-30
"""More than all results too small for float32 can add up to in one row."""
MOST_STEPS = 96
ROWS_AT_ONCE = 384
ENOUGH = 0.5
"""A product as small as this needs few further steps."""


@dataclass(frozen=True, eq=False)
class StepsTogether:
    """What was found: a bound, or the reason why there is none."""

    reach: Tensor | None  # (n, c) in log coordinates
    reason: str | None
    steps: int = 0  # k
    rate: float = 0.0  # theta + kappa s
    factor: float = 0.0  # kappa
    spread: float = 0.0  # s
    radius: float = 0.0  # rho, in the norm N


@torch.no_grad()
def steps_together(model: SheafDEQ, context: object, state: Tensor) -> StepsTogether:
    """A ball around ``state`` (n, c) on which some number of steps contracts together."""
    size = state.numel()
    if size > MOST_ENTRIES:
        edges: Any = getattr(context, "edges", None)
        stored = (len(state) + edges.num_edges) * state.shape[1] ** 2
        return StepsTogether(
            None,
            f"the product of several Jacobians is formed up to {MOST_ENTRIES:,} entries; this "
            f"state has {size:,}, and twenty steps would take {40.0 * stored * size:.0e} "
            "operations (rate)",
        )
    enclosure = SheafEnclosure(model, context)  # type: ignore[arg-type]
    centre = state.log()
    weights = torch.ones_like(state)
    point = enclosure.over(centre, weights, keep_slopes=True)
    assert point.slopes is not None
    rows = _in_float32(point.slopes.scale(point.gain.midpoint, weights))  # M, exact numbers
    powers = _power_norms(rows)
    if powers is None:
        return StepsTogether(
            None, f"no product of up to {MOST_STEPS} Jacobians is below one in size (rate)"
        )
    steps, theta, kappa = powers
    image = enclosure.image(centre, torch.zeros_like(centre)).log()
    residual = (image - Interval.point(centre)).magnitude
    start = kappa * float(residual.max()) * (1 + 1e-9)
    radius = max(4.0 * start / (1.0 - theta), 1e-13)
    spread = math.inf
    for _ in range(12):
        if not radius <= 1.0:
            break  # an entry would be uncertain by a factor of e: no Jacobian is constant there
        spread = _spread(enclosure, centre, weights, radius, rows)
        rate = (theta + kappa * spread) * (1 + 1e-12)
        if rate < 1.0 and start <= (1.0 - rate) * radius:
            bound = start / (1.0 - rate) * (1 + 1e-9)
            # The ball is around log(state) as it was rounded; the bound is around the state.
            reach = scaled_up(bound + 8 * EPSILON * (1.0 + centre.abs()), 4)
            return StepsTogether(reach, None, steps, rate, kappa, spread, radius)
        radius = radius * 0.3 if not rate < 1.0 else start / (1.0 - rate) * 1.5
    reason = (
        f"{steps} steps together contract with {theta:.4g} a step at the state (norms within a "
        f"factor {kappa:.3g}, residual {float(residual.max()):.2g}), but on no ball: the Jacobian "
        f"moves by {spread:.2g} (rate)"
    )
    return StepsTogether(None, reason, steps, theta, kappa)


def _spread(
    enclosure: SheafEnclosure,
    centre: Tensor,
    weights: Tensor,
    radius: float,
    rows: BlockMatrix,
) -> float:
    """s: how far the Jacobian is from M anywhere on the ball, in weighted row sums."""
    over = enclosure.over(centre, weights, radius, keep_slopes=True)
    assert over.slopes is not None
    gain = over.gain
    moved = over.slopes.scale(gain.midpoint, weights)
    ones = torch.ones_like(centre)
    apart = BlockMatrix(rows.edges, moved.own - rows.own, moved.edge - rows.edge).magnitude()
    rounding = EPSILON * 4 * moved.magnitude().apply(ones)
    wide = gain.midpoint.abs() * over.spread + gain.radius * over.reach
    total = scaled_up(apart.apply(ones) + rounding + wide, rows.terms + 8)
    return float(total.max()) if bool(torch.isfinite(total).all()) else math.inf


def _in_float32(matrix: BlockMatrix) -> BlockMatrix:
    """The nearest matrix of float32 numbers, held in float64."""
    return BlockMatrix(matrix.edges, matrix.own.float().double(), matrix.edge.float().double())


def _power_norms(matrix: BlockMatrix) -> tuple[int, float, float] | None:
    """(k, theta, kappa) with kappa / (1 - theta) smallest; None: no power is below one. The
    entries of ``matrix`` are float32 numbers.

    theta = |M^k|^(1/k). True powers: M^i = P_i + E_i with P_i as computed, E_i = E_(i-1) M + D_i
    and D_i the rounding of one product, so |E_i| <= sum_j |D_j| |M^(i-j)|, by powers whose true
    norm is known already. The rows of largest sum go first and say how many steps are worth it.
    """
    sums = matrix.magnitude().apply(matrix.own.new_ones(matrix.own.shape[:2]))
    order = sums.amax(1).argsort(descending=True)
    together = max(1, ROWS_AT_ONCE // matrix.width)
    transposed = _Transposed.of(matrix)
    groups = [order[first : first + together] for first in range(0, len(order), together)]
    found = transposed.row_sums(groups[0], sums, MOST_STEPS, ENOUGH)
    if found is None or not min(size for size, _ in found) < 1.0:
        return None  # these rows alone stay above one
    steps = len(found) + 2
    grown = 1.0 + 1.01 * matrix.own.shape[0] * matrix.width * UNIT  # a row sum, in any order
    while True:
        largest = [(0.0, 0.0)] * steps  # of the row sums of P_i and of |P_(i-1)| |M|
        for nodes in groups:
            found = transposed.row_sums(nodes, sums, steps)
            if found is None:
                return None
            largest = [
                (max(a, c), max(b, d)) for (a, b), (c, d) in zip(largest, found, strict=True)
            ]
        best = _best(
            [size * grown for size, _ in largest],
            [product * grown for _, product in largest],
            1.01 * (matrix.terms + 8) * UNIT,
        )
        if best is not None or steps >= MOST_STEPS - 1:
            return best
        steps = min(2 * steps, MOST_STEPS - 1)  # other rows are slower than those of largest sum


def _best(
    sizes: list[float], products: list[float], slack: float
) -> tuple[int, float, float] | None:
    """From the largest row sums of P_i and of |P_(i-1)| |M|, for i = 1, 2, ..."""
    norms, rounding = [1.0], [0.0]
    best: tuple[int, float, float] | None = None
    for k, (size, product) in enumerate(zip(sizes, products, strict=True), 1):
        rounding.append(product * slack * 1.01 + UNDERFLOW)
        error = sum(rounding[j] * norms[k - j] for j in range(1, k + 1))
        norms.append((size * (1 + 2 * slack) + error) * (1 + 1e-12))
        if not norms[-1] < 1e12:
            return best
        theta = norms[-1] ** (1.0 / k) * (1 + 1e-12)
        if 0.0 < theta < 1.0:
            kappa = max(norms[i] * theta**-i for i in range(k)) * (1 + 1e-12)
            if best is None or kappa / (1.0 - theta) < 0.99 * best[2] / (1.0 - best[1]):
                best = k, theta, kappa
    return best


@dataclass(frozen=True, eq=False)
class _Transposed:
    """M^T by nodes: what leaves a node, as one wide matrix, and where it goes."""

    shape: tuple[int, int]  # n, c
    wide: list[Tensor]  # (c, (k + 1) c) float32 for every node
    where: list[Tensor]  # (k + 1,) the nodes it multiplies

    @staticmethod
    def of(matrix: BlockMatrix) -> _Transposed:
        n, c = matrix.own.shape[:2]
        edges = matrix.edges
        order = edges.source.argsort(stable=True)
        counts = torch.bincount(edges.source, minlength=n).tolist()
        wide, where, first = [], [], 0
        for node in range(n):
            leaving = order[first : first + counts[node]]
            first += counts[node]
            blocks = torch.cat([matrix.own[node : node + 1], matrix.edge[leaving]])
            wide.append(blocks.permute(2, 0, 1).reshape(c, -1).float().contiguous())
            where.append(torch.cat([torch.tensor([node]), edges.target[leaving]]))
        return _Transposed((n, c), wide, where)

    def row_sums(
        self, nodes: Tensor, sums: Tensor, steps: int, enough: float = 0.0
    ) -> list[tuple[float, float]] | None:
        """For i = 1, 2, ...: the largest row sums of |M^i| and of |M^(i-1)| |M|, as computed, over
        the rows of some nodes; until those of |M^i| are below ``enough``. None where they grow
        beyond use."""
        n, c = self.shape
        x, image = torch.zeros(2, n, c, len(nodes) * c)
        for place, node in enumerate(nodes.tolist()):
            x[node, :, place * c : (place + 1) * c] = torch.eye(c)
        # rows: ones, and the row sums of |M|, never below what they are
        sums = sums.float() * (1 + 2 * UNIT)
        both = torch.stack([torch.ones_like(sums), sums], 1)  # (n, 2, c)
        product = float(sums[nodes].max())
        found: list[tuple[float, float]] = []
        reached = torch.zeros(n, dtype=torch.bool)
        reached[nodes] = True
        for _ in range(steps):
            reached = torch.tensor([bool(reached[where].any()) for where in self.where])
            totals = torch.zeros(2, len(nodes) * c)
            for node in reached.nonzero().flatten().tolist():
                torch.mm(self.wide[node], x[self.where[node]].flatten(0, 1), out=image[node])
                totals.addmm_(both[node], image[node].abs())  # while it is in the caches
            x, image = image, x  # what a node had before it is reached is zero in both
            size, following = totals.amax(1).tolist()
            if not size < 1e12:
                return None
            found.append((size, product))
            product = following
            if size < enough:
                break
        return found
