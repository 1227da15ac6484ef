r"""One level of a cascade over a box: of its own states, of the states below, and of the features.

In log coordinates u = log h of the level itself, and with the variables v of the nodes below it
(their log states and, for a radius, their features; for the first level the features alone),

    F = soft-normalised maps,   P_e = w_e F_t^T F_s,   D_v = I - (1/deg_v) sum F_t^T F_t,
    B = relu(A z + N x + D Y + sum P_e Y_u),  Y = W_3 z W_4,  z = LayerNorm(below),
    T = beta + B + phi(y+, y-),   y+- = (g +- p)/2,
    p = (D W_1) h W_2 + sum (P_e W_1) h_u W_2,    g the same with absolute values.

The slope of T by v is taken as a whole before absolute values are: all paths (maps, drive, gate)
are added first. The slope by a block is

    K[a, b, c] = phi_p (W_1 h W_2)[b, c] + [B > 0] Y[b, c]
                 + phi_g sum_g W_1[b, g] sign(P W_1)[a, g] (h |W_2|)[g, c],
    phi_p = (phi_a - phi_b)/2,  phi_g = (phi_a + phi_b)/2,

and :mod:`.map_slopes` leads on to the maps. The edges into some target nodes are all that their
rows need, so a level is enclosed a few nodes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade
from sheafdeq.models.sheaf_cascade import MAP_SOFTENING
from sheafdeq.predictions.arithmetic import (
    EPSILON,
    Interval,
    Slope,
    added,
    contract,
    divided,
    down,
    gathered,
    mean_value,
    rows_scaled,
    scaled_up,
)
from sheafdeq.predictions.below import Below, Box, Reading
from sheafdeq.predictions.edge_maps import EdgeMaps, edge_maps
from sheafdeq.predictions.gate_ranges import GateRange, gate_range
from sheafdeq.predictions.inputs import CascadeInputs
from sheafdeq.predictions.map_slopes import by_maps, part_of, transported

__all__ = ["LevelEnclosure", "RowSlopes", "Rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some target nodes of one level: t nodes, k edges into them."""

    image: Interval  # (t, c) T at the centre
    coupling: Tensor  # (t, c) sup over the box of |d log T / d v| times the reach of v
    edges: tuple[Tensor, Tensor]  # (k, d, d) largest positive and negative part of P W_1
    diagonal: tuple[Tensor, Tensor]  # (t, d, d) the same of D W_1
    by_plus: Tensor  # (t, c) sup of phi_a / T
    by_minus: Tensor  # (t, c) sup of |phi_b| / T


@dataclass(frozen=True, eq=False)
class _Here:
    """Which nodes and edges a call is about."""

    nodes: slice
    edges: slice
    source: Tensor  # (k,) of the edges
    local: Tensor  # (k,) target, counted from the first of the nodes
    degree: Tensor  # (t,)
    weight: Interval  # (k,)

    @property
    def count(self) -> int:
        return len(self.degree)

    @property
    def own(self) -> Tensor:
        """The nodes by number."""
        return torch.arange(self.nodes.start, self.nodes.stop)


@dataclass(frozen=True, eq=False)
class _Drive:
    """B = relu(pre) of some nodes."""

    centre: Interval  # (t, c) B at the centre
    box: Interval  # (t, c) B over the box
    active: Interval  # (t, c) 1 where pre > 0, 0 where it is not, [0, 1] where that is open
    by_source: Slope  # (k, c, m) slope of pre by the variables of the sources
    by_own: Slope  # (t, c, m) slope of pre by those of the node itself


@dataclass(frozen=True, eq=False)
class RowSlopes:
    """Some target nodes of one level with their slopes in log coordinates, over a box."""

    image: Interval  # (t, c) T at the centre
    edge: Slope  # (k, c, m) d log T / d v of the sources
    own: Slope  # (t, c, m) d log T / d v of the node itself
    turned: list[Interval]  # P W_1 (k, d, d) and D W_1 (t, d, d)
    by_plus: Interval  # (t, c) phi_a / T
    by_minus: Interval  # (t, c) |phi_b| / T
    edges: slice  # which edges of the graph
    local: Tensor  # (k,) their targets, counted from the first of the nodes


