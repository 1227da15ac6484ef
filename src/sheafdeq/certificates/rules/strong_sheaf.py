"""StrongSheafDEQ, for every weight (Theorem 22)."""

from __future__ import annotations

import torch

from sheafdeq.certificates.certificate import Assumption, Certificate
from sheafdeq.certificates.interval import EPSILON
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, gate_objection, within_budget
from sheafdeq.models.strong_sheaf import StrongSheafDEQ

__all__ = ["strong_sheaf"]


@rule(StrongSheafDEQ, proof="Theorem 22", modules=PLAIN, condition=gate_objection)
@torch.no_grad()
def strong_sheaf(problem: Problem) -> Certificate:
    """Theorem 22: rate (1 + k) m(beta), k the Lipschitz bound of the logits in use (Lemma 20), not
    above the model's budget."""
    model = problem.model
    assert isinstance(model, StrongSheafDEQ)
    second = problem.context.budgeted
    spread = second.new_zeros(second.shape[1])
    for layer in (model.logit_source, model.logit_target):
        rows = layer.weight.view(-1, model.stalk_dim, model.channels)
        spread = spread + 0.5 * (rows.amax(-1) - rows.amin(-1)).sum(-1)
    lipschitz = float((second.abs() @ spread).max()) * (
        1 + 8 * (second.shape[1] + model.width) * EPSILON
    )
    kept = Assumption("Lipschitz bound of the logits within the budget", lipschitz, model.budget)
    return within_budget(problem, lipschitz, "k", "Theorem 22", kept)
