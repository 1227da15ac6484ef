"""What a level of a cascade reads from the level below, over a box: values and slopes at nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.predictions.arithmetic import (
    Interval,
    Slope,
    added,
    contract,
    down,
    mean_value,
    scaled_up,
    up,
)
from sheafdeq.predictions.inputs import CascadeInputs
from sheafdeq.predictions.layer_norm import normalised_rows

__all__ = ["Below", "Box", "Reading"]


@dataclass(frozen=True, eq=False)
class Box:
    """Positive states: a centre of exact numbers, and how far they go from it."""

    centre: Tensor  # (n, c)
    lower: Tensor
    upper: Tensor

    @staticmethod
    def around(state: Tensor, reach: Tensor) -> Box:
        """state * exp(+- reach), rounded outward."""
        factor = up(torch.exp(scaled_up(reach, 2)), 16)
        return Box(state, down(state / factor, 4), scaled_up(state * factor, 4))

    @property
    def interval(self) -> Interval:
        """The range."""
        return Interval.between(self.lower, self.upper)

    @property
    def width(self) -> Tensor:
        """The largest distance from the centre."""
        return scaled_up(torch.maximum(self.upper - self.centre, self.centre - self.lower), 2)


@dataclass(frozen=True, eq=False)
class Below:
    """LayerNorm of the rows below, through the weights of the level, with slopes by v (n, m)."""

    reach: Tensor  # (n, m) how far the variables v go from their centre
    message: Interval  # (n, d, q) Y = W_3 z W_4 at the centre
    message_box: Interval  # (n, d, q) Y over the box
    source: Interval  # (n, h) S z at the centre
    target: Interval  # (n, h) T z at the centre
    own: Interval  # (n, c) A z + a + N x at the centre
    source_slope: Slope  # (n, h, m)
    target_slope: Slope  # (n, h, m)
    message_slope: Slope  # (n, c, m)
    own_slope: Slope  # (n, c, m)


@dataclass(frozen=True, eq=False)
class Reading:
    """How a level reads: its weights, and the features' share."""

    norm: nn.LayerNorm
    weights: dict[str, Tensor]
    inputs: CascadeInputs
    drive: Interval  # (n, c) the features' share of the drive at the stored features
    drive_slope: Tensor  # (c, f)
    stalk_dim: int

    def first(self, count: int) -> Below:
        """The first level: the variables are the features."""
        slope, radius = self.inputs.base_slope, self.inputs.radius
        f = slope.shape[1]
        width = scaled_up(slope.abs().sum(1) * radius, f + 2).expand(count, -1)
        normal = normalised_rows(self.inputs.base, width, self.norm)
        variables = slope.new_full((count, f), radius)
        by_features = contract("nij,jm->nim", normal.jacobian, slope)
        return self._through(normal.centre, by_features, variables)

    def above(self, box: Box, reach: Tensor) -> Below:
        """A later level: log states below, and for R > 0 the features after them."""
        normal = normalised_rows(Interval.point(box.centre), box.width, self.norm)
        n, c = reach.shape
        slope = normal.jacobian * box.interval.map(lambda t: t.unsqueeze(1).expand(-1, c, -1))
        variables = reach
        if self.inputs.radius > 0:
            f = self.drive_slope.shape[1]
            slope = slope.map(lambda t: torch.cat([t, t.new_zeros(n, c, f)], 2))
            variables = torch.cat([reach, reach.new_full((n, f), self.inputs.radius)], 1)
        return self._through(normal.centre, slope, variables)

    def _through(self, z: Interval, slope: Interval, variables: Tensor) -> Below:
        w, d = self.weights, self.stalk_dim
        n, c = z.shape
        stalks, channels = w["message_stalk"], w["message_channel"]
        q = c // d

        def through(matrix: Tensor) -> Slope:
            return Slope.of(contract("oi,nim->nom", matrix, slope), variables)

        message = contract(
            "naq,qr->nar", contract("ab,nbq->naq", stalks, z.view(n, d, q)), channels
        )
        # W_3 (x) W_4 as one matrix: absolute values are taken once.
        both = contract("ab,qr->arbq", stalks, channels).view(c, c)
        message_slope = Slope.of(contract("oi,nim->nom", both, slope), variables)
        own_slope = through(w["own.weight"])
        if self.inputs.radius > 0:
            own_slope = added(own_slope, self._by_features(variables))
        own = contract("ni,oi->no", z, w["own.weight"])
        return Below(
            variables,
            message,
            mean_value(message, message_slope.reach.view(n, d, q)),
            contract("ni,oi->no", z, w["source.weight"]),
            contract("ni,oi->no", z, w["target.weight"]),
            own + Interval.point(w["own.bias"].expand(n, -1)) + self.drive,
            through(w["source.weight"]),
            through(w["target.weight"]),
            message_slope,
            own_slope,
        )

    def _by_features(self, variables: Tensor) -> Slope:
        """N by the features, which are the last variables."""
        rows, f = self.drive_slope.shape
        midpoint = variables.new_zeros(len(variables), rows, variables.shape[1])
        midpoint[:, :, -f:] = self.drive_slope
        return Slope(midpoint, variables.new_zeros(len(variables), rows), variables)
