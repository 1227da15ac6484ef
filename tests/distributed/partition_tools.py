"""Graphs and models the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import graphs
from sheafdeq.data.graph import Graph
from sheafdeq.distributed import Inference, Pace, infer
from sheafdeq.distributed.team import Team
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.registry import MODELS, Shape, build_model
from sheafdeq.solvers import Picard, Solution, Status

SMALL = Shape(in_channels=3, out_channels=2, edge_dim=None, stalk_dim=2, channels=3, steps=4)
EDGED = Shape(in_channels=3, out_channels=2, edge_dim=2, stalk_dim=2, channels=3, steps=4)


def built(name: str, shape: Shape = SMALL, seed: int = 3, **options: object) -> EquilibriumModel:
    torch.manual_seed(seed)
    model = build_model(name, shape, **options).double().eval()
    assert isinstance(model, EquilibriumModel)
    return model


def recurrences() -> list[str]:
    """Registered models that are equilibria."""
    return [name for name in MODELS if isinstance(build_model(name, SMALL), EquilibriumModel)]


def runs_in_parts(name: str) -> bool:
    """Models that say otherwise are refused (a test)."""
    model = build_model(name, SMALL)
    return hasattr(model, "local_step") and getattr(model, "local_prepare", True)


LOCAL = [name for name in recurrences() if runs_in_parts(name)]


random_graph = partial(graphs.random_graph, channels=3)


@torch.no_grad()
def reference(model: EquilibriumModel, graph: Graph, solver: Picard) -> tuple[Solution, Tensor]:
    context = model.prepare(graph)
    solution = model.solve(context, graph, solver=solver)
    return solution, model.readout(solution.value, context)  # type: ignore[operator]


def solves_although_killed(mode: str, engine: str, killer: Callable[[Team], None]) -> Inference:
    """The equilibrium of a cascade in three parts whose workers ``killer`` kills on the way."""
    model, graph = built("sheaf-cascade"), random_graph(120, 400, undirected=True)
    exact, _ = reference(model, graph, Picard(steps=5000, tolerance=1e-13, stop_early=True))
    solver = Picard(steps=5000, tolerance=1e-9, stop_early=True)
    pace = Pace(staleness=4)
    found = infer(
        model, graph, 3, mode=mode, engine=engine, solver=solver, pace=pace, state=True,
        watch=killer,
    )  # fmt: skip
    assert found.solution.status is Status.CONVERGED
    assert found.record["restarts"] >= 1
    torch.testing.assert_close(found.solution.value, exact.value, rtol=1e-6, atol=1e-7)
    return found
