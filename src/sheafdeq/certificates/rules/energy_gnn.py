"""EnergyGNN: the gradient step of a strongly convex energy (Proposition 36)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Metric
from sheafdeq.certificates.examine import examine
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, by_theorem, rounded_up
from sheafdeq.models.energy_gnn import PICNN, EnergyGNN

__all__ = ["energy_gnn", "hessian_bound"]


@rule(EnergyGNN, proof="Proposition 36", modules=(*PLAIN, PICNN))
@torch.no_grad()
def energy_gnn(problem: Problem) -> Certificate:
    """Proposition 36: the gradient step contracts the Euclidean distance with 1 - eta beta, 1/eta
    bounding the Hessian."""
    model = problem.model
    assert isinstance(model, EnergyGNN)
    if model.activation != "softplus":
        certificate = examine(problem)
        certificate.observations["note"] = (
            "the minimiser is unique (Proposition 36a), but a gradient with jumps has no "
            "contracting step"
        )
        return certificate
    rate, curvature = 0.0, 0.0
    if problem.graph.num_nodes:
        step = problem.context.step_size  # (n, 1) eta of each node's graph
        hessian = hessian_bound(model, problem.context)
        curvature = float((step * hessian).max()) * (1 + 1e-9)
        rate = rounded_up(max(1.0 - float(step.min()) * model.beta, curvature - 1.0))
    return by_theorem(
        problem,
        rate,
        Metric("euclidean"),
        Domain("all"),
        "Proposition 36",
        (
            Assumption("strong convexity: -beta below 0", -model.beta, 0.0),
            Assumption("eta times the bound of the Hessian below 2", curvature, 2.0),
            Assumption("max(1 - eta beta, eta Lambda - 1) below 1", rate, 1.0),
        ),
    )


def hessian_bound(model: EnergyGNN, context: Any) -> Tensor:
    """(n, 1) Lambda: largest row sum of the matrix with phi' = 1 and phi'' = 1/4 everywhere, for
    each node's graph.

    It is made afresh, not taken from the step length in the context. Sums of positive terms:
    rounding is far below 1e-9.
    """
    return model._safe_step(context).reciprocal() * (1 + 1e-9)
