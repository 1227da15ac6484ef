r"""Do different starts end in the same place? The paper's six initial states, and what their
trajectories have in common.

    default,    and    H^(0) = s norm_p(U),   U_ij ~ LogNormal(0, 1),   s in {1e-3, 1e-1, 1, 10,
    1e3},

norm_p acting on the row of every node. The reference of all discrepancies is the default trajectory
at the last iteration, which is not assumed to be an equilibrium.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.measure import Score, evaluating, json_numbers
from sheafdeq.diagnostics.residuals import Point, Trajectory, continue_iteration
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["SCALES", "Agreement", "Band", "MultiStart", "multistart", "random_start"]

SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)


@dataclass(frozen=True)
class Band:
    """Median and quartiles over the finite trajectories, for every k that all of them reached."""

    median: tuple[float, ...]
    lower: tuple[float, ...]  # first quartile
    upper: tuple[float, ...]  # third quartile

    @staticmethod
    def of(curves: Sequence[Sequence[float]]) -> Band:
        """Entrywise over curves of equal length (a shorter one ends the band)."""
        length = min((len(curve) for curve in curves), default=0)
        if length == 0:
            return Band((), (), ())
        table = torch.tensor([curve[:length] for curve in curves], dtype=torch.float64)
        # Sorting instead of interpolating differences: infinite entries stay infinite and never
        # become NaN.
        lower, median, upper = (_quantile(table, q) for q in (0.25, 0.5, 0.75))
        return Band(tuple(median), tuple(lower), tuple(upper))

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: json_numbers(getattr(self, name)) for name in ("median", "lower", "upper")}


def _quantile(table: Tensor, q: float) -> list[float]:
    """Linear interpolation between order statistics, as usual, column by column."""
    ordered = table.sort(dim=0).values
    position = q * (len(table) - 1)
    below, above = ordered[int(position)], ordered[min(int(position) + 1, len(table) - 1)]
    share = position - int(position)
    return (below if share == 0 else (1 - share) * below + share * above).tolist()


@dataclass(frozen=True)
class Agreement:
    """Where the finite starts ended, compared with one another.

    ``distance[i][j]``: largest relative difference of two end states over nodes. ``groups``: starts
    whose ends are linked by differences of at most ``tolerance``; one group is what a unique
    equilibrium would give (and does not prove it). ``same_prediction[i]``: share of nodes whose
    predicted class equals that of the default start (None unless there are classes).
    """

    starts: tuple[str, ...]
    distance: tuple[tuple[float, ...], ...]
    groups: tuple[tuple[str, ...], ...]
    same_prediction: tuple[float, ...] | None
    tolerance: float

    @property
    def agree(self) -> bool:
        """Whether all finite starts ended within tolerance of one another."""
        return len(self.groups) == 1

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "starts": list(self.starts),
            "distance": [json_numbers(row) for row in self.distance],
            "groups": [list(group) for group in self.groups],
            "same_prediction": None
            if self.same_prediction is None
            else json_numbers(self.same_prediction),
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True)
class MultiStart:
    """All starts of one model on one graph."""

    iterations: int
    horizon: int  # the trained number of steps
    trajectories: tuple[Trajectory, ...]
    agreement: Agreement
    exposed: bool  # False: updates are those of the outputs

    @property
    def finite(self) -> list[Trajectory]:
        """The trajectories that may be summarised."""
        return [trajectory for trajectory in self.trajectories if trajectory.finite]

    def band(self, name: str) -> Band:
        """Median and quartiles of ``update``, ``state_discrepancy``, ``prediction_discrepancy``,
        ``score`` or ``thompson``."""
        return Band.of([getattr(trajectory, name) for trajectory in self.finite])

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        statuses: dict[str, int] = {}
        for trajectory in self.trajectories:
            statuses[trajectory.status.label] = statuses.get(trajectory.status.label, 0) + 1
        return {
            "iterations": self.iterations,
            "horizon": self.horizon,
            "update_of": "state" if self.exposed else "outputs",
            "statuses": statuses,
            "counted": len(self.finite),
            "bands": {
                name: self.band(name).to_json()
                for name in (
                    "update",
                    "thompson",
                    "state_discrepancy",
                    "prediction_discrepancy",
                    "score",
                )
            },
            "agreement": self.agreement.to_json(),
            "trajectories": [trajectory.to_json() for trajectory in self.trajectories],
        }


def random_start(like: Tensor, scale: float, seed: int, order: float = 2.0) -> Tensor:
    """(n, c) s norm_p(U) with U log-normal, row by row; the same seed gives the same state on every
    machine."""
    draw = torch.Generator().manual_seed(seed)
    positive = torch.randn(like.shape, generator=draw, dtype=torch.float64).exp()
    rows = positive / torch.linalg.vector_norm(positive, ord=order, dim=1, keepdim=True)
    result: Tensor = (scale * rows).to(like)
    return result


def multistart(
    model: EquilibriumModel,
    graph: AnyGraph,
    *,
    iterations: int = 100,
    scales: Sequence[float] = SCALES,
    seed: int = 0,
    score: Score | None = None,
    exposed: bool = True,
    agreement_tolerance: float = 1e-2,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> MultiStart:
    """Continue the iteration from the default state and from one random state for each scale.

    ``exposed=False`` (a model whose start cannot be set from outside) keeps the default start
    alone. Further options go to
    :func:`~sheafdeq.diagnostics.residuals.continue_iteration`.
    """
    if not isinstance(model, EquilibriumModel):
        raise InputError(
            f"{type(model).__name__} is feed-forward: it has no recurrence to continue"
        )
    graph = Graph.of(graph)
    with evaluating(model):
        context = model.prepare(graph)
        default = model.initial_state(context)
        order = float(getattr(model, "norm_order", 2.0))
        common: dict[str, Any] = {
            "iterations": iterations,
            "context": context,
            "exposed": exposed,
            **options,
        }
        reference = continue_iteration(model, graph, start=default, **common).end
        starts = {"default": default}
        if exposed:
            starts |= {
                f"{scale:g}": random_start(default, scale, seed + i, order)
                for i, scale in enumerate(scales)
            }
        trajectories = []
        for label, start in starts.items():
            trajectory = continue_iteration(
                model, graph, start=start, label=label, reference=reference, score=score, **common
            )
            trajectories.append(trajectory)
            if progress is not None:
                progress(
                    f"start {label}: {trajectory.status}, last update {trajectory.last_update:.3g}"
                )
    return MultiStart(
        iterations,
        model.steps,
        tuple(trajectories),
        agreement_of(trajectories, agreement_tolerance, exposed),
        exposed,
    )


def agreement_of(
    trajectories: Sequence[Trajectory], tolerance: float, exposed: bool = True
) -> Agreement:
    """Compare the ends of the finite trajectories."""
    finite = [trajectory for trajectory in trajectories if trajectory.finite]
    ends = [trajectory.end for trajectory in finite]

    def apart(first: Point, second: Point) -> float:
        new, old = (first.state, second.state) if exposed else (first.outputs, second.outputs)
        values = RELATIVE_SUP(new, old)
        return float(values.max()) if values.numel() else 0.0

    distance = tuple(tuple(apart(first, second) for second in ends) for first in ends)
    groups: list[list[int]] = []
    for i in range(len(finite)):
        near = [group for group in groups if any(distance[i][j] <= tolerance for j in group)]
        joined = [i, *(member for group in near for member in group)]
        groups = [group for group in groups if group not in near] + [joined]
    same = None
    if ends and ends[0].outputs.shape[1] > 1 and len(ends[0].outputs):
        classes = [end.outputs.argmax(1) for end in ends]
        same = tuple(float((other == classes[0]).double().mean()) for other in classes)
    labels = tuple(trajectory.start for trajectory in finite)
    return Agreement(
        labels,
        distance,
        tuple(tuple(labels[i] for i in sorted(group)) for group in groups),
        same,
        tolerance,
    )
