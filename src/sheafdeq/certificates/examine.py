"""Examination of any equilibrium model: what is reached, the rate there, do other starts agree.
Proves nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.certificate import Certificate, Level, Verdict, Witness
from sheafdeq.certificates.collatz_wielandt import (
    PerronBounds,
    block_norms,
    collatz_wielandt,
    spectral_radius_estimate,
)
from sheafdeq.certificates.jacobian import jacobian, log_jacobian
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.refute import (
    DENSE_LIMIT,
    JACOBIAN_LIMIT,
    Settled,
    newton,
    random_starts,
    search,
    settle,
)
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.diagnostics import spectral_radius
from sheafdeq.distances import SUP, THOMPSON

__all__ = [
    "Local",
    "examine",
    "grounds_of",
    "local_rates",
    "measure",
    "reach_equilibrium",
    "seek_witness",
    "verdict_on",
]


def is_positive(problem: Problem) -> bool:
    """Whether the model keeps states positive (then Thompson's metric is used, else the largest
    difference)."""
    shift = getattr(problem.model, "shift", None)
    return shift is not None and bool((problem.model.initial_state(problem.context) > 0).all())


@torch.no_grad()
def reach_equilibrium(problem: Problem) -> Settled:
    """The state the default start leads to, at the limit of the precision if it settles."""
    positive = is_positive(problem)
    distance = THOMPSON if positive else SUP
    start = (
        problem.equilibrium
        if problem.equilibrium is not None
        else problem.model.initial_state(problem.context)
    )

    def step(state: Tensor) -> Tensor:
        return problem.model.step(state, problem.context)

    reached = settle(step, start, steps=problem.effort.steps, distance=distance)
    small = reached.state.numel() <= DENSE_LIMIT and hasattr(problem.model, "local_step")
    if small and 1e-13 < reached.residual < 1e-2:
        reached = newton(problem.model, problem.context, reached, distance=distance)  # type: ignore[arg-type]
    return reached


class Local:
    """Rates at one state: |J| entry by entry, node blocks, and the spectral radius (an
    estimate)."""

    def __init__(self, matrix: BlockMatrix, effort_blocks: bool) -> None:
        self.matrix = matrix
        self.bounds: PerronBounds = collatz_wielandt(matrix.magnitude())
        self.spectral_radius = spectral_radius_estimate(matrix)
        self.block_two = math.nan
        if effort_blocks:
            plain = collatz_wielandt(block_norms(matrix, "two")).upper
            scaled = collatz_wielandt(block_norms(matrix, "two", self.bounds.weights)).upper
            self.block_two = min(plain, scaled)

    def facts(self) -> dict[str, float]:
        """For a certificate's observations."""
        facts = {
            "largest row sum of |J|": float(
                self.matrix.magnitude().apply(torch.ones_like(self.bounds.weights)).max()
            ),
            "Perron root of |J|, lower": self.bounds.lower,
            "Perron root of |J|, upper": self.bounds.upper,
            "spectral radius of J (estimate)": self.spectral_radius,
        }
        if not math.isnan(self.block_two):
            facts["node blocks in the 2-norm, upper"] = self.block_two
        return facts


def local_rates(problem: Problem, state: Tensor) -> Local | None:
    """At ``state``, in log coordinates for positive models; None for models without ``local_step``
    and for huge Jacobians."""
    if not hasattr(problem.model, "local_step") or getattr(problem.context, "edges", None) is None:
        return None
    if 8 * (state.shape[0] + problem.graph.num_edges) * state.shape[1] ** 2 > JACOBIAN_LIMIT:
        return None
    make = log_jacobian if is_positive(problem) else jacobian
    return Local(make(problem.model, state, problem.context), problem.effort.block_norms)  # type: ignore[arg-type]


def seek_witness(
    problem: Problem, reached: Settled, enclosure: SheafEnclosure | None = None
) -> tuple[Witness | None, dict[str, Any]]:
    """Other starts: a witness against uniqueness, or what they did."""
    positive = is_positive(problem)
    shape = (reached.state.shape[0], reached.state.shape[1])
    box = None
    if enclosure is not None:
        centre, width = enclosure.invariant_box()
        box = ((centre - width).exp(), (centre + width).exp())
    starts = random_starts(shape, problem.effort.starts, problem.seed, box)
    if not positive:
        # of its own: the verdict must not depend on what was drawn elsewhere
        signs = torch.Generator().manual_seed(problem.seed)
        starts = [
            (
                name,
                torch.where(
                    torch.rand(shape, generator=signs, dtype=start.dtype) < 0.5, start, -start
                ),
            )
            for name, start in starts
        ]
    witness, log = search(
        problem.model,
        problem.context,
        reached,
        starts=starts,
        steps=problem.effort.steps,
        enclosure=enclosure,
        distance=THOMPSON if positive else SUP,
    )
    agreeing = sum(entry["distance"] < 1e-6 for entry in log)
    settled = sum(entry["residual"] <= 1e-9 for entry in log)
    facts = {
        "starts tried": len(log),
        "of these settled": settled,
        "of these at the reached state": agreeing,
        "starts": log,
    }
    return witness, facts


def verdict_on(witness: Witness | None) -> Verdict:
    """REFUTED needs a proof; two states without one are candidates."""
    if witness is None:
        return Verdict.NOT_CERTIFIED
    return Verdict.REFUTED if witness.proved else Verdict.TWO_CANDIDATES


def grounds_of(witness: Witness) -> str:
    """The part of Proposition 30 a witness rests on."""
    return "Proposition 30(c)" if witness.proved else "Proposition 30(b)"


def measure(problem: Problem) -> dict[str, Any]:
    """What a certified model does, for comparison: the residual where it comes to rest, and the
    spectral radius there."""
    reached = reach_equilibrium(problem)
    observations: dict[str, Any] = {"residual": reached.residual, "steps": reached.steps}
    if reached.converged and reached.state.numel():
        radius = spectral_radius(problem.model, problem.graph, reached.state).radius
        observations["at the reached state"] = {"spectral radius of J (estimate)": radius}
    return observations


@torch.no_grad()
def examine(problem: Problem) -> Certificate:
    """No theorem: residual, rate at the reached state, agreement of starts. NOT_CERTIFIED, or
    TWO_CANDIDATES with their states."""
    reached = reach_equilibrium(problem)
    observations: dict[str, Any] = {"residual": reached.residual, "steps": reached.steps}
    level = Level.NONE
    if reached.converged:
        local = local_rates(problem, reached.state)
        if local is not None:
            observations["at the reached state"] = local.facts()
            level = (
                Level.LOCAL
                if min(local.bounds.upper, local.block_two if local.block_two >= 0 else math.inf)
                < 1
                else level
            )
    witness, facts = seek_witness(problem, reached)
    observations |= facts
    return Certificate(
        verdict=verdict_on(witness),
        level=level if witness is None else Level.NONE,
        model=problem.title,
        graph=problem.place,
        grounds="no rule is registered for this model" if witness is None else grounds_of(witness),
        observations=observations,
        witness=witness,
    )
