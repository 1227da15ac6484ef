r"""What the SheafDEQ step can do anywhere in a box of states: enclosures of its values and of its
Jacobian in log coordinates.

A box is given in log coordinates: |u - centre| <= radius * w entry by entry, u = log h, with
positive weights w. With

    z = row-normalised h,   s = W_src z_u + W_tgt z_v + b,   A = W_2 relu(s) + b_2,   F = A /
                            ||A||_F,   y = W_1 h W_2,
    x_v = y_v - (1/deg_v) sum F_t^T F_t y_v + sum w_e F_t^T F_s y_u,      T = tanh(x) + beta + B,

the chain rule gives d x / d u by factors each of which is enclosed over the box:

    d z_a / d u_b = z_a (delta_ab - t_b),  t_b = z_b^p  (one row, p-norm; p = inf: t marks the
        largest entry),
    d A = W_2 [s > 0] d s,   d F = (I - F F^T) / ||A||  d A,
    d x = (direct, through y) + (through F_s) w F_t^T dF_s y_u + (through F_t) ...

Every quantity is bounded twice, by interval evaluation and by the mean value form (value at the
centre plus slope bound times radius), and the bounds are intersected. Slopes are needed only
through the weighted row sums sum_j |slope_ij| w_j, so a matrix product of intervals needs one
matrix product (of midpoints) and matrix-vector products for the rest (:class:`Slope`). Then d log T
/ d u = [sech^2(x) / T] d x, and the scalar factor is maximised exactly: sech^2(x)/(tanh(x) + b) has
its one maximum 2 (b - sqrt(b^2 - 1)) at tanh(x) = -b + sqrt(b^2 - 1).

As the box shrinks to a point the enclosure tends to the Jacobian itself. Where a ReLU changes
branch inside the box, both one-sided derivatives are enclosed, which is what the mean value
argument along a segment needs (``docs/theory.md``, Lemma 4). Where a generated map may be below the
norm at which it counts as zero, the step may jump: the rate is then infinite.

The numbers of the prepared context (drive, degrees, edge weights, edge part of the first layer) and
the parameters are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates import normalisation
from sheafdeq.certificates import slope as slope_rules
from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.interval import EPSILON, Interval, matmul, scaled_up
from sheafdeq.certificates.slope import EdgeSum, Slope, mean_value
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafContext, SheafDEQ

__all__ = ["Enclosed", "SheafEnclosure"]


@dataclass(frozen=True, eq=False)
class Enclosed:
    """The step over the box ``|log h - centre| <= radius * weights``."""

    weights: Tensor  # (n, c) w
    gain: Interval  # (n, c) sech^2(x) / T over the box
    reach: Tensor  # (n, c) upper bound of sum_j |d x_i / d u_j| w_j over the box
    spread: Tensor  # (n, c) upper bound of sum_j |d x_i / d u_j - slopes_ij| w_j over the box
    image: Interval  # (n, c) T over the box
    image_at_centre: Interval  # (n, c) T at the centre (a rounding-sized interval)
    slopes: BlockMatrix | None  # d x / d u near the centre of its enclosure, when asked for

    @property
    def rates(self) -> Tensor:
        """(n, c) upper bounds of sum_j |d log T_i / d u_j| w_j / w_i over the box."""
        return scaled_up(self.gain.upper * self.reach / self.weights, 8)

    @property
    def rate(self) -> float:
        """The step contracts the w-weighted Thompson metric on the box at least by this factor."""
        return float(self.rates.max()) if self.rates.numel() else 0.0


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Enclosures that belong to nodes."""

    state: Interval  # (n, c) h
    normalised: Interval  # (n, c) z
    shares: Interval | None  # (n, c) t, None without pre-normalisation
    source_hidden: Interval  # (n, 2h) W_src z
    target_hidden: Interval  # (n, 2h) W_tgt z + b
    values: Interval  # (n, d, q) y


@dataclass(frozen=True, eq=False)
class _Edges:
    """Enclosures that belong to a slice of the edges."""

    hidden: Interval  # (k, 2h) s
    raw: tuple[Interval, Interval]  # (k, d*d) A for source and target maps
    maps: tuple[Interval, Interval]  # (k, d*d) F


