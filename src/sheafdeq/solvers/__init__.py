"""Solvers. They see a bound callable ``f(state)``, never a graph or a model, and pass through one
loop."""

from __future__ import annotations

from typing import Protocol, TypedDict

from torch import Tensor
from typing_extensions import Unpack

from sheafdeq.errors import InputError
from sheafdeq.solvers.anderson import Anderson
from sheafdeq.solvers.conjugate_gradients import ConjugateGradients
from sheafdeq.solvers.iterate import Function, Observer, iterate
from sheafdeq.solvers.lbfgs import LBFGS
from sheafdeq.solvers.partition import ONE_GRAPH, Partition
from sheafdeq.solvers.picard import Picard
from sheafdeq.solvers.solution import Solution, Status
from sheafdeq.solvers.stopping import Stopping

__all__ = [
    "LBFGS",
    "ONE_GRAPH",
    "Anderson",
    "ConjugateGradients",
    "Partition",
    "Picard",
    "Solution",
    "SolveOptions",
    "Solver",
    "Status",
    "Stopping",
    "iterate",
    "solver_from",
]


class SolveOptions(TypedDict, total=False):
    """What a solve may be told beside map and start: graphs that are judged one by one, and who is
    called with every state."""

    partition: Partition
    observe: Observer | None


class Solver(Protocol):
    """Anything that finds (or fails to find, and says so) a fixed point of ``f``."""

    @property
    def steps(self) -> int:
        """Step limit."""

    @property
    def stop_early(self) -> bool:
        """Whether a graph stops where its residual is within tolerance."""

    def with_steps(self, steps: int) -> Solver:
        """The same solver with another step limit."""

    def solve(
        self, function: Function, initial: Tensor, **options: Unpack[SolveOptions]
    ) -> Solution:
        """Iterate ``function`` from ``initial`` and report."""


def solver_from(choice: str | Solver | None, steps: int) -> Solver:
    """A solver object, or one of the names ``picard`` (fixed ``steps``) and ``anderson`` (at most
    ``steps``)."""
    if choice is None or choice == "picard":
        return Picard(steps=steps)
    if choice == "anderson":
        return Anderson(steps=steps)
    if isinstance(choice, str | type) or not callable(getattr(choice, "solve", None)):
        raise InputError(
            f"unknown solver {choice!r}: choose 'picard', 'anderson', or pass a solver object such "
            "as Anderson(100)"
        )
    return choice
