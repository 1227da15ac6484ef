"""Gradient rules, as objects passed beside the solver."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from sheafdeq.adjoints.implicit import Implicit
from sheafdeq.adjoints.truncated import Truncated
from sheafdeq.adjoints.unrolled import Unrolled
from sheafdeq.errors import InputError
from sheafdeq.solvers import Solution, Solver
from sheafdeq.solvers.iterate import Function

__all__ = ["Adjoint", "Implicit", "Truncated", "Unrolled", "adjoint_from"]


class Adjoint(Protocol):
    """Solves with some solver so that the returned value carries gradients."""

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        """Solve ``z = function(z)`` from ``initial``."""


def adjoint_from(choice: str | Adjoint) -> Adjoint:
    """An adjoint object, or one of ``unrolled``, ``implicit``, ``truncated`` (or
    ``truncated:k``)."""
    if isinstance(choice, type) or not (
        isinstance(choice, str) or callable(getattr(choice, "solve", None))
    ):
        raise InputError(
            f"unknown gradient {choice!r}: choose 'unrolled', 'implicit', 'truncated' or "
            "'truncated:k', or pass an adjoint object such as Implicit()"
        )
    if not isinstance(choice, str):
        return choice
    if choice == "unrolled":
        return Unrolled()
    if choice == "implicit":
        return Implicit()
    name, _, count = choice.partition(":")
    if name == "truncated" and (not count or count.isdigit()):
        return Truncated(int(count)) if count else Truncated()
    raise InputError(
        f"unknown gradient {choice!r}: choose 'unrolled', 'implicit', 'truncated' or 'truncated:k'"
    )
