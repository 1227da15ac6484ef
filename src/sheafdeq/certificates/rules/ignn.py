"""IGNN: a weighted sup norm (Proposition 32)."""

from __future__ import annotations

import torch

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Metric
from sheafdeq.certificates.interval import scaled_up
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, adjacency_gain, by_theorem, rounded_up
from sheafdeq.models.ignn import IGNN

__all__ = ["ignn"]


@rule(IGNN, proof="Proposition 32", modules=PLAIN)
@torch.no_grad()
def ignn(problem: Problem) -> Certificate:
    """Proposition 32: rate = (largest column sum of |W|) times the gain of the adjacency."""
    model = problem.model
    assert isinstance(model, IGNN)
    gain, weights = adjacency_gain(problem.context.own_weight, problem.context.edge_weight, problem)
    columns = scaled_up(model.recurrent.abs().sum(0), len(model.recurrent))
    rate = rounded_up(float(columns.max()) * gain)
    return by_theorem(
        problem,
        rate,
        Metric("sup", weights),
        Domain("all"),
        "Proposition 32",
        (Assumption("largest column sum of |W| times adjacency gain", rate, 1.0),),
    )
