"""Which argument is tried for which model: one rule for each model type, and users may bring their
own.

    @rule(MyModel)
    def my_rule(problem: Problem) -> Certificate: ...

A rule receives everything in float64 and returns a :class:`Certificate`. It is looked up along the
class hierarchy of the model, the most specific first; a model without a rule is examined without
any theorem (:func:`~.examine.examine`) and never certified. Before any rule is asked, model,
context and one step must be finite, and the model must be the one the rule was written for, or a
subclass that overrides nothing the proof uses (:mod:`~.admission`). Where the arithmetic of a rule
leaves the range of float64 nothing is certified, and the reason is given: a finite model is never
answered with an exception.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.admission import Scope, not_finite
from sheafdeq.certificates.certificate import Certificate, Level, Verdict
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["EFFORTS", "Effort", "Problem", "Rule", "certify", "rule", "rule_for", "use_rule"]


@dataclass(frozen=True)
class Effort:
    """How hard to try. More effort finds more proofs and more second equilibria; it never changes
    what counts as one."""

    name: str
    steps: int  # of each solve
    starts: int  # tried in the search for a second equilibrium
    ball_evaluations: int  # enclosures spent on the largest ball, for each choice of weights
    box_rounds: int  # enclosures spent on shrinking the global box
    # spectral norms of all node blocks beside the entrywise bound; for certified models the
    # measured rates
    block_norms: bool


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("quick", 600, 3, 5, 8, False),
        Effort("normal", 1500, 7, 8, 40, True),
        Effort("thorough", 6000, 21, 14, 200, True),
    )
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A model and a graph in float64, prepared."""

    model: EquilibriumModel
    graph: Graph
    context: Any
    equilibrium: Tensor | None  # a state to examine, if the caller has one
    effort: Effort
    seed: int

    @property
    def title(self) -> str:
        """The model's name."""
        return type(self.model).__name__

    @property
    def place(self) -> str:
        """The graph in words."""
        return repr(self.graph)


Rule = Callable[[Problem], Certificate]


@dataclass(frozen=True, eq=False)
class _Registered:
    """A rule and what it may be applied to."""

    function: Rule
    scope: Scope


_RULES: dict[type, _Registered] = {}


def rule(
    *types: type,
    free: Iterable[str] = (),
    modules: Iterable[type] | None = None,
    condition: Callable[[Any], str | None] | None = None,
) -> Callable[[Rule], Rule]:
    """Register a rule for model types (a decorator).

    A subclass may override the names in ``free`` (beside :data:`~.admission.FREE`) and keeps the
    rule; overriding anything else the class has loses it. ``modules`` and ``condition``: see
    :class:`~.admission.Scope`.
    """

    def register(function: Rule) -> Rule:
        for kind in types:
            _RULES[kind] = _Registered(function, Scope.of(kind, free, modules, condition))
        return function

    return register


def use_rule(kind: type, function: Rule, *, free: Iterable[str] = ()) -> None:
    """Register a rule without a decorator; it replaces an earlier one for the same type."""
    rule(kind, free=free)(function)


def _registered(kind: type) -> _Registered | None:
    # the rules register themselves through this module
    from sheafdeq.certificates import contraction, relay

    assert contraction.__name__
    assert relay.__name__
    return next((_RULES[base] for base in kind.__mro__ if base in _RULES), None)


def rule_for(kind: type) -> Rule:
    """The rule of a model type: its own, else that of its nearest base class, else examination
    without a theorem.

    :func:`certify` asks besides whether the rule applies: a subclass may have lost it.
    """
    from sheafdeq.certificates.examine import examine

    found = _registered(kind)
    return examine if found is None else found.function


FAILURES = (ArithmeticError, torch.linalg.LinAlgError, InputError)
"""What the arithmetic of a proof may end in: a division by an interval around zero, an overflow, no
eigenvalues, an empty box."""


def certify(
    model: EquilibriumModel,
    graph: Graph,
    *,
    equilibrium: Tensor | None = None,
    effort: str | Effort = "normal",
    seed: int = 0,
    with_rule: Rule | None = None,
) -> Certificate:
    """What can be proved, or refuted, about this model on this graph.

    The model and the graph are copied to float64 and evaluation mode; the statement is about the
    map with exactly these weights and the prepared context's numbers, in exact arithmetic.
    ``equilibrium`` (n, c) is a state to examine instead of one found here; ``with_rule`` overrides
    the registered rule (the caller answers for its applying to this model).

    The same model, graph, effort and seed give the same certificate on the same machine with the
    same number of threads: every start is drawn from ``seed``, and nothing else is random.
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
    graph = graph.to("cpu", torch.float64)
    model.check(graph)
    if equilibrium is not None:
        equilibrium = equilibrium.detach().to("cpu", torch.float64)
        if not bool(torch.isfinite(equilibrium).all()):
            raise InputError(
                "the equilibrium to examine has entries that are not finite: leave "
                "it out, or give finite numbers"
            )
    certificate = _judged(model, graph, equilibrium, effort, seed, with_rule)
    return replace(certificate, seconds=time.perf_counter() - started)


def _judged(
    model: EquilibriumModel,
    graph: Graph,
    equilibrium: Tensor | None,
    effort: Effort,
    seed: int,
    with_rule: Rule | None,
) -> Certificate:
    """Admission, then the rule; whatever the arithmetic ends in is a reason, not an exception."""
    from sheafdeq.certificates.examine import examine

    def refused(reason: str) -> Certificate:
        return Certificate(
            Verdict.NOT_CERTIFIED, Level.NONE, type(model).__name__, repr(graph), reason=reason
        )

    found = None if with_rule is not None else _registered(type(model))
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
    chosen = with_rule or (examine if found is None or objection is not None else found.function)
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
