"""The rules: hypotheses of numbered statements in ``docs/theory.md``, checked on the actual
weights, with margins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.certificates.ball import Ball, largest_ball
from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.box import global_box
from sheafdeq.certificates.cascade import joint_bounds, level_rates
from sheafdeq.certificates.certificate import (
    Assumption,
    Certificate,
    Domain,
    Level,
    Metric,
    Verdict,
)
from sheafdeq.certificates.collatz_wielandt import damped_weights, quotients, spectral_norm_bound
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
from sheafdeq.certificates.interval import EPSILON, scaled_up
from sheafdeq.certificates.refute import Settled
from sheafdeq.certificates.rules import Problem, rule
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.equilibrium import Readout
from sheafdeq.layers.gates import GATES, Gate
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import PICNN, EnergyGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_cascade import Level as CascadeLevel
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.theory.coefficients import mu_positive

__all__ = [
    "appnp",
    "eignn",
    "energy_gnn",
    "ignn",
    "sheaf_cascade",
    "sheaf_deq",
    "strong_attention",
    "strong_sheaf",
]

PLAIN = (nn.LayerNorm, nn.Linear, nn.ModuleList, nn.ReLU, nn.Sequential, Readout)
"""The submodules the proofs know: with exactly these types a weight is what the layer computes
with."""
PROVED_GATES = {name: GATES[name] for name in ("tanh", "rational", "balance")}
"""The gates whose coefficients are proved (Lemma 10); one with another action or another
coefficient is not covered."""
WEIGHT_AIM = 0.5
"""Share of the way from the Perron root to one at which the rounder weights of the ball aim."""


def _gate_objection(model: Any) -> str | None:
    gate = model.gate
    if type(gate) is Gate and gate == PROVED_GATES.get(gate.name):
        return None
    return (
        f"the gate {getattr(gate, 'name', gate)!r} is not one of those whose coefficient is "
        f"proved ({', '.join(PROVED_GATES)})"
    )


# ---------------------------------------------------------------------- SheafDEQ: one model on one
# graph


@rule(SheafDEQ, modules=PLAIN)
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
        return _certified(
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
            found, _ = largest_ball(
                enclosure, reached.state, weights, evaluations=problem.effort.ball_evaluations
            )
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
    if witness is not None:
        return Certificate(
            verdict_on(witness),
            Level.NONE,
            problem.title,
            problem.place,
            grounds=grounds_of(witness),
            observations=observations,
            witness=witness,
        )
    if ball is None:
        reason = (
            f"the bound of the rate over the last box is {box.rate:.4g}, not below 1, and "
            f"{_no_ball(reached, local)}"
        )
        return Certificate(
            Verdict.NOT_CERTIFIED,
            level,
            problem.title,
            problem.place,
            observations=observations,
            reason=reason,
        )
    lower, upper = ball.bounds()
    return _certified(
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


# ---------------------------------------------------------------------- models with a norm
# constraint


def adjacency_gain(own: Tensor | None, edge: Tensor, problem: Problem) -> tuple[float, Tensor]:
    """Upper bound of max_v (A w)_v / w_v with w = sqrt(deg), and w (n, 1): Lemma 31, on the rounded
    numbers actually used."""
    incidence = problem.context.incidence
    n = incidence.num_targets
    diagonal = edge.new_zeros(n) if own is None else own
    matrix = BlockMatrix(incidence, diagonal.view(n, 1, 1), edge.view(-1, 1, 1))
    counts = (incidence.pointer[1:] - incidence.pointer[:-1]).to(edge.dtype)
    weights = ((counts + 1) if own is not None else counts.clamp(min=1)).sqrt().view(n, 1)
    gain = float(quotients(matrix, weights).max()) if n else 0.0
    return gain, weights


@rule(IGNN, modules=PLAIN)
@torch.no_grad()
def ignn(problem: Problem) -> Certificate:
    """Proposition 32: rate = (largest column sum of |W|) times the gain of the adjacency."""
    model = problem.model
    assert isinstance(model, IGNN)
    gain, weights = adjacency_gain(problem.context.own_weight, problem.context.edge_weight, problem)
    columns = scaled_up(model.recurrent.abs().sum(0), len(model.recurrent))
    rate = _up(float(columns.max()) * gain)
    return _by_theorem(
        problem,
        rate,
        Metric("sup", weights),
        Domain("all"),
        "Proposition 32",
        (Assumption("largest column sum of |W| times adjacency gain", rate, 1.0),),
    )


@rule(APPNP, modules=PLAIN)
@torch.no_grad()
def appnp(problem: Problem) -> Certificate:
    """Propositions 33 and 34: rate 1 - alpha, with or without the shifted tanh; better when the
    drive is not negative."""
    model = problem.model
    assert isinstance(model, APPNP)
    if model.shift is not None and bool((problem.context.drive >= 0).all()):
        coefficient = mu_positive(model.shift).upper
        if coefficient < 1.0 - model.alpha:
            return _by_theorem(
                problem,
                coefficient,
                Metric("thompson"),
                Domain("positive"),
                "Proposition 34(b)",
                (Assumption("coefficient of the positive tanh", coefficient, 1.0),),
            )
    gain, weights = adjacency_gain(problem.context.own_weight, problem.context.edge_weight, problem)
    rate = _up((1.0 - model.alpha) * gain)
    return _by_theorem(
        problem,
        rate,
        Metric("sup", weights),
        Domain("all"),
        "Proposition 33" if model.shift is None else "Proposition 34(a)",
        (Assumption("(1 - alpha) times adjacency gain", rate, 1.0),),
    )


@rule(EIGNN, modules=PLAIN)
@torch.no_grad()
def eignn(problem: Problem) -> Certificate:
    """Proposition 35: rate = ||M||_2 times the gain of the adjacency, node rows in the Euclidean
    norm."""
    model = problem.model
    assert isinstance(model, EIGNN)
    own = problem.context.own_weight if model.self_loops else None
    gain, weights = adjacency_gain(own, problem.context.edge_weight, problem)
    norm = float(spectral_norm_bound(problem.context.mixing.unsqueeze(0))[0])
    rate = _up(norm * gain)
    return _by_theorem(
        problem,
        rate,
        Metric("block", weights),
        Domain("all"),
        "Proposition 35",
        (Assumption("||M||_2 times adjacency gain", rate, 1.0),),
    )


@rule(EnergyGNN, modules=(*PLAIN, PICNN))
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
        hessian = _hessian_bound(model, problem.context)
        curvature = float((step * hessian).max()) * (1 + 1e-9)
        rate = _up(max(1.0 - float(step.min()) * model.beta, curvature - 1.0))
    return _by_theorem(
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


def _hessian_bound(model: EnergyGNN, context: Any) -> Tensor:
    """(n, 1) Lambda: largest row sum of the matrix with phi' = 1 and phi'' = 1/4 everywhere, for
    each node's graph.

    It is made afresh, not taken from the step length in the context. Sums of positive terms:
    rounding is far below 1e-9.
    """
    return model._safe_step(context).reciprocal() * (1 + 1e-9)


# ---------------------------------------------------------------------- models guaranteed for every
# weight


@rule(StrongSheafDEQ, modules=PLAIN, condition=_gate_objection)
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
    coefficient = model.gate.coefficient(model.shift).upper
    rate = _up((1.0 + lipschitz) * coefficient)
    return _by_theorem(
        problem,
        rate,
        Metric("thompson"),
        Domain("positive"),
        "Theorem 22",
        (
            Assumption("coefficient m(beta) of the gate", coefficient, 1.0),
            Assumption("Lipschitz bound of the logits within the budget", lipschitz, model.budget),
            _drive_is_not_negative(problem),
            Assumption("(1 + k) m(beta) below 1", rate, 1.0),
        ),
    )


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


@rule(StrongAttnDEQ, modules=PLAIN, free=("budgeted_query",), condition=_gate_objection)
@torch.no_grad()
def strong_attention(problem: Problem) -> Certificate:
    """Theorem 24: rate (1 + D) m(beta), D = (2 + sqrt 2) max_m ||G^m||_2 of the attention forms in
    use."""
    model = problem.model
    assert isinstance(model, StrongAttnDEQ)
    norm = float(attention_norms(model, problem.context.query_weight).max())
    sensitivity = _up((2.0 + math.sqrt(2.0)) * norm)
    coefficient = model.gate.coefficient(model.shift).upper
    rate = _up((1.0 + sensitivity) * coefficient)
    return _by_theorem(
        problem,
        rate,
        Metric("thompson"),
        Domain("positive"),
        "Theorem 24",
        (
            Assumption("coefficient m(beta) of the gate", coefficient, 1.0),
            Assumption(
                "sensitivity D = (2 + sqrt 2) max |G| at most 1/m(beta) - 1",
                sensitivity,
                1.0 / coefficient - 1.0,
            ),
            _drive_is_not_negative(problem),
            Assumption("(1 + D) m(beta) below 1", rate, 1.0),
        ),
    )


@rule(SheafCascade, modules=(*PLAIN, CascadeLevel), condition=_gate_objection)
@torch.no_grad()
def sheaf_cascade(problem: Problem) -> Certificate:
    """Theorem 23: every level contracts with m(beta) given the levels below; jointly, with every
    rate above it."""
    model = problem.model
    assert isinstance(model, SheafCascade)
    coefficient = model.gate.coefficient(model.shift).upper
    smallest = float(problem.context.first_drive.min()) if problem.graph.num_nodes else 0.0
    joint = joint_bounds(model, problem.context)
    return _by_theorem(
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


# ---------------------------------------------------------------------- pieces


def _drive_is_not_negative(problem: Problem) -> Assumption:
    drive = problem.context.drive
    return Assumption(
        "minus the smallest drive at most 0",
        0.0 - float(drive.min()) if drive.numel() else 0.0,
        0.0,
    )


def _up(value: float) -> float:
    return math.nextafter(value * (1 + 8 * EPSILON), math.inf)


def _by_theorem(
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
        certificate = _certified(
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


def _certified(
    problem: Problem,
    level: Level,
    rate: float,
    metric: Metric,
    domain: Domain,
    grounds: str,
    assumptions: tuple[Assumption, ...],
    observations: dict[str, Any],
    radius: float | None = None,
) -> Certificate:
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
        observations,
    )
