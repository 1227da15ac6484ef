"""What is proved about one model on one graph: verdict, rate, metric, domain, assumptions with
margins, witness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = [
    "Assumption",
    "Certificate",
    "Domain",
    "Level",
    "Metric",
    "Subject",
    "Verdict",
    "Witness",
    "use_labels",
]


class Verdict(Enum):
    """CERTIFIED and REFUTED are proved: one equilibrium, with the rate; or two different ones. The
    others prove nothing.

    TWO_CANDIDATES: two different states that are fixed as far as float64 can tell; that two
    equilibria exist is not proved.
    NOT_CERTIFIED: neither proof nor candidates; it says nothing about the model.
    """

    CERTIFIED = "certified"
    NOT_CERTIFIED = "not certified"
    TWO_CANDIDATES = "two candidates"
    REFUTED = "refuted"

    def __str__(self) -> str:
        return self.value


class Level(Enum):
    """How far the claim reaches."""

    GLOBAL = "global"  # every start (of the domain), every bounded delay the metric covers
    BALL = "ball"  # every start within the stated radius of the equilibrium
    LOCAL = "local"  # the rate at the state that was reached; no neighbourhood is proved
    NONE = "none"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class Metric:
    """A distance between states. ``weights`` (n, c) or (n, 1) divide before the maximum; None means
    one.

    thompson   max over entries of |log x - log y| / w          (Definition 1)
    sup        max over entries of |x - y| / w
    block      max over nodes of ||x_v - y_v||_2 / w_v
    euclidean  ||x - y||_2 (no claim about delays follows from it)
    cascade    Thompson's metric of one of ``levels`` column groups, the groups below held equal;
               jointly every rate above the certified one holds in a Thompson metric whose
               weights grow with the level (Theorem 23)
    """

    kind: str
    weights: Tensor | None = None
    levels: int = 1

    def __call__(self, x: Tensor, y: Tensor) -> float:
        """The distance of two states (n, c)."""
        if x.numel() == 0:
            return 0.0
        if self.kind == "euclidean":
            return float(torch.linalg.vector_norm(x - y))
        difference = (x.log() - y.log() if self.kind in ("thompson", "cascade") else x - y).abs()
        if self.kind == "block":
            difference = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
        return float((difference if self.weights is None else difference / self.weights).max())

    @property
    def delays(self) -> bool:
        """Whether contraction in this metric covers bounded staleness (Theorem 25 needs a maximum
        over nodes)."""
        return self.kind != "euclidean"

    def __str__(self) -> str:
        names = {
            "thompson": "Thompson's metric",
            "sup": "the largest difference of entries",
            "block": "the largest Euclidean difference of node rows",
            "euclidean": "the Euclidean distance",
            "cascade": "Thompson's metric of that level (jointly: see the weights)",
        }
        if self.weights is None:
            return names[self.kind]
        return (
            f"{names[self.kind]}, weighted (weights {float(self.weights.min()):.3g} to "
            f"{float(self.weights.max()):.3g})"
        )


@dataclass(frozen=True, eq=False)
class Domain:
    """Where the claim holds. ``kind``: ``positive``, ``all`` or ``box`` (lower <= state <= upper,
    entry by entry).

    ``enters_after``: a box that every positive start has entered after this many steps; None when
    nothing is claimed outside.
    """

    kind: str
    lower: Tensor | None = None
    upper: Tensor | None = None
    enters_after: int | None = None

    def sample(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """A random state of the domain, for tests that try to catch a wrong certificate."""
        if self.kind == "box":
            assert self.lower is not None
            assert self.upper is not None
            low, high = self.lower.log(), self.upper.log()
            where = torch.rand(shape, generator=generator, dtype=torch.float64)
            corners = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.5
            where = torch.where(corners, where.round(), where)
            return torch.minimum(
                torch.maximum((low + where * (high - low)).exp(), self.lower), self.upper
            )
        scale = 10.0 ** (3 * torch.rand(1, generator=generator, dtype=torch.float64) - 1.5)
        noise = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return noise.clamp(-12, 12).exp() if self.kind == "positive" else noise

    def __str__(self) -> str:
        if self.kind == "positive":
            return "all positive states"
        if self.kind == "all":
            return "all states"
        if self.enters_after is None:
            return "a box of states around the equilibrium"
        return (
            f"all positive states (each is in the certified box after {self.enters_after} step(s))"
        )


@dataclass(frozen=True)
class Assumption:
    """One hypothesis ``value < bound`` (or <=), checked; ``margin`` = bound - value is what is
    left."""

    statement: str
    value: float
    bound: float

    @property
    def margin(self) -> float:
        """bound - value."""
        return self.bound - self.value

    @property
    def holds(self) -> bool:
        """Whether the value is below (or at) the bound."""
        return self.value <= self.bound

    @property
    def short(self) -> str:
        """Statement, value and bound."""
        return f"{self.statement}: {self.value:.6g} against {self.bound:.6g}"

    def __str__(self) -> str:
        return f"{'holds ' if self.holds else 'FAILS '} {self.short}"


@dataclass(frozen=True, eq=False)
class Witness:
    """Two states. ``proved``: a fixed point was proved to exist near each, and that the two differ
    (else: candidates only)."""

    first: Tensor
    second: Tensor
    residuals: tuple[float, float]  # Thompson distance from each state to its image
    distance: float  # Thompson distance between the two
    proved: bool
    method: str
    # largest entry of Newton's next step from each: an estimate of the error
    newton: tuple[float, float] | None = None

    @property
    def refuted_rate(self) -> float:
        """No smaller rate holds on a set with both states: 1 - (sum of the residuals) / distance
        (Proposition 30b)."""
        return max(0.0, 1.0 - sum(self.residuals) / self.distance)

    def to_json(self) -> dict[str, Any]:
        """Numbers only; the states are saved by the caller."""
        return {
            "residuals": list(self.residuals),
            "distance": self.distance,
            "proved": self.proved,
            "method": self.method,
            "rates refuted below": self.refuted_rate,
            "newton": None if self.newton is None else list(self.newton),
        }


@dataclass(frozen=True, eq=False)
class Subject:
    """Model and graph in float64, and the state that was to be examined, if one was given."""

    model: EquilibriumModel
    graph: Graph
    equilibrium: Tensor | None


_LABELS: list[Callable[[Certificate], Any]] = []


def use_labels(prove: Callable[[Certificate], Any]) -> Callable[[Certificate], Any]:
    """Register what proves labels (a decorator); certificates know of convergence alone."""
    _LABELS[:] = [prove]
    return prove


@dataclass(frozen=True, eq=False)
class Certificate:
    """The outcome of :func:`sheafdeq.certificates.certify`.

    ``rate`` is an upper bound proved on ``domain`` in ``metric`` when the verdict is CERTIFIED, and
    None otherwise; what was measured without proof is in ``observations``. ``grounds`` cites the
    statement of ``docs/theory.md``.
    """

    verdict: Verdict
    level: Level
    model: str
    graph: str
    rate: float | None = None
    metric: Metric | None = None
    domain: Domain | None = None
    radius: float | None = None  # of the ball, in the plain Thompson metric
    grounds: str = ""
    assumptions: tuple[Assumption, ...] = ()
    observations: dict[str, Any] = field(default_factory=dict)
    witness: Witness | None = None
    seconds: float = 0.0
    # further numbers the statement gives, as proved as the rate
    proved: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why nothing could be certified, where there is one reason
    subject: Subject | None = field(default=None, repr=False)  # what was examined, in float64

    def __post_init__(self) -> None:
        if self.verdict is Verdict.CERTIFIED:
            if (
                self.rate is None
                or not 0.0 <= self.rate < 1.0
                or self.metric is None
                or self.domain is None
            ):
                raise ValueError(
                    "a certificate needs a rate below one, a metric and a domain, "
                    f"got rate {self.rate!r}"
                )
            if not all(a.holds for a in self.assumptions):
                raise ValueError(
                    "a certificate cannot be issued while one of its assumptions fails"
                )
        if self.verdict is Verdict.REFUTED and (self.witness is None or not self.witness.proved):
            raise ValueError(
                "a refutation needs a witness whose two equilibria are proved to "
                "exist; else they are candidates"
            )
        if self.verdict is Verdict.TWO_CANDIDATES and self.witness is None:
            raise ValueError("two candidates need a witness: the two states")

    @cached_property
    def predictions(self) -> Any:
        """Which labels are proved at the equilibrium, node by node (``docs/predictions.md``).

        Found when it is first asked for: seconds for a thousand nodes. A radius of feature noise
        is a matter of :func:`sheafdeq.predictions.certify_predictions`.
        """
        if self.subject is None:
            raise InputError("this certificate does not know its model: it was read, not made")
        if not _LABELS:
            raise InputError("labels are proved by sheafdeq.predictions: import it first")
        return _LABELS[-1](self)

    @property
    def delays(self) -> bool:
        """Whether bounded staleness is covered."""
        return self.verdict is Verdict.CERTIFIED and self.metric is not None and self.metric.delays

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and words, ready for ``json.dump(..., allow_nan=False)``."""
        result: dict[str, Any] = _finite(
            {
                "verdict": str(self.verdict),
                "level": str(self.level),
                "model": self.model,
                "graph": self.graph,
                "rate": self.rate,
                "metric": None if self.metric is None else str(self.metric),
                "domain": None if self.domain is None else str(self.domain),
                "radius": self.radius,
                "delays": self.delays,
                "grounds": self.grounds,
                "reason": self.reason,
                "assumptions": [
                    {
                        "statement": a.statement,
                        "value": a.value,
                        "bound": a.bound,
                        "margin": a.margin,
                        "holds": a.holds,
                    }
                    for a in self.assumptions
                ],
                "proved": self.proved,
                "observations": self.observations,
                "witness": None if self.witness is None else self.witness.to_json(),
                "seconds": round(self.seconds, 2),
            }
        )
        return result

    def report(self) -> str:
        """The certificate in plain language."""
        lines = [f"{self.model} on {self.graph}", f"verdict: {self.verdict} ({self.level})", ""]
        if self.verdict is Verdict.CERTIFIED:
            assert self.rate is not None
            subject = (
                "one step of a level, the level below at rest,"
                if self.metric and self.metric.kind == "cascade"
                else "one step"
            )
            lines.append(
                f"Proved: {subject} shrinks distances at least by the factor "
                f"{self.rate:.6g}, measured in {self.metric}."
            )
            lines.append(f"Where: {self.domain}.")
            if self.level is Level.BALL:
                lines.append(
                    f"Every start within Thompson distance {self.radius:.3g} of the reached state "
                    "(each entry off by a factor of "
                    f"up to {math.exp(self.radius or 0.0):.4g}) is led to the one equilibrium "
                    "there. Nothing is said of others."
                )
            else:
                lines.append(
                    "So there is exactly one equilibrium, and iteration reaches it from "
                    "every such start."
                )
            lines.append(
                "Nodes may compute with old messages of any bounded age (Theorem 25)."
                if self.delays
                else "This metric says nothing about old messages: asynchronous runs are not "
                "covered."
            )
        elif self.witness is not None:
            residuals = (
                f"residuals {self.witness.residuals[0]:.2g} and {self.witness.residuals[1]:.2g}"
            )
            apart = (
                f"at Thompson distance {self.witness.distance:.4g} of each other "
                f"({residuals}; {self.witness.method})"
            )
            if self.verdict is Verdict.REFUTED:
                lines.append(f"Proved: two different equilibria, {apart}.")
                lines.append(
                    "Which one is reached depends on the start: no contraction holds on "
                    "all positive states, in any metric."
                )
            else:
                lines.append(f"Found: two different states that hardly move, {apart}.")
                lines.append(
                    "That two equilibria exist is not proved. What is: no rate below "
                    f"1 - {sum(self.witness.residuals) / self.witness.distance:.2g} holds on all "
                    "states, up to the rounding of the two residuals (Proposition 30b)."
                )
        else:
            why = f", because {self.reason}" if self.reason else ""
            lines.append(
                f"Nothing is proved{why}. No second equilibrium was found. This says "
                "nothing about the model either way."
            )
        if self.reason and (self.witness is not None or self.verdict is Verdict.CERTIFIED):
            lines.append(f"No rule was applied, because {self.reason}.")
        if self.grounds:
            lines.append(f"Grounds: {self.grounds}.")
        if self.assumptions:
            lines += ["", "Assumptions checked:"] + [f"  {a}" for a in self.assumptions]
        if self.proved:
            lines += ["", "Proved besides:"] + [
                f"  {name}: {_shown(value)}" for name, value in self.proved.items()
            ]
        if self.observations:
            lines += ["", "Measured (not proved):"]
            lines += [f"  {name}: {_shown(value)}" for name, value in self.observations.items()]
        return "\n".join(lines)

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", rate {self.rate:.4g}"
        return f"{self.verdict} ({self.level}{rate})"


def _finite(value: Any) -> Any:
    """JSON has no infinity: non-finite numbers become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_shown(entry) for entry in value)
    return str(value)
