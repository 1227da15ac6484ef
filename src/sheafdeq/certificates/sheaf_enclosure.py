r"""What the SheafDEQ step can do anywhere in a box of states: enclosures of its values and of its Jacobian in log coordinates.

A box is given in log coordinates, u = log h in [centre - width, centre + width], entry by entry. With

    z = row-normalised h,   s = W_src z_u + W_tgt z_v + b,   A = W_2 relu(s) + b_2,   F = A / ||A||_F,   y = W_1 h W_2,
    x_v = y_v - (1/deg_v) sum F_t^T F_t y_v + sum w_e F_t^T F_s y_u,      T = tanh(x) + beta + B,

the chain rule gives d x / d u by factors each of which is enclosed over the box:

    d z_a / d u_b = z_a (delta_ab - t_b),  t_b = z_b^p  (one row, p-norm; p = inf: t marks the largest entry),
    d A = W_2 [s > 0] d s,   d F = (I - F F^T) / ||A||  d A,
    d x = (direct, through y) + (through F_s) w F_t^T dF_s y_u + (through F_t) ...

Every quantity is bounded twice, by interval evaluation and by the mean value form (value at the centre plus derivative bound times
width), and the bounds are intersected. Then d log T / d u = [sech^2(x) / T] d x, and the scalar factor is maximised exactly:
sech^2(x)/(tanh(x) + b) has its one maximum 2 (b - sqrt(b^2 - 1)) at tanh(x) = -b + sqrt(b^2 - 1).

As the box shrinks to a point the enclosure tends to the Jacobian itself. Where a ReLU or a norm guard changes branch inside the box, both
one-sided derivatives are enclosed, which is what the mean value argument along a segment needs (the step is locally Lipschitz).

The numbers of the prepared context (drive, degrees, edge weights, edge part of the first layer) and the parameters are taken as exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.interval import EPSILON, Interval, matmul, scaled_up
from sheafdeq.errors import InputError
from sheafdeq.models.restriction import MAP_GUARD, ROW_GUARD
from sheafdeq.models.sheaf_deq import SheafContext, SheafDEQ
from sheafdeq.recurrence import Incidence

__all__ = ["Enclosed", "SheafEnclosure"]


@dataclass(frozen=True, eq=False)
class Enclosed:
    """The step over one box."""

    incidence: Incidence
    own: Interval  # (n, c, c) d x_v / d u_v, messages excluded
    edge: Interval  # (e, c, c) d x_target / d u_source through that edge
    gain: Interval  # (n, c) sech^2(x) / T over the box
    image: Interval  # (n, c) T over the box
    image_at_centre: Interval  # (n, c) T at the centre (a rounding-sized interval)

    def bound(self) -> BlockMatrix:
        """Entrywise upper bounds of |d log T / d log h| over the box."""
        gain = self.gain.upper
        own = scaled_up(gain.unsqueeze(2) * self.own.magnitude, 4)
        edge = scaled_up(gain[self.incidence.target].unsqueeze(2) * self.edge.magnitude, 4)
        return BlockMatrix(self.incidence, own, edge)

    def signed(self) -> tuple[BlockMatrix, BlockMatrix]:
        """Midpoint and radius of the signed log Jacobian over the box."""
        parts = []
        for blocks, gain in ((self.own, self.gain), (self.edge, self.gain[self.incidence.target])):
            gain = gain.map(lambda t: t.unsqueeze(2))
            midpoint = gain.midpoint * blocks.midpoint
            radius = gain.radius * (blocks.midpoint.abs() + blocks.radius) + gain.midpoint.abs() * blocks.radius
            parts.append(Interval(midpoint, scaled_up(radius + EPSILON * midpoint.abs(), 8)))
        own, edge = parts
        return (
            BlockMatrix(self.incidence, own.midpoint, edge.midpoint),
            BlockMatrix(self.incidence, own.radius, edge.radius),
        )


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

    def __init__(self, model: SheafDEQ, context: SheafContext, *, edges_at_once: int = 1024) -> None:
        if context.drive.dtype != torch.float64:
            raise InputError(f"certificates are computed in float64, got {context.drive.dtype}: use model.double()")
        if not model.shift - 1.0 > 1e-9:
            raise InputError(f"enclosures need a shift of at least 1 + 1e-9, got {model.shift!r}")
        self.incidence = context.incidence
        self.drive = context.drive.detach()
        self.edge_hidden = None if context.edge_hidden is None else context.edge_hidden.detach()
        self.d, self.q, self.c = model.stalk_dim, model.channels, model.width
        self.shift, self.pre_norm, self.order = model.shift, model.pre_norm, model.norm_order
        first = model._first_layer()
        self.first_source, self.first_target = first.source.detach(), first.target.detach()
        self.first_bias = first.bias.detach()
        self.second = [(g[2].weight.detach(), g[2].bias.detach()) for g in (model.source_maps, model.target_maps)]  # type: ignore[union-attr]
        self.stalk_mixing, self.channel_mixing = model.stalk_mixing.detach(), model.channel_mixing.detach()
        self.half = self.first_bias.shape[0] // 2
        self.edges_at_once = edges_at_once
        pointer = self.incidence.pointer
        self.deepest = int((pointer[1:] - pointer[:-1]).max()) if self.incidence.num_targets else 0

    # ------------------------------------------------------------------ public

    def invariant_box(self) -> tuple[Tensor, Tensor]:
        """(log centre, log half width) of [beta - 1, beta + 1 + B], where every iterate after the first lies."""
        offset = Interval.point(self.drive) + Interval.point(torch.full_like(self.drive, self.shift))
        one = Interval.point(torch.ones_like(self.drive))
        lower = Interval.point(torch.full_like(self.drive, self.shift)) - one
        box = lower.hull(offset + one).log()
        return box.midpoint, box.radius

    @torch.no_grad()
    def over(self, centre: Tensor, width: Tensor) -> Enclosed:
        """The step and its log Jacobian over the box ``|log h - centre| <= width``; (n, c) each."""
        box = self._nodes(Interval(centre, width).exp())
        middle = self._nodes(Interval.point(centre).exp())
        slopes = [self._hidden_slope(box, weight) for weight in (self.first_source, self.first_target)]
        # W_src z and W_tgt z once more, by the mean value form.
        box = _Nodes(
            box.state,
            box.normalised,
            box.shares,
            box.source_hidden.intersect(_mean_value(middle.source_hidden, slopes[0], width)),
            box.target_hidden.intersect(_mean_value(middle.target_hidden, slopes[1], width)),
            box.values,
        )
        n, c, d = self.incidence.num_targets, self.c, self.d
        e = len(self.incidence.source)
        zeros = self.drive.new_zeros
        grams, grams_middle = self._sum(n, d, d), self._sum(n, d, d)
        own = self._sum(n, c, c)
        edge, edge_radius = zeros(e, c, c), zeros(e, c, c)
        received, received_middle = self._sum(n, c), self._sum(n, c)
        for start in range(0, e, self.edges_at_once):
            part = slice(start, min(start + self.edges_at_once, e))
            source, target = self.incidence.source[part], self.incidence.target[part]
            at_middle = self._edges(middle, part)
            at_box, to_maps = self._edges_with_slopes(box, at_middle, slopes, width, part)
            for nodes, edges, messages, diagonals in (
                (middle, at_middle, received_middle, grams_middle),
                (box, at_box, received, grams),
            ):
                message, gram = self._messages(nodes, edges, part)
                messages.add(target, message)
                diagonals.add(target, gram)
            through_maps = self._map_slopes(box, at_box, part)  # (k, c, 2 d d)
            blocks = matmul(through_maps, to_maps[0]) + self._value_slope(box, at_box, source, part)
            edge[part], edge_radius[part] = blocks.midpoint, blocks.radius
            own.add(target, matmul(through_maps, to_maps[1]))
        own_block = own.interval + self._kronecker(matmul(self._diagonal(grams), self.stalk_mixing), box.state)
        edge_block = Interval(edge, edge_radius)
        drift = received.interval + matmul(self._diagonal(grams), box.values).view(n, c)
        drift_middle = received_middle.interval + matmul(self._diagonal(grams_middle), middle.values).view(n, c)
        magnitudes = BlockMatrix(self.incidence, own_block.magnitude, edge_block.magnitude)
        reach = scaled_up(magnitudes.apply(width), 2 * magnitudes.terms)
        drift = drift.intersect(Interval(drift_middle.midpoint, scaled_up(drift_middle.radius + reach, 2)))
        gain, image = self._output(drift)
        at_centre = self._output(drift_middle)[1]
        return Enclosed(self.incidence, own_block, edge_block, gain, image, at_centre)

    @torch.no_grad()
    def image(self, centre: Tensor, width: Tensor) -> Interval:
        """T over the box by interval evaluation alone (no Jacobian): cheap, and enough at a point."""
        nodes = self._nodes(Interval(centre, width).exp())
        n, e = self.incidence.num_targets, len(self.incidence.source)
        received, grams = self._sum(n, self.c), self._sum(n, self.d, self.d)
        for start in range(0, e, self.edges_at_once):
            part = slice(start, min(start + self.edges_at_once, e))
            message, gram = self._messages(nodes, self._edges(nodes, part), part)
            received.add(self.incidence.target[part], message)
            grams.add(self.incidence.target[part], gram)
        drift = received.interval + matmul(self._diagonal(grams), nodes.values).view(n, self.c)
        return self._output(drift)[1]

    # ------------------------------------------------------------------ nodes

    def _nodes(self, state: Interval) -> _Nodes:
        if self.pre_norm:
            normalised, shares = _normalised(state.view(-1, self.d, self.q), self.order)
            z: Interval = normalised.view(-1, self.c)
            t: Interval | None = shares.view(-1, self.c)
        else:
            z, t = state, None
        bias = Interval.point(self.first_bias.expand(len(state.midpoint), -1))
        values = matmul(matmul(self.stalk_mixing, state.view(-1, self.d, self.q)), self.channel_mixing)
        return _Nodes(
            state, z, t, matmul(z, self.first_source.T), matmul(z, self.first_target.T) + bias, values
        )

    def _hidden_slope(self, nodes: _Nodes, weight: Tensor) -> Interval:
        """(n, 2h, c) d (W z) / d u: column b is W_b z_b - t_b sum_{a in the row of b} W_a z_a."""
        z = nodes.normalised.map(lambda t: t.unsqueeze(1))
        direct = z.scale(weight.unsqueeze(0))  # (n, 2h, c)
        if nodes.shares is None:
            return direct
        n = len(nodes.normalised.midpoint)
        rows = direct.view(n, -1, self.d, self.q)
        sums = rows.total(3).map(lambda t: t.unsqueeze(3))  # (n, 2h, d, 1)
        shares = nodes.shares.view(n, 1, self.d, self.q)
        return (rows - sums * shares).view(n, -1, self.c)

    # ------------------------------------------------------------------ edges

    def _edges(self, nodes: _Nodes, part: slice) -> _Edges:
        source, target = self.incidence.source[part], self.incidence.target[part]
        hidden = nodes.source_hidden[source] + nodes.target_hidden[target]
        if self.edge_hidden is not None:
            hidden = hidden + Interval.point(self.edge_hidden[part])
        active = hidden.relu()
        halves = (active[:, : self.half], active[:, self.half :])
        raw = [
            matmul(x, weight.T) + Interval.point(bias.expand(len(source), -1))
            for x, (weight, bias) in zip(halves, self.second, strict=True)
        ]
        return _Edges(hidden, (raw[0], raw[1]), (_unit(raw[0]), _unit(raw[1])))

    def _edges_with_slopes(
        self, nodes: _Nodes, middle: _Edges, slopes: list[Interval], width: Tensor, part: slice
    ) -> tuple[_Edges, list[Interval]]:
        """Enclosures over the box, and d (F_s, F_t) / d u of the source node and of the target node: 2 x (k, 2 d d, c)."""
        source, target = self.incidence.source[part], self.incidence.target[part]
        plain = self._edges(nodes, part)
        from_source, from_target = slopes[0][source], slopes[1][target]
        active = plain.hidden.step_function()
        raws: list[Interval] = []
        maps: list[Interval] = []
        to_source: list[Interval] = []
        to_target: list[Interval] = []
        for i, (weight, _) in enumerate(self.second):
            columns = slice(i * self.half, (i + 1) * self.half)
            gate = active[:, columns].map(lambda t: t.unsqueeze(1)).scale(weight.unsqueeze(0))  # (k, d d, h)
            raw_slopes = [matmul(gate, from_source[:, columns]), matmul(gate, from_target[:, columns])]
            reach = raw_slopes[0].magnitude @ width[source].unsqueeze(2) + raw_slopes[1].magnitude @ width[target].unsqueeze(2)
            reach = scaled_up(reach.squeeze(2), 2 * self.c)
            raw = plain.raw[i].intersect(Interval(middle.raw[i].midpoint, scaled_up(middle.raw[i].radius + reach, 2)))
            unit = _unit(raw)
            projection = _projection(raw, unit)
            map_slopes = [matmul(projection, slope) for slope in raw_slopes]
            reach = map_slopes[0].magnitude @ width[source].unsqueeze(2) + map_slopes[1].magnitude @ width[target].unsqueeze(2)
            reach = scaled_up(reach.squeeze(2), 2 * self.c)
            unit = unit.intersect(Interval(middle.maps[i].midpoint, scaled_up(middle.maps[i].radius + reach, 2)))
            raws.append(raw)
            maps.append(unit)
            to_source.append(map_slopes[0])
            to_target.append(map_slopes[1])
        edges = _Edges(plain.hidden, (raws[0], raws[1]), (maps[0], maps[1]))
        return edges, [_concatenate(to_source), _concatenate(to_target)]

    def _square(self, maps: Interval) -> Interval:
        return maps.view(-1, self.d, self.d)

    def _messages(self, nodes: _Nodes, edges: _Edges, part: slice) -> tuple[Interval, Interval]:
        """(k, c) w F_t^T F_s y_u and (k, d, d) F_t^T F_t / deg."""
        source, target = self.incidence.source[part], self.incidence.target[part]
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        weight = self.incidence.edge_weight[part, None, None]
        message = matmul(matmul(target_map.mT, source_map).scale(weight), nodes.values[source])
        gram = _scaled_by_inverse(matmul(target_map.mT, target_map), self.incidence.degree[target, None, None])
        return message.view(-1, self.c), gram

    def _diagonal(self, grams: _Sum) -> Interval:
        """(n, d, d) I - (1/deg) sum F_t^T F_t."""
        eye = torch.eye(self.d, dtype=self.drive.dtype).expand(grams.total.shape)
        return Interval.point(eye) - grams.interval

    def _sum(self, *shape: int) -> _Sum:
        return _Sum(self.drive.new_zeros(shape), self.drive.new_zeros(shape), self.deepest)

    # ------------------------------------------------------------------ slopes of x

    def _map_slopes(self, nodes: _Nodes, edges: _Edges, part: slice) -> Interval:
        """(k, c, 2 d d) d x / d (F_s, F_t), entries of x ordered (alpha, channel), of F (a, b)."""
        source, target = self.incidence.source[part], self.incidence.target[part]
        d, q = self.d, self.q
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        weight = self.incidence.edge_weight[part, None, None]
        degree = self.incidence.degree[target, None, None]
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
        outgoing = _scaled_by_inverse(matmul(target_map, y_target), degree)  # F_t y_v / deg
        column = (incoming - outgoing).map(lambda t: t.transpose(1, 2)[:, None, :, :, None])  # ., c, a, .
        selected = column.scale(eye.view(1, d, 1, 1, d))  # delta(alpha, b)
        through_target = selected - outer(_scaled_by_inverse(target_map, degree), y_target)
        return Interval(
            torch.cat([t.midpoint.reshape(k, d * q, d * d) for t in (through_source, through_target)], dim=2),
            torch.cat([t.radius.reshape(k, d * q, d * d) for t in (through_source, through_target)], dim=2),
        )

    def _value_slope(self, nodes: _Nodes, edges: _Edges, source: Tensor, part: slice) -> Interval:
        """(k, c, c) d x / d u_source with the maps held: (w F_t^T F_s W_1) (x) W_2^T diag(h)."""
        source_map, target_map = self._square(edges.maps[0]), self._square(edges.maps[1])
        block = matmul(matmul(target_map.mT, source_map), self.stalk_mixing).scale(self.incidence.edge_weight[part, None, None])
        return self._kronecker(block, nodes.state[source])

    def _kronecker(self, block: Interval, state: Interval) -> Interval:
        """entry ((alpha, c), (gamma, l)) = block[alpha, gamma] W_2[l, c] h[gamma, l]."""
        d, q = self.d, self.q
        mixing = self.channel_mixing.T.view(1, 1, q, 1, q)  # c, l
        left = block.map(lambda t: t.view(-1, d, 1, d, 1))
        right = state.map(lambda t: t.reshape(-1, 1, 1, d, q)).scale(mixing)
        midpoint = left.midpoint * right.midpoint
        radius = left.midpoint.abs() * (right.radius + EPSILON * right.midpoint.abs())
        radius = radius + left.radius * (right.midpoint.abs() + right.radius)
        return Interval(midpoint.reshape(-1, d * q, d * q), scaled_up(radius.reshape(-1, d * q, d * q), 8))

    # ------------------------------------------------------------------ output

    def _output(self, drift: Interval) -> tuple[Interval, Interval]:
        """sech^2(x)/T and T for x in ``drift``."""
        offset = Interval.point(self.drive) + Interval.point(torch.full_like(self.drive, self.shift))  # b = beta + B
        tau = drift.tanh()
        image = tau + offset
        positive = Interval.between(torch.maximum(image.lower, offset.lower - 1.0).clamp(min=1e-12), image.upper)
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
        upper = torch.where(peak_inside, torch.maximum(at_ends.upper, 2.0 * peak.upper), at_ends.upper)
        return Interval.between(at_ends.lower.clamp(min=0), upper), positive

# ---------------------------------------------------------------------- pieces


@dataclass(frozen=True, eq=False)
class _Sum:
    """Edge intervals added up at their targets; every term brings its share of the rounding of at most ``terms`` additions."""

    total: Tensor
    radius: Tensor
    terms: int

    def add(self, target: Tensor, values: Interval) -> None:
        self.total.index_add_(0, target, values.midpoint)
        self.radius.index_add_(0, target, values.radius + (self.terms + 4) * EPSILON * values.midpoint.abs())

    @property
    def interval(self) -> Interval:
        return Interval(self.total, scaled_up(self.radius, 2 * self.terms))


def _mean_value(middle: Interval, slope: Interval, width: Tensor) -> Interval:
    """Value at the centre plus |slope| width; slope (n, m, c), width (n, c)."""
    reach = (slope.magnitude @ width.unsqueeze(2)).squeeze(2)
    return Interval(middle.midpoint, scaled_up(middle.radius + reach, 2 * width.shape[1]))


def _concatenate(parts: list[Interval]) -> Interval:
    return Interval(torch.cat([p.midpoint for p in parts], 1), torch.cat([p.radius for p in parts], 1))


def _scaled_by_inverse(x: Interval, divisor: Tensor) -> Interval:
    midpoint = x.midpoint / divisor
    return Interval(midpoint, scaled_up(x.radius / divisor + EPSILON * midpoint.abs(), 4))


def _normalised(rows: Interval, order: float) -> tuple[Interval, Interval]:
    """z = h / ||h||_p of positive rows (n, d, q), and t = z^p; each entry is monotone in every h, so the ends are exact."""
    low, high = rows.lower, rows.upper
    if not bool((low > ROW_GUARD).all()):
        raise InputError(f"the box reaches {float(low.min()):.3g}: enclosures need states above {ROW_GUARD:g}")
    q = low.shape[-1]
    if order == float("inf"):
        others_low, others_high = _largest_other(low), _largest_other(high)
        z = Interval.between(
            (low / torch.maximum(low, others_high)) * (1 - 4 * EPSILON),
            (high / torch.maximum(high, others_low)).mul(1 + 4 * EPSILON).clamp(max=1.0),
        )
        share = Interval.between((low > others_high).to(low.dtype), (high >= others_low).to(low.dtype))
        return z, share
    others = torch.ones(q, q, dtype=low.dtype) - torch.eye(q, dtype=low.dtype)
    powers = rows.power(order)
    power_low, power_high = powers.lower, powers.upper
    rest_low = (power_low @ others) * (1 - (q + 4) * EPSILON)
    rest_high = (power_high @ others) * (1 + (q + 4) * EPSILON)
    share = Interval.between(
        (power_low / (power_low + rest_high)) * (1 - 8 * EPSILON),
        ((power_high / (power_high + rest_low)) * (1 + 8 * EPSILON)).clamp(max=1.0),
    )
    root = share.root(order)
    return Interval.between(root.lower.clamp(min=0), root.upper.clamp(max=1.0)), share


def _largest_other(values: Tensor) -> Tensor:
    """For every entry of the last axis the largest of the others (0 when there is none)."""
    if values.shape[-1] == 1:
        return torch.zeros_like(values)
    top = values.topk(2, dim=-1)
    first = torch.arange(values.shape[-1]) == top.indices[..., :1]
    return torch.where(first, top.values[..., 1:2], top.values[..., :1])


def _norm(raw: Interval) -> Interval:
    """(k, 1) max(||A||_F, guard)."""
    squares = raw.square().total(1)
    norm = squares.sqrt()
    return Interval.between(norm.lower.clamp(min=MAP_GUARD), norm.upper.clamp(min=MAP_GUARD)).view(-1, 1)


def _unit(raw: Interval) -> Interval:
    """F = A / max(||A||_F, guard): the exact range of every entry, given the ranges of all.

    A_a / sqrt(A_a^2 + r) increases in A_a; it falls with r where A_a > 0 and grows where A_a < 0.
    """
    size = raw.shape[1]
    others = torch.ones(size, size, dtype=raw.midpoint.dtype) - torch.eye(size, dtype=raw.midpoint.dtype)
    rest_low = (raw.mignitude.square() @ others) * (1 - (size + 8) * EPSILON)
    rest_high = (raw.magnitude.square() @ others) * (1 + (size + 8) * EPSILON)
    low, high = raw.lower, raw.upper

    def quotient(value: Tensor, rest: Tensor) -> Tensor:
        return value / (value.square() + rest).sqrt().clamp(min=MAP_GUARD)

    lower = torch.where(low >= 0, quotient(low, rest_high), quotient(low, rest_low))
    upper = torch.where(high >= 0, quotient(high, rest_low), quotient(high, rest_high))
    slack = 16 * EPSILON
    lower = (lower - slack * lower.abs()).clamp(min=-1.0, max=1.0)
    upper = (upper + slack * upper.abs()).clamp(min=-1.0, max=1.0)
    return Interval.between(lower, upper)


def _projection(raw: Interval, unit: Interval) -> Interval:
    """(k, m, m) the derivative (I - F F^T) / ||A||_F of the normalisation; with the guarded branch I / guard where it is reached."""
    size = raw.shape[1]
    eye = Interval.point(torch.eye(size, dtype=raw.midpoint.dtype).expand(len(raw.midpoint), size, size))
    outer = unit.map(lambda t: t.unsqueeze(2)) * unit.map(lambda t: t.unsqueeze(1))
    diagonal = torch.eye(size, dtype=torch.bool)
    squares = unit.square()
    outer = Interval(
        torch.where(diagonal, torch.diag_embed(squares.midpoint), outer.midpoint),
        torch.where(diagonal, torch.diag_embed(squares.radius), outer.radius),
    )
    norm = _norm(raw).view(-1, 1, 1)
    smooth = (eye - outer).divide_by_positive(norm)
    guarded = norm.lower <= MAP_GUARD * (1 + 1e-6)
    if not bool(guarded.any()):
        return smooth
    branch = eye.divide_by_positive(Interval.point(torch.full_like(norm.midpoint, MAP_GUARD)))
    both = smooth.hull(branch)
    return Interval(torch.where(guarded, both.midpoint, smooth.midpoint), torch.where(guarded, both.radius, smooth.radius))
