r"""Continued iteration: what happens when a trained recurrence goes on past its horizon.

From one start, with states H^(0), H^(1), ..., H^(K) and outputs Y^(k) = readout(H^(k)), against a
reference state and output,

    rho_k     = max_v ||H_v^(k+1) - H_v^(k)||_inf / (||H_v^(k)||_inf + eps)   relative update,
    d_k^state = max_v ||H_v^(k) - H_v^ref||_inf / (||H_v^ref||_inf + eps)   state discrepancy,
    d_k^pred  = ||Y^(k) - Y^ref||_inf / (||Y^ref||_inf + eps)   prediction discrepancy,
    theta_k   = max_v ||log H_v^(k+1) - log H_v^(k)||_inf   Thompson update (positive states only),

and the task's score of Y^(k). For a model whose state is not exposed rho_k is the same expression
on the rows of Y.

These are observations of one graph from one start, never a guarantee. A run whose map returns NaN
or infinity ends there: its lists stop at the last finite state and its status says NON_FINITE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.measure import EPSILON, Score, evaluating, json_number, json_numbers
from sheafdeq.distances import RELATIVE_SUP, THOMPSON
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.solvers import Partition, Picard, Status

__all__ = ["Point", "Settling", "Trajectory", "continue_iteration", "first_loss", "observed_rate"]


@dataclass(frozen=True)
class Point:
    """A state with its output: where a trajectory ended, or what others are compared with."""

    state: Tensor  # (n, c)
    outputs: Tensor  # (n, o)


@dataclass(frozen=True)
class Settling:
    """When the nodes came to rest.

    The settling time of a node is the first k from which on every update changes it by at most
    ``tolerance`` (relative to its row, as in rho). ``counts[k]`` nodes settled at k; ``unsettled``
    nodes were still moving in the last update.
    """

    tolerance: float
    counts: tuple[int, ...]
    unsettled: int

    @property
    def median(self) -> int | None:
        """Median settling time over all nodes; None when half of them or more never settled."""
        total = sum(self.counts) + self.unsettled
        seen = 0
        for k, count in enumerate(self.counts):
            seen += count
            if 2 * seen > total:
                return k
        return None

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "tolerance": self.tolerance,
            "counts": list(self.counts),
            "unsettled": self.unsettled,
            "median": self.median,
        }


@dataclass(frozen=True)
class Trajectory:
    """One start. Lists over k have an entry for every finite state (``update`` and ``thompson``:
    for every step)."""

    start: str
    status: Status
    update: tuple[float, ...]  # rho_k, k = 0 ... K-1
    thompson: tuple[float, ...]  # theta_k; infinite where a state is not strictly positive
    # k = 0 ... K; empty without a reference or without an exposed state
    state_discrepancy: tuple[float, ...]
    prediction_discrepancy: tuple[float, ...]  # k = 0 ... K; empty without a reference
    score: tuple[float, ...]  # k = 0 ... K; empty without a score
    settling: Settling
    lost_at: int | None  # first iteration past the horizon at which the score is lost
    end: Point

    @property
    def finite(self) -> bool:
        """Whether the whole trajectory was finite; others are never averaged in."""
        return self.status is not Status.NON_FINITE

    @property
    def last_update(self) -> float:
        """rho of the last step (0 when there was none)."""
        return self.update[-1] if self.update else 0.0

    @property
    def rate(self) -> float | None:
        """Observed Thompson rate of the tail (:func:`observed_rate`)."""
        return observed_rate(self.thompson, torch.finfo(self.end.state.dtype).eps)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; infinite entries become null."""
        return {
            "start": self.start,
            "status": self.status.label,
            "update": json_numbers(self.update),
            "thompson": json_numbers(self.thompson),
            "state_discrepancy": json_numbers(self.state_discrepancy),
            "prediction_discrepancy": json_numbers(self.prediction_discrepancy),
            "score": json_numbers(self.score),
            "settling": self.settling.to_json(),
            "lost_at": self.lost_at,
            "thompson_rate": json_number(self.rate),
        }


def continue_iteration(
    model: EquilibriumModel,
    graph: AnyGraph,
    *,
    iterations: int = 100,
    start: Tensor | None = None,
    label: str = "default",
    reference: Point | None = None,
    score: Score | None = None,
    context: Any = None,
    tolerance: float = 1e-6,
    settling_tolerance: float = 1e-3,
    score_margin: float = 1.0,
    exposed: bool = True,
    damping: float = 1.0,
    undamped: int = 0,
) -> Trajectory:
    """Apply the model's map ``iterations`` times from ``start`` (None: the model's own) and measure
    every step.

    ``tolerance`` decides whether the end is called CONVERGED. ``exposed=False`` measures updates on
    the outputs and no state discrepancy (Loop Transformer). ``damping=a`` takes the share a of
    every step after the first ``undamped``; updates are divided by the share, so that they remain
    residuals of the map. ``score_margin``: how much worse than at the trained horizon counts as
    lost, in the score's own units (percentage points for accuracies).
    """
    with evaluating(model):
        graph = Graph.of(graph)
        context = model.prepare(graph) if context is None else context
        first = model.initial_state(context) if start is None else start
        watch = _Watch(
            model, context, reference, score, settling_tolerance, exposed, damping, undamped
        )
        solution = Picard(
            steps=iterations, tolerance=tolerance, damping=damping, undamped=undamped
        ).solve(
            watch.step,
            first,
            partition=Partition(graph.graph_of_node, graph.num_graphs),
            observe=watch.see,
        )
        return watch.finish(label, solution.status, model.steps, score_margin)


