"""The cascade: every level contracts, given the levels below (Theorem 23)."""

from __future__ import annotations

from typing import Any

import torch

from sheafdeq.certificates.cascade import joint_bounds, level_rates
from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Metric
from sheafdeq.certificates.examine import reach_equilibrium
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, by_theorem, gate_objection
from sheafdeq.layers.cascade_level import CascadeLevel
from sheafdeq.models.sheaf_cascade import SheafCascade

__all__ = ["sheaf_cascade"]


@rule(
    SheafCascade,
    proof="Theorem 23 with Corollary 19",
    modules=(*PLAIN, CascadeLevel),
    condition=gate_objection,
)
@torch.no_grad()
def sheaf_cascade(problem: Problem) -> Certificate:
    """Theorem 23: every level contracts with m(beta) given the levels below; jointly, with every
    rate above it."""
    model = problem.model
    assert isinstance(model, SheafCascade)
    coefficient = model.gate.coefficient(model.shift).upper
    smallest = float(problem.context.first_drive.min()) if problem.graph.num_nodes else 0.0
    joint = joint_bounds(model, problem.context)
    return by_theorem(
        problem,
        coefficient,
        Metric("cascade", levels=model.levels),
        Domain("positive"),
        "Theorem 23 with Corollary 19",
        (
            Assumption("coefficient m(beta) of the gate", coefficient, 1.0),
            Assumption(
                "minus the smallest drive of the first level at most 0", 0.0 - smallest, 0.0
            ),
        ),
        {} if joint is None else joint.facts(),
        _measure_levels,
    )


def _measure_levels(problem: Problem) -> dict[str, Any]:
    reached = reach_equilibrium(problem)
    observations: dict[str, Any] = {"residual": reached.residual, "steps": reached.steps}
    if reached.converged and reached.state.numel():
        observations["at the reached state"] = level_rates(problem, reached.state)
    return observations
