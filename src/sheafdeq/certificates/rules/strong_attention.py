"""StrongAttnDEQ, for every weight (Theorem 24)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Assumption, Certificate
from sheafdeq.certificates.collatz_wielandt import spectral_norm_bound
from sheafdeq.certificates.interval import EPSILON, scaled_up
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import (
    PLAIN,
    gate_objection,
    rounded_up,
    within_budget,
)
from sheafdeq.models.strong_attention import StrongAttnDEQ

__all__ = ["attention_norms", "strong_attention"]


@torch.no_grad()
def attention_norms(model: StrongAttnDEQ, query_weight: Tensor) -> Tensor:
    """(M,) upper bounds of ||G^m||_2, G^m = Q^m^T K^m / sqrt(q), with Q (c, c) the matrix the
    context uses.

    The product is rounded to fl(G), |G - fl(G)| <= E = (q + 8) 2^-52 |Q|^T|K| / sqrt(q), so ||G||_2
    <= ||fl(G)||_2 + (sum of E); the first norm is bounded a posteriori
    (:func:`spectral_norm_bound`).
    """
    heads, q, c = model.heads, model.channels, model.width
    query, key = query_weight.view(heads, q, c), model.key.weight.view(heads, q, c)
    forms = query.transpose(1, 2) @ key * q**-0.5  # (M, c, c)
    sizes = query.abs().transpose(1, 2) @ key.abs() * q**-0.5
    rounding = scaled_up(sizes, 2 * q) * ((q + 8) * EPSILON)
    error = scaled_up(rounding.sum((1, 2)), c * c)
    return scaled_up(spectral_norm_bound(forms) + error, 2)


@rule(
    StrongAttnDEQ,
    proof="Theorem 24",
    modules=PLAIN,
    free=("budgeted_query",),
    condition=gate_objection,
)
@torch.no_grad()
def strong_attention(problem: Problem) -> Certificate:
    """Theorem 24: rate (1 + D) m(beta), D = (2 + sqrt 2) max_m ||G^m||_2 of the attention forms in
    use."""
    model = problem.model
    assert isinstance(model, StrongAttnDEQ)
    norm = float(attention_norms(model, problem.context.query_weight).max())
    sensitivity = rounded_up((2.0 + math.sqrt(2.0)) * norm)
    coefficient = model.gate.coefficient(model.shift).upper
    kept = Assumption(
        "sensitivity D = (2 + sqrt 2) max |G| at most 1/m(beta) - 1",
        sensitivity,
        1.0 / coefficient - 1.0,
    )
    return within_budget(problem, sensitivity, "D", "Theorem 24", kept)
