"""Certifying: admission, then the rule, then the verdict.

Before any rule is asked, model, context and one step must be finite, and the model must be the one
the rule was written for, or a subclass that overrides nothing the proof uses (:mod:`~.admission`).
Where the arithmetic of a rule leaves the range of float64 nothing is certified, and the reason is
given: a finite model is never answered with an exception.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from sheafdeq.certificates.admission import not_finite
from sheafdeq.certificates.certificate import Certificate, Level, Subject, Verdict
from sheafdeq.certificates.examine import examine
from sheafdeq.certificates.problem import EFFORTS, Effort, Problem
from sheafdeq.certificates.rule import Prover, registered_rule
from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["certify"]

FAILURES = (ArithmeticError, LinAlgError, InputError)
"""What the arithmetic of a proof may end in: a division by an interval around zero, an overflow, no
eigenvalues, an empty box."""


def certify(
    model: EquilibriumModel,
    graph: AnyGraph,
    *,
    equilibrium: Tensor | None = None,
    effort: str | Effort = "normal",
    seed: int = 0,
    with_rule: Prover | None = None,
) -> Certificate:
    """What can be proved, or refuted, about this model on this graph.

    The model and the graph are copied to float64 and evaluation mode; the statement is about the
    map with exactly these weights and the prepared context's numbers, in exact arithmetic.
    ``equilibrium`` (n, c) is a state to examine instead of one found here; ``with_rule`` overrides
    the registered rule (the caller answers for its applying to this model).

    The same model, graph, effort and seed give the same certificate on the same machine with the
    same number of threads: every start is drawn from ``seed``, and nothing else is random.

    ``certify(...).predictions`` goes on to the labels (:mod:`sheafdeq.predictions`).
    """
    if not isinstance(model, EquilibriumModel):
        raise InputError(
            f"{type(model).__name__} is not an equilibrium model: there is no iteration to certify"
        )
    if isinstance(effort, str):
        if effort not in EFFORTS:
            raise InputError(f"unknown effort {effort!r}: choose one of {', '.join(EFFORTS)}")
        effort = EFFORTS[effort]
    started = time.perf_counter()
    model = copy.deepcopy(model).to("cpu", torch.float64).eval()
    graph = Graph.of(graph).to("cpu", torch.float64)
    model.check(graph)
    if graph.num_nodes == 0:
        raise InputError(
            "the graph has no nodes, so there is no state to certify: give one or more"
        )
    if equilibrium is not None:
        equilibrium = equilibrium.detach().to("cpu", torch.float64)
        if not bool(torch.isfinite(equilibrium).all()):
            raise InputError(
                "the equilibrium to examine has entries that are not finite: leave "
                "it out, or give finite numbers"
            )
    certificate = _judged(model, graph, equilibrium, effort, seed, with_rule)
    return replace(
        certificate,
        seconds=time.perf_counter() - started,
        subject=Subject(model, graph, equilibrium),
    )


def _judged(
    model: EquilibriumModel,
    graph: Graph,
    equilibrium: Tensor | None,
    effort: Effort,
    seed: int,
    with_rule: Prover | None,
) -> Certificate:
    """Admission, then the rule; whatever the arithmetic ends in is a reason, not an exception."""

    def refused(reason: str) -> Certificate:
        return Certificate(
            Verdict.NOT_CERTIFIED, Level.NONE, type(model).__name__, repr(graph), reason=reason
        )

    if graph.edges.share is not None:
        return refused("the graph has an edge_weight, and the rules are written for plain edges")
    found = None if with_rule is not None else registered_rule(type(model))
    objection = None if found is None else found.scope.objection(model)
    # foreign code may fail in any way
    failures: tuple[type[Exception], ...] = FAILURES if objection is None else (Exception,)
    try:
        with torch.no_grad():
            context = model.prepare(graph)
        reason = not_finite(model, graph, context)
    except failures as error:
        # A parameter that is not finite is the better reason than what it led to.
        reason = objection or not_finite(model, graph)
        return refused(
            reason or f"preparing the graph, or the first step, ended in {_named(error)}"
        )
    if reason is not None:
        return refused(reason)
    problem = Problem(model, graph, context, equilibrium, effort, seed)
    chosen = with_rule or (examine if found is None or objection is not None else found.prove)
    try:
        certificate = chosen(problem)
    except failures as error:
        return refused(objection or f"the arithmetic of the proof ended in {_named(error)}")
    if objection is not None:
        return replace(
            certificate,
            reason=objection,
            grounds=certificate.grounds if certificate.witness is not None else "",
        )
    return certificate


def _named(error: BaseException) -> str:
    return f"{type(error).__name__} ({error})"
