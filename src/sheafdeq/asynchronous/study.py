r"""The bounded-staleness study: how far does a late, unreliable execution end from the synchronous
prediction?

For every condition (s, tau) and every sampled schedule, after u mean updates a node,

    d_out(u) = || Y_async(u) - Y_sync ||_F / ( || Y_sync ||_F + eps ),

Y being the outputs (logits) of all nodes. Y_sync is a *reference*: ``converged`` (Picard iteration
to a tolerance; if it does not get there the record says so and the iterate is only a numerical
reference) or ``finite:K`` (the paper's, K iterations whatever the residual).

**Record** (JSON, ``schema`` = ``sheafdeq.async/1``), one for each model; all that figures and
tables read:

=====================  =============================================================================
``model``              ``{"name", "title", "options"}``; ``run``: identifier of the trained run
                       (null for none); ``seed``
``task``, ``graph``    title of the task; which graph (``test[0]``), with ``nodes`` and ``edges``;
                       ``dtype``
``simulation``         ``exact`` (the model's own map with stale neighbours) or ``approximate:
                       <why>``
``reference``          ``{"kind", "steps", "status", "residual", "score"}``; status ``converged`` or
                       the reason why not
``work``               mean updates a node asked for
``conditions``         list, in the order asked for:
``.update_window``     s; ``.max_delay``: tau; ``.channel``, ``.sleep``, ``.sleep_slots`` only where
                       used
``.label``             ``(5, 2)`` or ``(5, 2), loss 0.2``
``.samples``           schedules run; ``.counted``: those whose end is finite and did not diverge;
                       only these are summarised
``.d_out``             ``{"median", "min", "max"}`` over the counted schedules, null if there is
                       none
``.score``             the same for the task's score in its units (accuracy: per cent); null without
                       labels
``.statuses``          how many schedules ended in which status
``.violations``        breaches of partial asynchronism found while running (0 for an admissible
                       schedule)
``.staleness``         ``{"mean", "max", "histogram"}`` of the delays that were read, all schedules
                       together
``.trajectories``      ``[{"seed", "status", "residual", "work": [...], "d_out": [...], "score"}]``,
                       points at observed work,
                       never interpolated; the last point is the end of the run
=====================  =============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from sheafdeq.asynchronous.schedule import Schedule
from sheafdeq.asynchronous.simulate import Simulation, simulate_many
from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.measure import EPSILON, Score, evaluating, json_number, json_numbers
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.records import STALENESS_SCHEMA
from sheafdeq.solvers import Partition, Picard, Status

__all__ = [
    "ConditionResult",
    "Reference",
    "Sample",
    "StalenessStudy",
    "marks_up_to",
    "staleness_study",
]

_LOST = (Status.NON_FINITE, Status.DIVERGED)


@dataclass(frozen=True)
class Reference:
    """The synchronous prediction everything is held against."""

    kind: str
    steps: int
    status: Status
    residual: float
    logits: Tensor  # (n, o)
    score: float | None

    def to_json(self) -> dict[str, Any]:
        """Without the outputs, ready for JSON."""
        return {
            "kind": self.kind,
            "steps": self.steps,
            "status": self.status.label,
            "residual": json_number(self.residual),
            "score": self.score,
        }


@dataclass(frozen=True)
class Sample:
    """One schedule: how it ended and how it got there."""

    seed: int
    status: Status
    residual: float
    work: tuple[float, ...]
    d_out: tuple[float, ...]
    score: float | None

    @property
    def counted(self) -> bool:
        """Whether the end is finite and has not diverged, so that it may be summarised."""
        return self.status not in _LOST and math.isfinite(self.d_out[-1])

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "seed": self.seed,
            "status": self.status.label,
            "residual": json_number(self.residual),
            "score": self.score,
            "work": json_numbers(self.work),
            "d_out": json_numbers(self.d_out),
        }


@dataclass(frozen=True)
class ConditionResult:
    """All samples of one condition."""

    schedule: Schedule  # of the first sample
    samples: tuple[Sample, ...]
    violations: int
    staleness: dict[str, Any]

    @property
    def label(self) -> str:
        """``(s, tau)`` and what else happened to the messages."""
        text = f"({self.schedule.update_window}, {self.schedule.max_delay})"
        channel = self.schedule.channel
        extras = ["in order"] if channel.in_order else []
        extras += [f"loss {channel.loss:g}"] if channel.loss else []
        extras += [f"duplication {channel.duplication:g}"] if channel.duplication else []
        extras += ["reordering"] if channel.reordering else []
        extras += (
            [f"sleep {self.schedule.sleep:g} x {self.schedule.sleep_slots}"]
            if self.schedule.sleep
            else []
        )
        return ", ".join([text, *extras])

    def __str__(self) -> str:
        if self.d_out is None:
            return f"{self.label}: none of {len(self.samples)} runs stayed finite"
        text = "{median:.3g} [{min:.3g}, {max:.3g}]".format(**self.d_out)
        return (
            f"{self.label}: d_out {text} over {len(self.counted)} of {len(self.samples)} schedules"
        )

    @property
    def counted(self) -> list[Sample]:
        """The samples that may be summarised."""
        return [sample for sample in self.samples if sample.counted]

    @property
    def d_out(self) -> dict[str, float] | None:
        """Median, minimum and maximum over the counted samples."""
        return _summary([sample.d_out[-1] for sample in self.counted])

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        parameters = self.schedule.describe()
        parameters.pop("seed")
        statuses: dict[str, int] = {}
        for sample in self.samples:
            statuses[sample.status.label] = statuses.get(sample.status.label, 0) + 1
        return {
            **parameters,
            "label": self.label,
            "samples": len(self.samples),
            "counted": len(self.counted),
            "d_out": self.d_out,
            "score": _summary(
                [sample.score for sample in self.counted if sample.score is not None]
            ),
            "statuses": statuses,
            "violations": self.violations,
            "staleness": self.staleness,
            "trajectories": [sample.to_json() for sample in self.samples],
        }


@dataclass(frozen=True)
class StalenessStudy:
    """One model under all conditions."""

    reference: Reference
    conditions: tuple[ConditionResult, ...]
    work: float
    simulation: str = "exact"

    def to_json(self) -> dict[str, Any]:
        """The part of the record this module knows (see the module's table)."""
        return {
            "schema": STALENESS_SCHEMA,
            "simulation": self.simulation,
            "reference": self.reference.to_json(),
            "work": self.work,
            "conditions": [condition.to_json() for condition in self.conditions],
        }


def staleness_study(
    model: EquilibriumModel,
    graph: AnyGraph,
    conditions: Sequence[Schedule],
    *,
    samples: int = 20,
    work: float = 500,
    reference: str = "converged",
    reference_steps: int = 5000,
    tolerance: float = 1e-6,
    score: Score | None = None,
    initial_state: Tensor | None = None,
    progress: Callable[[str], None] | None = None,
) -> StalenessStudy:
    """Run ``samples`` schedules of every condition (seeds ``condition.seed``, ``+ 1``, ...) and
    hold them against the reference.

    All schedules of the synchronous condition (1, 0) coincide, so it is run once.
    ``reference_steps`` and ``tolerance`` (relative change of the state, largest over nodes) decide
    when the converged reference is given up or accepted.
    """
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples!r}")
    graph = Graph.of(graph)
    with evaluating(model):
        context = model.prepare(graph)
        start = model.initial_state(context) if initial_state is None else initial_state
        target = synchronous_reference(
            model, graph, context, start, reference, reference_steps, tolerance, score
        )
        results = []
        for condition in conditions:
            result = _run_condition(
                model,
                graph,
                context,
                start,
                condition,
                1 if condition.synchronous else samples,
                work,
                target,
                tolerance,
                score,
            )
            results.append(result)
            if progress is not None:
                progress(str(result))
    return StalenessStudy(target, tuple(results), work)


