"""Which argument is tried for which model: one rule for each model type, and users may bring their
own.

    @rule(MyModel, proof="Theorem 1 of my paper")
    def my_rule(problem: Problem) -> Certificate: ...

A rule receives everything in float64 and returns a :class:`Certificate`. It is looked up along the
class hierarchy of the model, the most specific first; a model without a rule is examined without
any theorem (:func:`~.examine.examine`) and never certified. The rules of this package are in
:mod:`.rules`, one file a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sheafdeq.certificates.admission import Scope
from sheafdeq.certificates.certificate import Certificate
from sheafdeq.certificates.examine import examine
from sheafdeq.certificates.problem import Problem

__all__ = ["Prover", "Rule", "registered_rule", "rule", "rule_for", "use_rule"]

Prover = Callable[[Problem], Certificate]


@dataclass(frozen=True, eq=False)
class Rule:
    """An argument, what it may be applied to, and where it is proved."""

    prove: Prover
    scope: Scope
    proof: str = ""  # of docs/theory.md, or a reference


_RULES: dict[type, Rule] = {}


def rule(
    *types: type,
    proof: str = "",
    free: Iterable[str] = (),
    modules: Iterable[type] | None = None,
    condition: Callable[[Any], str | None] | None = None,
) -> Callable[[Prover], Prover]:
    """Register a rule for model types (a decorator).

    A subclass may override the names in ``free`` (beside :data:`~.admission.FREE`) and keeps the
    rule; overriding anything else the class has loses it. ``modules`` and ``condition``: see
    :class:`~.admission.Scope`. ``proof`` names the statements the rule rests on.
    """

    def register(function: Prover) -> Prover:
        for kind in types:
            _RULES[kind] = Rule(function, Scope.of(kind, free, modules, condition), proof)
        return function

    return register


def use_rule(kind: type, function: Prover, *, free: Iterable[str] = ()) -> None:
    """Register a rule without a decorator; it replaces an earlier one for the same type."""
    rule(kind, free=free)(function)


def registered_rule(kind: type) -> Rule | None:
    """The rule of a model type: its own, else that of its nearest base class."""
    return next((_RULES[base] for base in kind.__mro__ if base in _RULES), None)


def rule_for(kind: type) -> Prover:
    """The argument that is tried for a model type; examination without a theorem where there is no
    rule.

    :func:`certify` asks besides whether the rule applies: a subclass may have lost it.
    """
    found = registered_rule(kind)
    return examine if found is None else found.prove