class _Watch:
    """Follows one iteration; stops looking once the map has returned something that is not
    finite."""

    def __init__(
        self,
        model: EquilibriumModel,
        context: Any,
        reference: Point | None,
        score: Score | None,
        settling_tolerance: float,
        exposed: bool,
        damping: float,
        undamped: int,
    ) -> None:
        self.model, self.context, self.reference, self.score = model, context, reference, score
        self.settling_tolerance, self.exposed = settling_tolerance, exposed
        self.damping, self.undamped = damping, undamped
        self.update: list[float] = []
        self.thompson: list[float] = []
        self.state_discrepancy: list[float] = []
        self.prediction_discrepancy: list[float] = []
        self.scores: list[float] = []
        self.settled_at: Tensor | None = None  # (n,)
        self.last: Point | None = None
        self.broken = False

    def step(self, state: Tensor) -> Tensor:
        image = self.model.step(state, self.context)
        self.broken = self.broken or not bool(torch.isfinite(image).all())
        return image

    def see(self, k: int, state: Tensor) -> None:
        if self.broken:
            return
        point = Point(state, self.model.readout(state, self.context))  # type: ignore[operator]
        if self.last is not None:
            self._compare(k, point, self.last)
        else:
            self.settled_at = torch.zeros(len(state), dtype=torch.int64)
        if self.reference is not None:
            if self.exposed:
                self.state_discrepancy.append(_largest(RELATIVE_SUP(state, self.reference.state)))
            gap, size = (point.outputs - self.reference.outputs).abs(), self.reference.outputs.abs()
            self.prediction_discrepancy.append(_largest(gap) / (_largest(size) + EPSILON))
        if self.score is not None:
            self.scores.append(self.score(point.outputs))
        self.last = point

    def _compare(self, k: int, point: Point, last: Point) -> None:
        new, old = (point.state, last.state) if self.exposed else (point.outputs, last.outputs)
        change = RELATIVE_SUP(new, old) / (1.0 if k <= self.undamped else self.damping)
        self.update.append(_largest(change))
        self.thompson.append(_largest(THOMPSON(new, old)))
        assert self.settled_at is not None
        self.settled_at[change > self.settling_tolerance] = k

    def finish(self, label: str, status: Status, horizon: int, score_margin: float) -> Trajectory:
        assert self.last is not None
        assert self.settled_at is not None
        steps = len(self.update)
        # A node that changed too much in the last update carries the number of that update: it has
        # not settled.
        settled = self.settled_at[self.settled_at < steps] if steps else self.settled_at
        counts = torch.bincount(settled, minlength=max(steps, 1)).tolist()
        return Trajectory(
            start=label,
            status=Status.NON_FINITE if self.broken else status,
            update=tuple(self.update),
            thompson=tuple(self.thompson),
            state_discrepancy=tuple(self.state_discrepancy),
            prediction_discrepancy=tuple(self.prediction_discrepancy),
            score=tuple(self.scores),
            settling=Settling(
                self.settling_tolerance, tuple(counts), len(self.settled_at) - len(settled)
            ),
            lost_at=first_loss(self.scores, horizon, score_margin),
            end=self.last,
        )


def first_loss(scores: Sequence[float], horizon: int, margin: float) -> int | None:
    """First k > horizon with a score more than ``margin`` below the score at the horizon; None if
    there is none."""
    if len(scores) <= horizon:
        return None
    bar = scores[horizon] - margin
    return next((k for k in range(horizon + 1, len(scores)) if scores[k] < bar), None)


def observed_rate(distances: Sequence[float], eps: float) -> float | None:
    """Geometric mean of theta_{k+1} / theta_k over the second half of the steps that are above
    rounding.

    An observation, not a bound. None when a distance is infinite (a state left the positive cone)
    or fewer than four steps count.
    """
    floor = 100 * eps
    usable = 0
    for value in distances:
        if not math.isfinite(value):
            return None
        if value <= floor:
            break
        usable += 1
    if usable < 4:
        return None
    first, last = usable // 2, usable - 1
    if last == first:
        return None
    result: float | None = (distances[last] / distances[first]) ** (1 / (last - first))
    return result


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
