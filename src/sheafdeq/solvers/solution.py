"""What an iteration hands back: the state, and the truth about how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from sheafdeq.errors import ConvergenceError

__all__ = ["AdjointReport", "Solution", "Status"]


class Status(Enum):
    """How an iteration ended. ``severity`` orders the members from good to bad."""

    CONVERGED = ("converged", 0, "the residual at the returned state is within tolerance", "nothing to do")
    MAX_STEPS = (
        "maximum-steps",
        1,
        "the step limit came before the tolerance",
        "allow more steps, or accept the state as a finite-horizon result",
    )
    STAGNATED = (
        "stagnated",
        2,
        "the residual stopped falling above the tolerance (a cycle, or the limit of the precision)",
        "try damping (Picard(damping=0.3)), Anderson, float64, or fine-tune with a residual penalty",
    )
    DIVERGED = (
        "diverged",
        3,
        "the state or its residual grew without bound",
        "the map does not contract here: use damping, another start, or a model with a guarantee",
    )
    NON_FINITE = (
        "non-finite",
        4,
        "the map returned NaN or infinity",
        "look for overflow in the features or weights; the last finite state is returned",
    )

    def __init__(self, label: str, severity: int, cause: str, remedy: str) -> None:
        self.label = label
        self.severity = severity
        self.cause = cause
        self.remedy = remedy

    @property
    def ok(self) -> bool:
        """True for CONVERGED only."""
        return self is Status.CONVERGED

    @staticmethod
    def worst(statuses: list[Status] | tuple[Status, ...]) -> Status:
        """The most severe of several (merging graphs of a batch); CONVERGED for none."""
        return max(statuses, key=lambda s: s.severity, default=Status.CONVERGED)

    def __str__(self) -> str:
        return self.label


@dataclass
class AdjointReport:
    """Where a backward pass leaves its solution; separate from the forward one, which would otherwise be kept in a cycle."""

    solution: Solution | None = None


@dataclass
class Solution:
    """The end of one iteration.

    ``residuals[k]`` is the largest per-node distance between f(z_k) and z_k, for every evaluation that was
    traced; the list is as long as the iteration really was. For a batch, ``graph_status``, ``graph_residual`` and
    ``graph_steps`` say the same of every graph on its own, and ``status`` is the worst of them.
    ``backward`` is filled in by an implicit gradient once ``backward()`` has run.
    """

    value: Tensor  # (n, c)
    status: Status
    steps: int
    evaluations: int
    residuals: list[float]
    distance: str
    tolerance: float | None
    graph_status: tuple[Status, ...] = ()
    graph_residual: Tensor = field(default_factory=lambda: torch.empty(0))
    graph_steps: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    adjoint: AdjointReport | None = field(default=None, repr=False)

    @property
    def backward(self) -> Solution | None:
        """How the backward solve of an implicit gradient ended (None before ``backward()`` and for other gradients)."""
        return self.adjoint.solution if self.adjoint is not None else None

    @property
    def residual(self) -> float:
        """The last measured residual, largest over nodes (NaN when nothing was measured)."""
        return self.residuals[-1] if self.residuals else float("nan")

    @property
    def converged(self) -> bool:
        """Whether every graph converged."""
        return self.status.ok

    def raise_if_failed(self) -> Solution:
        """Return self, or raise :class:`~sheafdeq.errors.ConvergenceError` with this solution attached."""
        if not self.converged:
            raise ConvergenceError(str(self), self)
        return self

    def status_counts(self) -> dict[str, int]:
        """How many graphs ended in which status."""
        counts: dict[str, int] = {}
        for status in self.graph_status or (self.status,):
            counts[status.label] = counts.get(status.label, 0) + 1
        return counts

    def __str__(self) -> str:
        text = f"{self.status.label} after {self.steps} steps, {self.distance} residual {self.residual:.3g}"
        if self.tolerance is not None:
            text += f" (tolerance {self.tolerance:.3g})"
        if not self.converged:
            text += f": {self.status.cause}; {self.status.remedy}"
        return text
