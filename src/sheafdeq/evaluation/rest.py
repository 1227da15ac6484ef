r"""Does a finished model rest? Plain iteration in double precision from six starts, graph by graph.

From the model's own start and from s norm_2(U), U log-normal, s in {1e-3, 1e-1, 1, 10, 1e3}
(:func:`~sheafdeq.diagnostics.multistart.random_start`), every graph is iterated until no node
changes by more than 1e-13 of its size, or for the given number of steps. Then, for each graph,

    residual = max over starts and nodes of |f(z)_v - z_v| / |z_v|,
    apart    = max over starts and nodes of the relative distance to the end of the own start.

A graph *rests* when both are small enough. That is an observation from six starts, not a proof.
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.task import Split, Task
from sheafdeq.diagnostics.multistart import SCALES, random_start
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.errors import InputError
from sheafdeq.records import finite
from sheafdeq.solvers import Picard
from sheafdeq.training.parts import parts_of

__all__ = ["RESIDUAL", "SAME", "Rest", "rest_of"]

GOAL = 1e-13
"""Relative change at which an iteration stops: double precision resolves little more."""
RESIDUAL = 1e-12
"""Largest relative change of a graph that is called at rest."""
SAME = 1e-8
"""Largest relative distance between ends that are called one state."""


@dataclass(frozen=True)
class Rest:
    """How G graphs ended from S starts; entries of tuples are graphs, None is not finite."""

    iterations: int  # the most that were allowed
    scales: tuple[float, ...]  # of the starts beside the model's own
    residual: tuple[float | None, ...]
    apart: tuple[float | None, ...]
    steps: tuple[int, ...]  # of the slowest start
    statuses: dict[str, int]  # of graphs times starts
    scores: tuple[float | None, ...]  # of the whole split, one a start
    cpu_seconds: float

    @property
    def resting(self) -> int:
        """How many graphs end at rest, in one state from every start."""
        return sum(
            residual is not None and residual <= RESIDUAL and apart is not None and apart <= SAME
            for residual, apart in zip(self.residual, self.apart, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Ready for a record."""
        return {**asdict(self), "graphs": len(self.residual), "resting": self.resting}


@torch.no_grad()
def rest_of(
    model: GraphModel, task: Task, split_name: str = "test", *, iterations: int, seed: int = 0
) -> Rest:
    """Iterate a copy of the model in double precision on the graphs of a split of the task.

    ``seed`` draws the starts; the same seed gives the same starts on every machine.
    """
    if not isinstance(model, EquilibriumModel):
        raise InputError(f"{type(model).__name__} is feed-forward: there is nothing to be at rest")
    begun = time.process_time()
    model, task = copy.deepcopy(model).double().eval(), task.to(torch.float64)
    split = task.splits[split_name]
    solver = Picard(iterations, tolerance=GOAL, stop_early=True, distance=RELATIVE_SUP)
    ends = [  # graph by graph: none waits for the slowest
        [
            model.run(part.graph, solver=solver, initial_state=start)
            for start in _starts(model, part, seed)
        ]
        for part in parts_of(split, task.objective, 1)
    ]
    solutions = [[output.solution for output in outputs if output.solution] for outputs in ends]
    statuses = [solution.status.label for graph in solutions for solution in graph]
    scores = [
        task.score(task.metrics(torch.cat([output.logits for output in outputs]), split))
        for outputs in zip(*ends, strict=True)
    ]
    return Rest(
        iterations,
        SCALES,
        tuple(finite(max(end.residual for end in graph)) for graph in solutions),
        tuple(
            finite(max(float(RELATIVE_SUP(end.value, graph[0].value).max()) for end in graph))
            for graph in solutions
        ),
        tuple(max(end.steps for end in graph) for graph in solutions),
        {label: statuses.count(label) for label in dict.fromkeys(statuses)},
        tuple(map(finite, scores)),
        round(time.process_time() - begun, 2),
    )


def _starts(model: EquilibriumModel, part: Split, seed: int) -> list[Tensor | None]:
    """The model's own start (None) and one random start for each scale."""
    own = model.initial_state(model.prepare(part.graph))
    return [None, *(random_start(own, scale, seed + i) for i, scale in enumerate(SCALES))]