class SheafEnclosure:
    """Enclosures of one SheafDEQ on one prepared graph. Everything is float64.

    Args:
        model: a :class:`SheafDEQ` in float64.
        context: its prepared context.
        edges_at_once: edges handled together; bounds the memory of the intermediate blocks.
    """

    def __init__(self, model: SheafDEQ, context: SheafContext, *, edges_at_once: int = 256) -> None:
        if context.drive.dtype != torch.float64:
            raise InputError(
                f"certificates are computed in float64, got {context.drive.dtype}: "
                "use model.double()"
            )
        if not model.shift - 1.0 > 1e-9:
            raise InputError(f"enclosures need a shift of at least 1 + 1e-9, got {model.shift!r}")
        self.edges = context.edges
        self.drive = context.drive.detach()
        self.edge_hidden = None if context.edge_hidden is None else context.edge_hidden.detach()
        self.d, self.q, self.c = model.stalk_dim, model.channels, model.width
        self.shift, self.pre_norm, self.order = model.shift, model.pre_norm, model.norm_order
        first = model._first_layer()
        self.first_source, self.first_target = first.source.detach(), first.target.detach()
        self.first_bias = first.bias.detach()
        last: list[Any] = [model.source_maps[2], model.target_maps[2]]
        self.second = [(layer.weight.detach(), layer.bias.detach()) for layer in last]
        self.stalk_mixing, self.channel_mixing = (matrix.detach() for matrix in model.mixing())
        self.half = self.first_bias.shape[0] // 2
        self.edges_at_once = edges_at_once
        pointer = self.edges.pointer
        self.deepest = int((pointer[1:] - pointer[:-1]).max()) if self.edges.num_targets else 0

    # ------------------------------------------------------------------ public

    def invariant_box(self) -> tuple[Tensor, Tensor]:
        """(log centre, log half width) of [beta - 1, beta + 1 + B], where every iterate after the
        first lies."""
        offset = Interval.point(self.drive) + Interval.point(
            torch.full_like(self.drive, self.shift)
        )
        one = Interval.point(torch.ones_like(self.drive))
        lower = Interval.point(torch.full_like(self.drive, self.shift)) - one
        box = lower.hull(offset + one).log()
        return box.midpoint, box.radius

    @torch.no_grad()
    def over(
        self, centre: Tensor, weights: Tensor, radius: float = 0.0, *, keep_slopes: bool = False
    ) -> Enclosed:
        """The step and its log Jacobian over ``|log h - centre| <= radius * weights``; (n, c) each,
        weights positive.

        ``radius=0`` asks about the one point ``exp(centre)``. ``keep_slopes`` stores the (n + e)
        blocks of size c x c as well.
        """
        width = scaled_up(weights * radius, 2) if radius > 0 else torch.zeros_like(centre)
        box = self._nodes(Interval(centre, width).exp())
        middle = self._nodes(Interval.point(centre).exp())
        slopes = [
            self._hidden_slope(box, weight, weights)
            for weight in (self.first_source, self.first_target)
        ]
        # W_src z and W_tgt z once more, by the mean value form.
        box = replace(
            box,
            source_hidden=box.source_hidden.intersect(
                mean_value(middle.source_hidden, slopes[0].reach, radius)
            ),
            target_hidden=box.target_hidden.intersect(
                mean_value(middle.target_hidden, slopes[1].reach, radius)
            ),
        )
        n, e, c, d = self.edges.num_targets, len(self.edges.source), self.c, self.d
        grams, grams_middle = self._sum(n, d, d), self._sum(n, d, d)
        received, received_middle = self._sum(n, c), self._sum(n, c)
        own, own_size, own_spread = self._sum(n, c, c), self._sum(n, c), self._sum(n, c)
        reach, spread = self._sum(n, c), self._sum(n, c)
        # nodes with a map that may be zero or not within the box
        jumps = torch.zeros(n, dtype=torch.bool)
        kept = self.drive.new_zeros(e, c, c) if keep_slopes else None
        for start in range(0, e, self.edges_at_once):
            part = slice(start, min(start + self.edges_at_once, e))
            source, target = self.edges.source[part], self.edges.target[part]
            at_middle = self._edges(middle, part)
            at_box, to_source, to_target = self._edges_with_slopes(
                box, at_middle, slopes, radius, part
            )
            jumps[
                target[
                    normalisation.jumps_inside(at_box.raw[0])
                    | normalisation.jumps_inside(at_box.raw[1])
                ]
            ] = True
            for nodes, edges, messages, diagonals in (
                (middle, at_middle, received_middle, grams_middle),
                (box, at_box, received, grams),
            ):
                message, gram = self._messages(nodes, edges, part)
                messages.add(target, message)
                diagonals.add(target, gram)
            through_maps = self._map_slopes(box, at_box, part)  # (k, c, 2 d d)
            indirect = to_source.times(through_maps)
            direct = self._value_slope(box, at_box, source, weights, part)
            edge = Slope(
                indirect.midpoint + direct.midpoint, indirect.spread + direct.spread, direct.weights
            )
            # The rounding of the sum of midpoints is at most 2^-53 of either size.
            rounding = EPSILON * (indirect.size + direct.size)
            reach.add(target, Interval.point(edge.reach + rounding))
            spread.add(target, Interval.point(scaled_up(edge.spread + rounding, 2)))
            if kept is not None:
                kept[part] = edge.midpoint
            back = to_target.times(through_maps)
            own.total.index_add_(0, target, back.midpoint)
            own_size.add(target, Interval.point(back.size))
            own_spread.add(target, Interval.point(back.spread))
        direct = self._kronecker(
            matmul(self._diagonal(grams), self.stalk_mixing), box.state, weights
        )
        diagonal = own.total + direct.midpoint
        rounding = (self.deepest + 8) * EPSILON * (own_size.interval.upper + direct.size)
        diagonal_spread = scaled_up(own_spread.interval.upper + direct.spread + rounding, 4)
        diagonal_slope = Slope(diagonal, diagonal_spread, weights)
        total_reach = scaled_up(diagonal_slope.reach + reach.interval.upper, 2).masked_fill(
            jumps.unsqueeze(1), torch.inf
        )
        total_spread = scaled_up(diagonal_spread + spread.interval.upper, 2)
        drift = received.interval + matmul(self._diagonal(grams), box.values).view(n, c)
        drift_middle = received_middle.interval + matmul(
            self._diagonal(grams_middle), middle.values
        ).view(n, c)
        if radius > 0:
            by_slope = drift.intersect(
                mean_value(drift_middle, total_reach.clamp(max=1e200), radius)
            )
            drift = slope_rules.choose(jumps.unsqueeze(1), drift, by_slope)
        gain, image = self._output(drift)
        return Enclosed(
            weights,
            gain,
            total_reach,
            total_spread,
            image,
            self._output(drift_middle)[1],
            None if kept is None else BlockMatrix(self.edges, diagonal, kept),
        )

    @torch.no_grad()
    def image(self, centre: Tensor, width: Tensor) -> Interval:
        """T over the box by interval evaluation alone (no Jacobian): cheap, and enough at a
        point."""
        nodes = self._nodes(Interval(centre, width).exp())
        n, e = self.edges.num_targets, len(self.edges.source)
        received, grams = self._sum(n, self.c), self._sum(n, self.d, self.d)
        for start in range(0, e, self.edges_at_once):
            part = slice(start, min(start + self.edges_at_once, e))
            message, gram = self._messages(nodes, self._edges(nodes, part), part)
            received.add(self.edges.target[part], message)
            grams.add(self.edges.target[part], gram)
        drift = received.interval + matmul(self._diagonal(grams), nodes.values).view(n, self.c)
        return self._output(drift)[1]

    # ------------------------------------------------------------------ nodes

    def _nodes(self, state: Interval) -> _Nodes:
        if self.pre_norm:
            normalised, shares = normalisation.normalised_rows(
                state.view(-1, self.d, self.q), self.order
            )
            z: Interval = normalised.view(-1, self.c)
            t: Interval | None = shares.view(-1, self.c)
        else:
            z, t = state, None
        bias = Interval.point(self.first_bias.expand(len(state.midpoint), -1))
        values = matmul(
            matmul(self.stalk_mixing, state.view(-1, self.d, self.q)), self.channel_mixing
        )
        return _Nodes(
            state,
            z,
            t,
            matmul(z, self.first_source.T),
            matmul(z, self.first_target.T) + bias,
            values,
        )

    def _hidden_slope(self, nodes: _Nodes, weight: Tensor, weights: Tensor) -> Slope:
        """(n, 2h, c) d (W z) / d u: column b is W_b z_b - t_b sum_{a in the row of b} W_a z_a."""
        z = nodes.normalised.map(lambda t: t.unsqueeze(1))
        direct = z.scale(weight.unsqueeze(0))  # (n, 2h, c)
        if nodes.shares is None:
            return Slope.of(direct, weights)
        n = len(nodes.normalised.midpoint)
        rows = direct.view(n, -1, self.d, self.q)
        sums = rows.total(3).map(lambda t: t.unsqueeze(3))  # (n, 2h, d, 1)
        shares = nodes.shares.view(n, 1, self.d, self.q)
        return Slope.of((rows - sums * shares).view(n, -1, self.c), weights)

    # ------------------------------------------------------------------ edges

    def _edges(self, nodes: _Nodes, part: slice) -> _Edges:
        source, target = self.edges.source[part], self.edges.target[part]
        hidden = nodes.source_hidden[source] + nodes.target_hidden[target]
        if self.edge_hidden is not None:
            hidden = hidden + Interval.point(self.edge_hidden[part])
        active = hidden.relu()
        halves = (active[:, : self.half], active[:, self.half :])
        raw = [
            matmul(x, weight.T) + Interval.point(bias.expand(len(source), -1))
            for x, (weight, bias) in zip(halves, self.second, strict=True)
        ]
        return _Edges(
            hidden,
            (raw[0], raw[1]),
            (normalisation.unit_map(raw[0]), normalisation.unit_map(raw[1])),
        )

    def _edges_with_slopes(
        self, nodes: _Nodes, middle: _Edges, slopes: list[Slope], radius: float, part: slice
    ) -> tuple[_Edges, Slope, Slope]:
        """Enclosures over the box, and d (F_s, F_t) / d u of the source node and of the target
        node: (k, 2 d d, c) each."""
        source, target = self.edges.source[part], self.edges.target[part]
        plain = self._edges(nodes, part)
        from_source, from_target = slopes[0][source], slopes[1][target]
        active = plain.hidden.step_function()
        raws: list[Interval] = []
        maps: list[Interval] = []
        map_slopes: list[tuple[Slope, Slope]] = []
        for i, (weight, _) in enumerate(self.second):
            columns = slice(i * self.half, (i + 1) * self.half)
            # (k, d d, h)
            gate = active[:, columns].map(lambda t: t.unsqueeze(1)).scale(weight.unsqueeze(0))
            to_source, to_target = (
                from_source.rows(columns).times(gate),
                from_target.rows(columns).times(gate),
            )
            raw = plain.raw[i].intersect(
                mean_value(middle.raw[i], to_source.reach + to_target.reach, radius)
            )
            unit = normalisation.unit_map(raw)
            projection = normalisation.unit_map_slope(raw, unit)
            to_source, to_target = to_source.times(projection), to_target.times(projection)
            by_slope = unit.intersect(
                mean_value(middle.maps[i], to_source.reach + to_target.reach, radius)
            )
            # a jump has no mean value form
            unit = slope_rules.choose(normalisation.jumps_inside(raw).unsqueeze(1), unit, by_slope)
            raws.append(raw)
            maps.append(unit)
            map_slopes.append((to_source, to_target))
        edges = _Edges(plain.hidden, (raws[0], raws[1]), (maps[0], maps[1]))
        return (
            edges,
            slope_rules.stacked([s for s, _ in map_slopes]),
            slope_rules.stacked([t for _, t in map_slopes]),
        )

    def _square(self, maps: Interval) -> Interval:
        return maps.view(-1, self.d, self.d)

    def _messages(self, nodes: _Nodes, edges: _Edges, part: slice) -> tuple[Interval, Interval]:
        """(k, c) w F_t^T F_s y_u and (k, d, d) F_t^T F_t / deg."""
        source, target = self.edges.source[part], self.edges.target[part]
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        weight = self.edges.weight[part, None, None]
        message = matmul(matmul(target_map.mT, source_map).scale(weight), nodes.values[source])
        gram = slope_rules.scaled_by_inverse(
            matmul(target_map.mT, target_map), self.edges.degree[target, None, None]
        )
        return message.view(-1, self.c), gram

    def _diagonal(self, grams: EdgeSum) -> Interval:
        """(n, d, d) I - (1/deg) sum F_t^T F_t."""
        eye = torch.eye(self.d, dtype=self.drive.dtype).expand(grams.total.shape)
        return Interval.point(eye) - grams.interval

    def _sum(self, *shape: int) -> EdgeSum:
        return EdgeSum(self.drive.new_zeros(shape), self.drive.new_zeros(shape), self.deepest)

    # ------------------------------------------------------------------ slopes of x

    def _map_slopes(self, nodes: _Nodes, edges: _Edges, part: slice) -> Interval:
        """(k, c, 2 d d) d x / d (F_s, F_t), entries of x ordered (alpha, channel), of F (a, b)."""
        source, target = self.edges.source[part], self.edges.target[part]
        d, q = self.d, self.q
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        weight = self.edges.weight[part, None, None]
        degree = self.edges.degree[target, None, None]
        y_source, y_target = nodes.values[source], nodes.values[target]  # (k, d, q)
        k = len(source)
        eye = torch.eye(d, dtype=self.drive.dtype)

        def outer(maps: Interval, values: Interval) -> Interval:
            """entry (alpha, c | a, b) = maps[a, alpha] values[b, c]."""
            left = maps.map(lambda t: t.transpose(1, 2)[:, :, None, :, None])  # alpha, ., a, .
            right = values.map(lambda t: t.transpose(1, 2)[:, None, :, None, :])  # ., c, ., b
            return left * right

        through_source = outer(target_map.scale(weight), y_source)
        incoming = matmul(source_map, y_source).scale(weight)  # (k, d, q): w F_s y_u
        outgoing = slope_rules.scaled_by_inverse(
            matmul(target_map, y_target), degree
        )  # F_t y_v / deg
        # ., c, a, .
        column = (incoming - outgoing).map(lambda t: t.transpose(1, 2)[:, None, :, :, None])
        selected = column.scale(eye.view(1, d, 1, 1, d))  # delta(alpha, b)
        through_target = selected - outer(
            slope_rules.scaled_by_inverse(target_map, degree), y_target
        )
        return Interval(
            torch.cat(
                [t.midpoint.reshape(k, d * q, d * d) for t in (through_source, through_target)],
                dim=2,
            ),
            torch.cat(
                [t.radius.reshape(k, d * q, d * d) for t in (through_source, through_target)], dim=2
            ),
        )

    def _value_slope(
        self, nodes: _Nodes, edges: _Edges, source: Tensor, weights: Tensor, part: slice
    ) -> Slope:
        """(k, c, c) d x / d u_source with the maps held: (w F_t^T F_s W_1) (x) W_2^T diag(h)."""
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        block = matmul(matmul(target_map.mT, source_map), self.stalk_mixing).scale(
            self.edges.weight[part, None, None]
        )
        return self._kronecker(block, nodes.state[source], weights[source])

    def _kronecker(self, block: Interval, state: Interval, weights: Tensor) -> Slope:
        """entry ((alpha, c), (gamma, l)) = block[alpha, gamma] W_2[l, c] h[gamma, l]."""
        d, q = self.d, self.q
        k = len(weights)
        right = state.midpoint.view(k, d, 1, q) * self.channel_mixing.T  # (k, gamma, c, l)
        # (k, alpha, c, gamma, l)
        midpoint = block.midpoint.view(k, d, 1, d, 1) * right.permute(0, 2, 1, 3).unsqueeze(1)
        # sum_l |W_2[l, c]| h w and the same with the radius of h: what a row sum needs of the right
        # factor.
        mixing = self.channel_mixing.abs()
        size = torch.matmul((state.midpoint.abs() * weights).view(k, d, q), mixing)  # (k, gamma, c)
        wide = torch.matmul((state.radius * weights).view(k, d, q), mixing)
        # (k, alpha, c)
        spread = block.midpoint.abs() @ (wide + 8 * EPSILON * size) + block.radius @ (size + wide)
        return Slope(
            midpoint.reshape(k, d * q, d * q),
            scaled_up(spread.reshape(k, d * q), 2 * (d + q) + 16),
            weights,
        )

    # ------------------------------------------------------------------ output

    def _output(self, drift: Interval) -> tuple[Interval, Interval]:
        """sech^2(x)/T and T for x in ``drift``."""
        # b = beta + B
        offset = Interval.point(self.drive) + Interval.point(
            torch.full_like(self.drive, self.shift)
        )
        tau = drift.tanh()
        image = tau + offset
        positive = Interval.between(
            torch.maximum(image.lower, offset.lower - 1.0).clamp(min=1e-12), image.upper
        )
        one = Interval.point(torch.ones_like(self.drive))

        def gain_at(value: Tensor) -> Interval:
            at = Interval.point(value)
            return (one - at.square()).divide_by_positive(
                Interval.between((at + offset).lower.clamp(min=1e-12), (at + offset).upper)
            )

        at_ends = gain_at(tau.lower).hull(gain_at(tau.upper))
        root = (offset.square() - one).sqrt()
        peak = one.divide_by_positive(offset + root)  # b - sqrt(b^2 - 1) = -tau*
        peak_inside = (tau.lower <= -peak.lower) & (tau.upper >= -peak.upper)
        upper = torch.where(
            peak_inside, torch.maximum(at_ends.upper, 2.0 * peak.upper), at_ends.upper
        )
        return Interval.between(at_ends.lower.clamp(min=0), upper), positive
