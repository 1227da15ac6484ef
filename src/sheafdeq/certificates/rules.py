"""Which argument is tried for which model: one rule for each model type, and users may bring their own.

    @rule(MyModel)
    def my_rule(problem: Problem) -> Certificate: ...

A rule receives everything in float64 and returns a :class:`Certificate`. It is looked up along the class hierarchy of the model,
the most specific first; a model without a rule is examined without any theorem (:func:`~.examine.examine`) and never certified.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Certificate
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["EFFORTS", "Effort", "Problem", "Rule", "certify", "rule", "rule_for", "use_rule"]


@dataclass(frozen=True)
class Effort:
    """How hard to try. More effort finds more proofs and more second equilibria; it never changes what counts as one."""

    name: str
    steps: int  # of each solve
    starts: int  # tried in the search for a second equilibrium
    ball_evaluations: int  # enclosures spent on the largest ball, for each choice of weights
    box_rounds: int  # enclosures spent on shrinking the global box
    block_norms: bool  # spectral norms of all node blocks beside the entrywise bound; for certified models the measured rates


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
_RULES: dict[type, Rule] = {}


def rule(*types: type) -> Callable[[Rule], Rule]:
    """Register a rule for model types (a decorator)."""

    def register(function: Rule) -> Rule:
        for kind in types:
            _RULES[kind] = function
        return function

    return register


def use_rule(kind: type, function: Rule) -> None:
    """Register a rule without a decorator; it replaces an earlier one for the same type."""
    _RULES[kind] = function


def rule_for(kind: type) -> Rule:
    """The rule of a model type: its own, else that of its nearest base class, else examination without a theorem."""
    from sheafdeq.certificates import contraction, examine  # they register themselves through this module

    assert contraction.__name__
    for base in kind.__mro__:
        if base in _RULES:
            return _RULES[base]
    return examine.examine


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

    The model and the graph are copied to float64 and evaluation mode; the statement is about the map with exactly these weights
    and the prepared context's numbers, in exact arithmetic. ``equilibrium`` (n, c) is a state to examine instead of one found
    here; ``with_rule`` overrides the registered rule.
    """
    if not isinstance(model, EquilibriumModel):
        raise InputError(f"{type(model).__name__} is not an equilibrium model: there is no iteration to certify")
    if isinstance(effort, str):
        if effort not in EFFORTS:
            raise InputError(f"unknown effort {effort!r}: choose one of {', '.join(EFFORTS)}")
        effort = EFFORTS[effort]
    started = time.perf_counter()
    model = copy.deepcopy(model).to("cpu", torch.float64).eval()
    graph = graph.to("cpu", torch.float64)
    model.check(graph)
    with torch.no_grad():
        context = model.prepare(graph)
    if equilibrium is not None:
        equilibrium = equilibrium.detach().to("cpu", torch.float64)
    problem = Problem(model, graph, context, equilibrium, effort, seed)
    certificate = (with_rule or rule_for(type(model)))(problem)
    return replace(certificate, seconds=time.perf_counter() - started)
