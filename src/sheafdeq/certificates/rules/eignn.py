"""EIGNN: node rows in the Euclidean norm (Proposition 35)."""

from __future__ import annotations

import torch

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Metric
from sheafdeq.certificates.collatz_wielandt import spectral_norm_bound
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, adjacency_gain, by_theorem, rounded_up
from sheafdeq.models.eignn import EIGNN

__all__ = ["eignn"]


@rule(EIGNN, proof="Proposition 35", modules=PLAIN)
@torch.no_grad()
def eignn(problem: Problem) -> Certificate:
    """Proposition 35: rate = ||M||_2 times the gain of the adjacency, node rows in the Euclidean
    norm."""
    model = problem.model
    assert isinstance(model, EIGNN)
    own = problem.context.own_weight if model.self_loops else None
    gain, weights = adjacency_gain(own, problem.context.edge_weight, problem)
    norm = float(spectral_norm_bound(problem.context.mixing.unsqueeze(0))[0])
    rate = rounded_up(norm * gain)
    return by_theorem(
        problem,
        rate,
        Metric("block", weights),
        Domain("all"),
        "Proposition 35",
        (Assumption("||M||_2 times adjacency gain", rate, 1.0),),
    )
