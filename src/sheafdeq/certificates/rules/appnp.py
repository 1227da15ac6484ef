"""APPNP, plain or with a shifted tanh (Propositions 33 and 34)."""

from __future__ import annotations

import torch

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Metric
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, adjacency_gain, by_theorem, rounded_up
from sheafdeq.models.appnp import APPNP
from sheafdeq.theory.coefficients import mu_positive

__all__ = ["appnp"]


@rule(APPNP, proof="Propositions 33 and 34", modules=PLAIN)
@torch.no_grad()
def appnp(problem: Problem) -> Certificate:
    """Propositions 33 and 34: rate 1 - alpha, with or without the shifted tanh; better when the
    drive is not negative."""
    model = problem.model
    assert isinstance(model, APPNP)
    if model.shift is not None and bool((problem.context.drive >= 0).all()):
        coefficient = mu_positive(model.shift).upper
        if coefficient < 1.0 - model.alpha:
            return by_theorem(
                problem,
                coefficient,
                Metric("thompson"),
                Domain("positive"),
                "Proposition 34(b)",
                (Assumption("coefficient of the positive tanh", coefficient, 1.0),),
            )
    gain, weights = adjacency_gain(problem.context.own_weight, problem.context.edge_weight, problem)
    rate = rounded_up((1.0 - model.alpha) * gain)
    return by_theorem(
        problem,
        rate,
        Metric("sup", weights),
        Domain("all"),
        "Proposition 33" if model.shift is None else "Proposition 34(a)",
        (Assumption("(1 - alpha) times adjacency gain", rate, 1.0),),
    )
