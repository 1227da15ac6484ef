"""What an iteration hands back: the state, and the truth about how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from sheafdeq.errors import ConvergenceError

__all__ = ["AdjointReport", "JointReport", "Solution", "Status"]


class Status(Enum):
    """How an iteration ended. ``severity`` orders the members from good to bad."""

    CONVERGED = (
        "converged",
        0,
        "the residual at the returned state is within tolerance",
        "nothing to do",
    )
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
        "try damping (Picard(damping=0.3)), Anderson, float64, or "
        "fine-tune with a residual penalty",
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
    """Where a backward pass leaves its solution; separate from the forward one, which would
    otherwise be kept in a cycle."""

    solution: Solution | None = None


class JointReport(AdjointReport):
    """The reports of several solves that were merged into one; read when the backward pass has
    filled them."""

    def __init__(self, parts: Sequence[AdjointReport]) -> None:
        self.parts = tuple(parts)

    @property
    def solution(self) -> Solution | None:  # type: ignore[override]
        """The backward solves that have run, merged as :meth:`Solution.merged` does it."""
        filled = [part.solution for part in self.parts if part.solution is not None]
        return Solution.merged(filled) if filled else None


@dataclass
class Solution:
    """The end of one iteration.

    ``residuals[k]`` is the largest per-node distance between f(z_k) and z_k, for every step that
    was traced; the list is as long as the iteration really was. ``graph_residual`` is the residual
    of the *returned* state, graph by graph: the one that was judged. ``graph_status`` and
    ``graph_steps`` belong to it, and ``status`` is the worst of them.

    ``tolerance`` is what the residual was held against: ``asked``, or what the precision resolves
    where that is more. A residual is known to within ``resolution`` (rounding of one step, in the
    units of the distance): the exact residual of a CONVERGED state is at most ``tolerance +
    resolution``.

    ``backward`` is filled in by an implicit gradient once ``backward()`` has run.
    """

    value: Tensor  # (n, c)
    status: Status
    steps: int
    evaluations: int
    residuals: list[float]
    distance: str
    tolerance: float | None
    asked: float | None = None
    resolution: float = 0.0
    graph_status: tuple[Status, ...] = ()
    graph_residual: Tensor = field(default_factory=lambda: torch.empty(0))
    graph_steps: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    adjoint: AdjointReport | None = field(default=None, repr=False)

    @property
    def backward(self) -> Solution | None:
        """How the backward solve of an implicit gradient ended (None before ``backward()`` and for
        other gradients)."""
        return self.adjoint.solution if self.adjoint is not None else None

    @staticmethod
    def merged(parts: Sequence[Solution]) -> Solution:
        """Solves of the same graphs side by side: values next to each other, the worst status and
        residual of every graph, all steps and evaluations, the traces one after the other, and
        their backward solves once these have run."""
        graph_status = tuple(
            Status.worst(statuses)
            for statuses in zip(*(part.graph_status for part in parts), strict=True)
        )
        reports = [part.adjoint for part in parts if part.adjoint is not None]
        tolerances = [part.tolerance for part in parts if part.tolerance is not None]
        return Solution(
            value=torch.cat([part.value for part in parts], dim=1),
            status=Status.worst([part.status for part in parts]),
            steps=sum(part.steps for part in parts),
            evaluations=sum(part.evaluations for part in parts),
            residuals=[residual for part in parts for residual in part.residuals],
            distance=parts[0].distance,
            tolerance=max(tolerances, default=None),
            asked=parts[0].asked,
            resolution=max(part.resolution for part in parts),
            graph_status=graph_status,
            graph_residual=torch.stack([part.graph_residual for part in parts]).amax(0),
            graph_steps=torch.stack([part.graph_steps for part in parts]).sum(0),
            adjoint=JointReport(reports) if reports else None,
        )

    @property
    def residual(self) -> float:
        """The residual of the returned state, the largest over graphs: what the status was decided
        by (NaN when not measured)."""
        if self.graph_residual.numel():
            return float(self.graph_residual.max())
        return self.residuals[-1] if self.residuals else float("nan")

    @property
    def converged(self) -> bool:
        """Whether every graph converged."""
        return self.status.ok

    def raise_if_failed(self) -> Solution:
        """Return self, or raise :class:`~sheafdeq.errors.ConvergenceError` with this solution
        attached."""
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
        text = (
            f"{self.status.label} after {self.steps} steps, {self.distance} residual "
            f"{self.residual:.3g}"
        )
        if self.tolerance is not None:
            text += f" (tolerance {self.tolerance:.3g}"
            if self.asked is not None and self.asked < self.tolerance:
                text += (
                    f", what {str(self.value.dtype).removeprefix('torch.')} resolves; "
                    f"{self.asked:.3g} was asked for"
                )
            text += ")"
            if self.resolution > self.tolerance:
                text += f", known only to {self.resolution:.3g} (rounding)"
        if not self.converged:
            text += f": {self.status.cause}; {self.status.remedy}"
        return text
