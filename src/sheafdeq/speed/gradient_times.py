"""Time to a gradient of the equilibrium, beside twenty steps through which autograd goes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from sheafdeq.adjoints import Implicit
from sheafdeq.data.graph import Graph
from sheafdeq.registry import COMMUNITY, build_model
from sheafdeq.solvers import Anderson, Picard
from sheafdeq.speed.scales import clock
from sheafdeq.speed.work import STEPS

__all__ = ["CONTRACTING_MODELS", "Gradient", "gradient_times"]

CONTRACTING_MODELS = ("ignn", "strong-sheaf", "sheaf-cascade")
"""Maps that contract for every weight."""


@dataclass(frozen=True)
class Gradient:
    """A training pass to the equilibrium within ``tolerance``, and one of the trained horizon."""

    model: str
    tolerance: float
    seconds: float  # Anderson forward, implicit backward
    evaluations: int  # of the map, forward
    status: str
    unrolled_seconds: float
    unrolled_steps: int

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "ratio": self.seconds / self.unrolled_seconds}


def gradient_times(
    name: str, graph: Graph, *, tolerance: float = 1e-6, rounds: int = 2
) -> Gradient:
    """Both passes on one thread, each the least of ``rounds``."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model: Any = build_model(name, COMMUNITY)
        solver = Anderson(1000, tolerance=tolerance, stop_early=True)
        implicit = Implicit(Picard(1000, tolerance=tolerance, stop_early=True))
        ends = []

        def equilibrium() -> None:
            model.zero_grad(set_to_none=True)
            output = model.run(graph, solver=solver, adjoint=implicit)
            output.logits.sum().backward()
            ends.append(output.solution)

        steps = getattr(model, "steps", STEPS)

        def unrolled() -> None:
            model.zero_grad(set_to_none=True)
            model.run(graph, solver=Picard(steps, trace=False, probe=False)).logits.sum().backward()

        times = [[clock(work) for _ in range(rounds)] for work in (equilibrium, unrolled)]
        end = ends[-1]
        return Gradient(
            name,
            tolerance,
            min(times[0]),
            end.evaluations,
            end.status.name,
            min(times[1]),
            steps,
        )
    finally:
        torch.set_num_threads(before)