def synchronous_reference(
    model: EquilibriumModel,
    graph: Graph,
    context: Any,
    start: Tensor,
    kind: str,
    max_steps: int,
    tolerance: float,
    score: Score | None,
) -> Reference:
    """``converged``: iterate until the residual is within tolerance; ``finite:K``: K iterations."""
    if kind == "converged":
        solver = Picard(steps=max_steps, tolerance=tolerance, stop_early=True)
    elif kind.startswith("finite:") and kind[7:].isdecimal() and int(kind[7:]) > 0:
        solver = Picard(steps=int(kind[7:]), tolerance=tolerance)
    else:
        raise InputError(
            f"a reference is 'converged' or 'finite:K' (for example finite:420), got {kind!r}"
        )
    solution = solver.solve(
        lambda state: model.step(state, context),
        start,
        partition=Partition(graph.graph_of_node, graph.num_graphs),
    )
    logits = model.readout(solution.value, context)  # type: ignore[operator]
    return Reference(
        kind,
        solution.steps,
        solution.status,
        solution.residual,
        logits,
        None if score is None else score(logits),
    )


def marks_up_to(work: float, per_unit: int = 24) -> list[float]:
    """Work at which a trajectory is sampled: every update at first, then ever more sparsely, about
    60 points to 500."""
    marks, value = [], 1.0
    while value < work:
        marks.append(value)
        value = max(value + 1, value * (1 + 1.6 / per_unit))
    return marks


def _run_condition(
    model: EquilibriumModel,
    graph: Graph,
    context: Any,
    start: Tensor,
    condition: Schedule,
    samples: int,
    work: float,
    reference: Reference,
    tolerance: float,
    score: Score | None,
) -> ConditionResult:
    norm = float(torch.linalg.vector_norm(reference.logits)) + EPSILON
    points: list[list[tuple[float, float]]] = [[] for _ in range(samples)]

    def observe(run: int, done: float, state: Tensor) -> None:
        logits = model.readout(state, context)  # type: ignore[operator]
        points[run].append(
            (done, float(torch.linalg.vector_norm(logits - reference.logits)) / norm)
        )

    schedules = [condition.with_seed(condition.seed + i) for i in range(samples)]
    runs = simulate_many(
        model,
        graph,
        schedules,
        work=work,
        context=context,
        initial_state=start,
        marks=marks_up_to(work),
        observe=observe,
        tolerance=tolerance,
    )
    trace = runs[0].trace
    for run in runs[1:]:
        trace = trace.merged(run.trace)
    outcome = tuple(
        _sample(schedule.seed, run, curve, model, context, score)
        for schedule, run, curve in zip(schedules, runs, points, strict=True)
    )
    return ConditionResult(
        condition, outcome, sum(len(run.violations) for run in runs), trace.to_json()["staleness"]
    )


def _sample(
    seed: int,
    run: Simulation,
    curve: list[tuple[float, float]],
    model: EquilibriumModel,
    context: Any,
    score: Score | None,
) -> Sample:
    value = None if score is None else score(model.readout(run.state, context))  # type: ignore[operator]
    return Sample(
        seed,
        run.status,
        run.residual,
        tuple(w for w, _ in curve),
        tuple(d for _, d in curve),
        value,
    )


def _summary(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "median": json_number(median(values)),  # type: ignore[dict-item]
        "min": json_number(min(values)),  # type: ignore[dict-item]
        "max": json_number(max(values)),  # type: ignore[dict-item]
    }
