"""From a residual to the distance from the equilibrium, where a certificate allows it.

A map that contracts a metric d with rate q has one equilibrium x*, and for every state x

    d(x, x*)  <=  d(x, T(x)) / (1 - q).

The residual must be measured in the metric of the certificate, not in the one that decides when to
stop. For the cascade, whose levels contract with m given the level below and move by at most
Lambda_l for it,

    d_l(x, x*)  <=  (d_l(x, T(x)) + Lambda_l d_{l-1}(x, x*)) / (1 - m),          d_0 = 0,

level by level. The proved Lambda_l are large, so the bounds of high levels say little; they are
given as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.cascade import joint_bounds
from sheafdeq.certificates.certificate import Certificate, Level, Verdict
from sheafdeq.certificates.judgement import certify
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ

__all__ = ["Yardstick", "metric_residuals", "yardstick_for"]

PROVED = (IGNN, APPNP, EIGNN, StrongSheafDEQ, StrongAttnDEQ, SheafCascade)
"""Models whose rate is a theorem about their weights: certifying them is cheap."""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """A proved rate, its metric, and what turns measured residuals into distances."""

    rate: float
    metric: str  # thompson, sup or block, as in :class:`~sheafdeq.certificates.certificate.Metric`
    weights: Tensor | None  # (n, 1) or (n, c), divided by before the maximum
    levels: int
    couplings: tuple[float, ...]  # Lambda_2 .. Lambda_L of a cascade
    grounds: str

    def bounds(self, residuals: list[float]) -> list[float]:
        """Upper bounds of the distance to the equilibrium, one a level (one for models without
        levels)."""
        result: list[float] = []
        for level, residual in enumerate(residuals):
            below = self.couplings[level - 1] * result[-1] if level else 0.0
            result.append((residual + below) / (1.0 - self.rate))
        return result

    def distances(self, one: Tensor, other: Tensor) -> list[float]:
        """Of two states in this metric, one a level."""
        found: list[float] = metric_residuals(
            self.metric, self.levels, self.weights, one, other
        ).tolist()
        return found

    def facts(self, residuals: list[float]) -> dict[str, Any]:
        """For the record."""
        bounds = self.bounds(residuals)
        return {
            "rate": self.rate,
            "metric": f"{self.metric}{', weighted' if self.weights is not None else ''}",
            "grounds": self.grounds,
            "residuals": [_finite(value) for value in residuals],
            "distance_at_most": [_finite(value) for value in bounds],
            "by": "level" if self.levels > 1 else "whole state",
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def yardstick_for(
    model: EquilibriumModel, graph: Graph, certificate: Certificate | None = None
) -> Yardstick | None:
    """The yardstick of a model with a proved global rate on this graph, else None.

    ``certificate``: one that is there already; without it models whose rate is a theorem are
    certified here.
    """
    if certificate is None:
        if not isinstance(model, PROVED):
            return None
        certificate = certify(model, graph, effort="quick")
    if certificate.verdict is not Verdict.CERTIFIED or certificate.level is not Level.GLOBAL:
        return None
    metric, rate = certificate.metric, certificate.rate
    if metric is None or rate is None or not metric.delays:
        return None
    domain = certificate.domain
    if domain is not None and domain.kind == "box":
        # every start enters the box, but the state that is measured need not be in it yet
        return None
    if metric.kind != "cascade":
        return Yardstick(rate, metric.kind, metric.weights, 1, (), certificate.grounds)
    assert isinstance(model, SheafCascade)
    double = graph.to(torch.float64)
    copy = _double(model)
    with torch.no_grad():
        joint = joint_bounds(copy, copy.prepare(double))
    if joint is None:
        return None
    return Yardstick(rate, "thompson", None, metric.levels, joint.couplings, certificate.grounds)


def _double(model: SheafCascade) -> SheafCascade:
    import copy

    return copy.deepcopy(model).to("cpu", torch.float64).eval()


def metric_residuals(
    kind: str, levels: int, weights: Tensor | None, image: Tensor, state: Tensor
) -> Tensor:
    """(levels,) the largest residual over these rows, in float64, one for each group of columns."""
    if state.shape[0] == 0:
        return torch.zeros(levels, dtype=torch.float64)
    new, old = image.double(), state.double()
    if kind == "thompson":
        inside = bool((new > 0).all()) and bool((old > 0).all())
        if not inside:
            return torch.full((levels,), torch.inf, dtype=torch.float64)
        new, old = new.log(), old.log()
    difference = (new - old).abs()
    if kind == "block":
        difference = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
    if weights is not None:
        difference = difference / weights
    return difference.view(len(state), levels, -1).amax((0, 2))