@dataclass(frozen=True, eq=False)
class _Range:
    """Positive numbers between two ends, which midpoint and radius would not keep positive."""

    lower: Tensor
    upper: Tensor

    @property
    def midpoint(self) -> Tensor:
        return 0.5 * self.lower + 0.5 * self.upper


@dataclass(frozen=True, eq=False)
class _Parts:
    """What rows are made of."""

    image: Interval  # (t, c) T at the centre
    total: _Range  # (t, c) T over the box
    gate: GateRange
    turned: list[Interval]  # P W_1 and D W_1 over the box
    edge: Slope  # (k, c, m) d T / d v of the sources
    own: Slope  # (t, c, m)

    @property
    def largest(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Largest positive and negative parts of the edge blocks and of the diagonal ones."""
        edge, own = self.turned
        return (
            (part_of(edge, 1, largest=True), part_of(edge, -1, largest=True)),
            (part_of(own, 1, largest=True), part_of(own, -1, largest=True)),
        )


class LevelEnclosure:
    """Enclosures of one level of a cascade on a graph. Everything is float64.

    Args:
        model: the cascade, in float64.
        graph: the graph, in float64.
        level: number of the level, from 0.
        inputs: the features' shares.
    """

    def __init__(
        self, model: SheafCascade, graph: Graph, level: int, inputs: CascadeInputs
    ) -> None:
        group = 0 if model.tied else level
        module: Any = model.level_modules[group]
        self.graph, self.gate, self.shift = graph, model.gate, model.shift
        self.d, self.q, self.c = model.stalk_dim, model.channels, model.width
        hidden = slice(group * model.hidden, (group + 1) * model.hidden)
        self.edge = inputs.edge[:, hidden]
        self.edge_slope = None if inputs.edge_slope is None else inputs.edge_slope[:, hidden]
        own = slice(group * self.c, (group + 1) * self.c)
        self.weights = {name: value.detach() for name, value in module.named_parameters()}
        self.reading = Reading(
            module.norm,
            self.weights,
            inputs,
            inputs.drive[:, own],
            inputs.drive_slope[own],
            self.d,
        )
        self.deepest = int(graph.pointer.diff().max()) if graph.num_nodes else 0
        self.degree = graph.in_degree.clamp(min=1).to(graph.x.dtype)
        weight = (self.degree[graph.source] * self.degree[graph.target]).sqrt().reciprocal()
        self.edge_weight = Interval(weight, weight * (2 * EPSILON))

    def rows(self, below: Below, box: Box, first: int, last: int) -> Rows:
        """The target nodes ``first`` to ``last`` (exclusive)."""
        here = self._here(first, last)
        part = self._parts_of(below, box, here)
        return Rows(
            part.image,
            scaled_up(self._reach(part.edge, part.own, here) / part.total.lower, 4),
            *part.largest,
            scaled_up(part.gate.by_plus.upper / part.total.lower, 4),
            scaled_up(part.gate.by_minus.upper / part.total.lower, 4),
        )

    def slopes(self, below: Below, box: Box, first: int, last: int) -> RowSlopes:
        """The same target nodes with the slopes of log T themselves, not only their reach."""
        here = self._here(first, last)
        part = self._parts_of(below, box, here)
        inverse = Interval.point(torch.ones_like(part.total.midpoint)).divide_between(
            part.total.lower, part.total.upper
        )
        by_plus, by_minus = (
            value.divide_between(part.total.lower, part.total.upper)
            for value in (part.gate.by_plus, part.gate.by_minus)
        )
        return RowSlopes(
            part.image,
            rows_scaled(part.edge, inverse[here.local]),
            rows_scaled(part.own, inverse),
            part.turned,
            by_plus,
            by_minus,
            here.edges,
            here.local,
        )

    def _parts_of(self, below: Below, box: Box, here: _Here) -> _Parts:
        maps = self._maps(below, here)
        centre, over = self._blocks(maps.centre, here), self._blocks(maps.box, here)
        drive = self._drive(below, maps, centre, over, here)
        mixing = self.weights["stalk_mixing"]
        turned = [contract("kab,bg->kag", blocks, mixing) for blocks in over]
        at_centre = [contract("kab,bg->kag", blocks, mixing) for blocks in centre]
        shift = Interval.point(box.centre.new_full((here.count, self.c), self.shift))
        name, floor = self.gate.name, self.gate.floor
        gate = gate_range(name, floor, *self._parts(at_centre, box.centre, box.centre, here))
        image = drive.centre + shift + gate.value
        gate = gate_range(name, floor, *self._parts(turned, box.lower, box.upper, here))
        total = drive.box + shift + gate.value
        # phi > -1 and B >= 0, so T > beta - 1 whatever the box.
        least = torch.maximum(total.lower, shift.midpoint - 1.0)
        least = (least * (1 - 8 * EPSILON)).clamp(min=1e-12)
        edge, own = self._gate_slopes(below, maps, turned, gate, box, here)
        edge = added(edge, rows_scaled(drive.by_source, drive.active[here.local]))
        own = added(own, rows_scaled(drive.by_own, drive.active))
        return _Parts(
            image, _Range(least, torch.maximum(total.upper, least)), gate, turned, edge, own
        )

    # ------------------------------------------------------------------ maps and blocks

    def _here(self, first: int, last: int) -> _Here:
        pointer = self.graph.pointer
        edges = slice(int(pointer[first]), int(pointer[last]))
        return _Here(
            slice(first, last),
            edges,
            self.graph.source[edges],
            self.graph.target[edges] - first,
            self.degree[first:last],
            self.edge_weight[edges],
        )

    def _maps(self, below: Below, here: _Here) -> EdgeMaps:
        target = here.local + here.nodes.start
        hidden = below.source[here.source] + below.target[target] + self.edge[here.edges]
        by_source, by_target = below.source_slope[here.source], below.target_slope[target]
        if self.edge_slope is not None:
            slope = self.edge_slope[here.edges]
            by_source, by_target = (
                _plus_features(by_source, slope),
                _plus_features(by_target, -slope),
            )
        weight, bias = self.weights["maps.weight"], self.weights["maps.bias"]
        return edge_maps(hidden, by_source, by_target, weight, bias, MAP_SOFTENING)

    def _blocks(self, maps: Interval, here: _Here) -> tuple[Interval, Interval]:
        """P (k, d, d) and D (t, d, d)."""
        source, target = maps[:, 0], maps[:, 1]
        blocks = contract("kab,k->kab", contract("kia,kib->kab", target, source), here.weight)
        gram = contract("kia,kib->kab", target, target)
        total = gathered(gram, here.local, here.count, self.deepest)
        eye = torch.eye(self.d, dtype=gram.midpoint.dtype).expand_as(total.midpoint)
        return blocks, Interval.point(eye) - divided(total, here.degree.view(-1, 1, 1))

    # ------------------------------------------------------------------ slopes

    def _drive(
        self,
        below: Below,
        maps: EdgeMaps,
        centre: tuple[Interval, Interval],
        over: tuple[Interval, Interval],
        here: _Here,
    ) -> _Drive:
        message = below.message
        inside = contract("kab,kbq->kaq", centre[0], message[here.source])
        inside = gathered(inside, here.local, here.count, self.deepest)
        inside = inside + contract("kab,kbq->kaq", centre[1], message[here.nodes])
        pre = inside.view(here.count, self.c) + below.own[here.nodes]
        shape = (-1, self.d, self.d, self.q)
        arriving, kept = (
            below.message_box[rows].map(lambda t: t.unsqueeze(1).expand(shape))
            for rows in (here.source, here.nodes)
        )
        steep = by_maps(maps.box, here.weight, here.degree[here.local], arriving, kept[here.local])
        edge = maps.by_source.times(steep)
        edge = added(edge, transported(over[0], below.message_slope[here.source]))
        own = self._collected(maps.by_target.times(steep), below, here)
        own = added(own, transported(over[1], below.message_slope[here.own]))
        own = added(own, below.own_slope[here.own])
        box = mean_value(pre, self._reach(edge, own, here))
        return _Drive(pre.relu(), box.relu(), box.step_function(), edge, own)

    def _gate_slopes(
        self,
        below: Below,
        maps: EdgeMaps,
        turned: list[Interval],
        gate: GateRange,
        box: Box,
        here: _Here,
    ) -> tuple[Slope, Slope]:
        """Slopes of phi by the variables of the sources (k, c, m) and of the targets (t, c, m)."""
        d, q = self.d, self.q
        half = torch.full_like(gate.by_plus.midpoint, 0.5)
        by_p = (gate.by_plus + gate.by_minus).scale(half).view(-1, d, q)  # by_minus is -phi_b
        by_g = (gate.by_plus - gate.by_minus).scale(half).view(-1, d, q)
        mixing, stalks = self.weights["channel_mixing"], self.weights["stalk_mixing"]

        def steepness(block: Interval, rows: Tensor, p: Interval, g: Interval) -> Interval:
            h = Interval.between(box.lower[rows], box.upper[rows]).view(-1, d, q)
            signed = contract("bg,kgr->kbr", stalks, contract("kgq,qr->kgr", h, mixing))
            sizes = contract("kgq,qr->kgr", h, mixing.abs())
            sign = Interval.between(block.lower.sign(), block.upper.sign())
            weighted = contract("bg,kag->kabg", stalks, sign)
            through_sizes = contract("kabg,kgc->kabc", weighted, sizes)
            direct = contract("kac,kbc->kabc", p, signed)
            return direct + contract("kac,kabc->kabc", g, through_sizes)

        local = here.local
        steep = by_maps(
            maps.box,
            here.weight,
            here.degree[local],
            steepness(turned[0], here.source, by_p[local], by_g[local]),
            steepness(turned[1], here.own, by_p, by_g)[local],
        )
        back = self._collected(maps.by_target.times(steep), below, here)
        return maps.by_source.times(steep), back

    def _collected(self, slope: Slope, below: Below, here: _Here) -> Slope:
        """Slopes by the target's own variables, added over its edges."""
        weights = below.reach[here.nodes]
        midpoint = slope.midpoint.new_zeros(here.count, *slope.midpoint.shape[1:])
        midpoint.index_add_(0, here.local, slope.midpoint)
        spread = slope.spread.new_zeros(midpoint.shape[:2])
        rounding = (self.deepest + 4) * EPSILON * slope.size
        spread.index_add_(0, here.local, slope.spread + rounding)
        return Slope(midpoint, scaled_up(spread, self.deepest + 4), weights)

    def _reach(self, edge: Slope, own: Slope, here: _Here) -> Tensor:
        """(t, c) what all variables together can change."""
        total = own.reach.index_add(0, here.local, edge.reach)
        return scaled_up(total, self.deepest + 2)

    # ------------------------------------------------------------------ the gate's arguments

    def _parts(
        self, blocks: list[Interval], lower: Tensor, upper: Tensor, here: _Here
    ) -> tuple[Interval, Interval]:
        """y+ and y- (t, c) of blocks W_1 times W_2 for states between ``lower`` and ``upper``.

        All terms are nonnegative, so least and largest values come from least and largest factors.
        """
        d, q = self.d, self.q
        mixing = self.weights["channel_mixing"]
        both = torch.cat([mixing.clamp(min=0), (-mixing).clamp(min=0)], 1)
        terms = (self.deepest + 1) * d * q * 2
        ends: list[Tensor] = []
        for state, largest in ((lower, False), (upper, True)):
            shares = []
            for block, rows in zip(blocks, (here.source, here.own), strict=True):
                values = state[rows].view(-1, d, q) @ both  # h W_2+ | h W_2-
                swapped = torch.cat([values[..., q:], values[..., :q]], 2)
                positive = part_of(block, 1, largest=largest) @ values
                shares.append(positive + part_of(block, -1, largest=largest) @ swapped)
            edge, own = shares
            total = own.index_add(0, here.local, edge)
            ends.append(scaled_up(total, terms) if largest else down(total, terms))
        low, high = ends
        shape = (here.count, self.c)
        plus = Interval.between(low[..., :q].reshape(shape), high[..., :q].reshape(shape))
        minus = Interval.between(low[..., q:].reshape(shape), high[..., q:].reshape(shape))
        return plus, minus


def _plus_features(slope: Slope, by_features: Interval) -> Slope:
    """With what the edge itself says, which depends on the features: the last variables."""
    k, rows, f = by_features.shape
    padded = by_features.map(
        lambda t: torch.cat([t.new_zeros(k, rows, slope.weights.shape[1] - f), t], 2)
    )
    return added(slope, Slope.of(padded, slope.weights))
