"""SheafDEQ: one model on one graph, by a global box (Theorem 29) or a ball (Theorem 28)."""

from __future__ import annotations

from typing import Any

import torch

from sheafdeq.certificates.ball import Ball, largest_ball
from sheafdeq.certificates.box import global_box
from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Level, Metric
from sheafdeq.certificates.collatz_wielandt import damped_weights
from sheafdeq.certificates.examine import (
    Local,
    examine,
    grounds_of,
    local_rates,
    measure,
    reach_equilibrium,
    seek_witness,
    verdict_on,
)
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.refute import Settled
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, certified
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["sheaf_deq"]

WEIGHT_AIM = 0.5
"""Share of the way from the Perron root to one at which the rounder weights of the ball aim."""


@rule(SheafDEQ, proof="Theorems 28 and 29, Proposition 30", modules=PLAIN)
@torch.no_grad()
def sheaf_deq(problem: Problem) -> Certificate:
    """Global box (Theorem 29), else ball (Theorem 28) around the reached state, and the search for
    a second equilibrium (30)."""
    model = problem.model
    assert isinstance(model, SheafDEQ)
    if problem.graph.num_nodes == 0:
        return examine(problem)
    enclosure = SheafEnclosure(model, problem.context)
    box = global_box(enclosure, rounds=problem.effort.box_rounds)
    observations: dict[str, Any] = {
        "bound over the invariant box": box.first_rate,
        "boxes examined": box.rounds + 1,
    }
    if box.rate < 1.0:
        lower, upper = box.bounds()
        if problem.effort.block_norms:
            observations |= measure(problem)
        return certified(
            problem,
            Level.GLOBAL,
            box.rate,
            Metric("thompson", box.weights / box.weights.min()),
            Domain("box", lower, upper, enters_after=box.rounds + 1),
            "Theorem 29, on a box that every start enters",
            (Assumption("rate over the box below 1", box.rate, 1.0),),
            observations,
        )
    observations["bound over the last box"] = box.rate
    reached = reach_equilibrium(problem)
    observations |= {"residual": reached.residual, "steps": reached.steps}
    ball: Ball | None = None
    level = Level.NONE
    local = local_rates(problem, reached.state)
    if local is None:
        observations["note"] = (
            "the Jacobian at the reached state is too large to be stored: no local rate, no ball"
        )
    else:
        observations["at the reached state"] = local.facts()
    if local is not None and local.bounds.upper < 1.0 and reached.converged:
        level = Level.LOCAL
        magnitude = local.matrix.magnitude()
        aim = local.bounds.upper + WEIGHT_AIM * (1.0 - local.bounds.upper)
        for weights in (damped_weights(magnitude, aim), local.bounds.weights):
            evaluations = problem.effort.ball_evaluations
            found = largest_ball(enclosure, reached.state, weights, evaluations)
            if found is not None and (ball is None or found.radius > ball.radius):
                ball = found
            if ball is not None and problem.effort.name != "thorough":
                break
    if ball is not None:
        observations["ball"] = {
            "radius": ball.radius,
            "rate on it": ball.rate,
            "rate at its centre": ball.local_rate,
            "equilibrium within": ball.distance_to_equilibrium,
            "smaller balls (radius, rate)": [list(pair) for pair in ball.rates[:-1]],
        }
    witness, facts = seek_witness(problem, reached, enclosure)
    observations |= facts
    if witness is not None or ball is None:
        reason = (
            f"the bound of the rate over the last box is {box.rate:.4g}, not below 1, and "
            f"{_no_ball(reached, local)}"
        )
        return Certificate(
            verdict_on(witness),
            level if witness is None else Level.NONE,
            problem.title,
            problem.place,
            grounds="" if witness is None else grounds_of(witness),
            observations=observations,
            witness=witness,
            reason=reason if witness is None else "",
        )
    lower, upper = ball.bounds()
    return certified(
        problem,
        Level.BALL,
        ball.rate,
        Metric("thompson", ball.weights),
        Domain("box", lower, upper),
        "Theorem 28",
        (
            Assumption("rate over the ball below 1", ball.rate, 1.0),
            Assumption(
                "residual of the centre at most (1 - rate) radius",
                ball.residual,
                (1.0 - ball.rate) * ball.radius,
            ),
        ),
        observations,
        radius=ball.radius,
    )


def _no_ball(reached: Settled, local: Local | None) -> str:
    """Why no ball was proved around the reached state."""
    if not reached.converged:
        return f"the iteration did not come to rest (residual {reached.residual:.2g})"
    if local is None:
        return "the Jacobian at the reached state is too large to be stored"
    if not local.bounds.upper < 1.0:
        return (
            "the Perron root of |J| at the reached state is bounded by "
            f"{local.bounds.upper:.4g} only"
        )
    return "no ball around the reached state could be proved"
