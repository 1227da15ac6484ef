"""What several rules share: how a theorem becomes a certificate, and common hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.certificate import (
    Assumption,
    Certificate,
    Domain,
    Level,
    Metric,
    Verdict,
)
from sheafdeq.certificates.collatz_wielandt import quotients
from sheafdeq.certificates.examine import examine, measure
from sheafdeq.certificates.interval import EPSILON
from sheafdeq.certificates.problem import Problem
from sheafdeq.equilibrium import Readout
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.feature_encoder import FeatureEncoder
from sheafdeq.layers.gates import GATES, Gate
from sheafdeq.layers.masked_readout import MaskedReadout
from sheafdeq.layers.strong import StrongModel

__all__ = [
    "PLAIN",
    "PROVED_GATES",
    "adjacency_gain",
    "by_theorem",
    "certified",
    "drive_is_not_negative",
    "gate_objection",
    "rounded_up",
    "within_budget",
]

PLAIN = (
    Dense,
    FeatureEncoder,
    MaskedReadout,
    nn.LayerNorm,
    nn.Linear,
    nn.ModuleList,
    nn.ReLU,
    nn.Sequential,
    Readout,
)
"""The submodules the proofs know: with exactly these types a weight is what the layer computes
with."""
PROVED_GATES = {name: GATES[name] for name in ("tanh", "rational", "balance")}
"""The gates whose coefficients are proved (Lemma 10); one with another action or another
coefficient is not covered."""


def gate_objection(model: Any) -> str | None:
    """Why the gate is not one a proof knows, or None."""
    gate = model.gate
    if type(gate) is Gate and gate == PROVED_GATES.get(gate.name):
        return None
    return (
        f"the gate {getattr(gate, 'name', gate)!r} is not one of those whose coefficient is "
        f"proved ({', '.join(PROVED_GATES)})"
    )


def adjacency_gain(own: Tensor | None, edge: Tensor, problem: Problem) -> tuple[float, Tensor]:
    """Upper bound of max_v (A w)_v / w_v with w = sqrt(deg), and w (n, 1): Lemma 31, on the rounded
    numbers actually used."""
    edges = problem.context.edges
    n = edges.num_targets
    diagonal = edge.new_zeros(n) if own is None else own
    matrix = BlockMatrix(edges, diagonal.view(n, 1, 1), edge.view(-1, 1, 1))
    counts = (edges.pointer[1:] - edges.pointer[:-1]).to(edge.dtype)
    weights = ((counts + 1) if own is not None else counts.clamp(min=1)).sqrt().view(n, 1)
    gain = float(quotients(matrix, weights).max()) if n else 0.0
    return gain, weights


def drive_is_not_negative(problem: Problem) -> Assumption:
    """B >= 0, with its margin."""
    drive = problem.context.drive
    return Assumption(
        "minus the smallest drive at most 0",
        0.0 - float(drive.min()) if drive.numel() else 0.0,
        0.0,
    )


def rounded_up(value: float) -> float:
    """An upper bound of a product of a few floats."""
    return math.nextafter(value * (1 + 8 * EPSILON), math.inf)


def within_budget(
    problem: Problem, sensitivity: float, symbol: str, grounds: str, kept: Assumption
) -> Certificate:
    """Theorems 22 and 24: rate (1 + s) m(beta) for an update whose state-dependent part has
    sensitivity s; ``kept`` says that s is within the budget."""
    model = problem.model
    assert isinstance(model, StrongModel)
    coefficient = model.gate.coefficient(model.shift).upper
    rate = rounded_up((1.0 + sensitivity) * coefficient)
    return by_theorem(
        problem,
        rate,
        Metric("thompson"),
        Domain("positive"),
        grounds,
        (
            Assumption("coefficient m(beta) of the gate", coefficient, 1.0),
            kept,
            drive_is_not_negative(problem),
            Assumption(f"(1 + {symbol}) m(beta) below 1", rate, 1.0),
        ),
    )


def by_theorem(
    problem: Problem,
    rate: float,
    metric: Metric,
    domain: Domain,
    grounds: str,
    assumptions: tuple[Assumption, ...],
    proved: dict[str, Any] | None = None,
    measured: Callable[[Problem], dict[str, Any]] = measure,
) -> Certificate:
    """CERTIFIED when the rate is below one; else the model is examined like one without a rule, the
    failed assumption shown."""
    if rate < 1.0 and all(a.holds for a in assumptions):
        observations = measured(problem) if problem.effort.block_norms else {}
        certificate = certified(
            problem, Level.GLOBAL, rate, metric, domain, grounds, assumptions, observations
        )
        return replace(certificate, proved=proved or {})
    examined = examine(problem)
    failing = next((a for a in assumptions if not a.holds), None)
    reason = (
        f"the rate {rate:.6g} is not below 1"
        if failing is None
        else (f"an assumption of {grounds} fails: {failing.short}")
    )
    return Certificate(
        examined.verdict,
        examined.level,
        problem.title,
        problem.place,
        grounds=f"{grounds} does not apply" if examined.witness is None else examined.grounds,
        assumptions=assumptions,
        observations=examined.observations,
        witness=examined.witness,
        reason=reason,
    )


def certified(
    problem: Problem,
    level: Level,
    rate: float,
    metric: Metric,
    domain: Domain,
    grounds: str,
    assumptions: tuple[Assumption, ...],
    observations: dict[str, Any] | None = None,
    radius: float | None = None,
) -> Certificate:
    """The verdict CERTIFIED with everything it states."""
    return Certificate(
        Verdict.CERTIFIED,
        level,
        problem.title,
        problem.place,
        rate,
        metric,
        domain,
        radius,
        grounds,
        assumptions,
        observations or {},
    )
