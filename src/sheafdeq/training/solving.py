r"""How a recurrence is solved while it trains: random horizons, random starts, noisy steps.

A model that always iterates K steps from one start learns what is true after K steps from there.
With the options of :class:`~sheafdeq.training.config.SolveConfig` each update instead solves

    z_0 = own start,  or  s exp(N(0, 1))  with probability ``random_start``, log s uniform,
    n steps without gradient (``detached_steps``), then K steps (``steps``) with it,
    z_{k+1} = f(z_k exp(sigma N(0, 1)))          sigma = ``step_noise``.

The noise enters *before* a step: the state that is read out is an image of f itself, and its
residual f(z_K) - z_K contains sigma J v in a random direction v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints import Adjoint, Implicit, Unrolled
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel, GraphModel, Output
from sheafdeq.errors import InputError
from sheafdeq.solvers import Solution, Solver
from sheafdeq.solvers.iterate import Function
from sheafdeq.training.config import SolveConfig

__all__ = ["check_solves", "random_positive_start", "run_for_training"]


def check_solves(config: SolveConfig, model: GraphModel) -> None:
    """Refuse options that mean nothing for this model."""
    if not config.active:
        return
    name = type(model).__name__
    if not isinstance(model, EquilibriumModel):
        raise InputError(f"solves: {name} is feed-forward, it has no steps and no start")
    if type(model).solve is not EquilibriumModel.solve:
        raise InputError(
            f"solves: {name} has a solver of its own, so these options do not apply "
            "(the cascade draws its numbers of steps by its option training_steps)"
        )
    if config.step_noise and isinstance(model.adjoint, Implicit):
        raise InputError(
            "solves.step_noise: implicit gradients need one fixed map; use gradient='unrolled'"
        )
    if config.detached_steps is not None and not isinstance(model.adjoint, Unrolled):
        raise InputError(
            "solves.detached_steps needs gradient='unrolled': the other rules record no first steps"
        )


def run_for_training(model: GraphModel, graph: Graph, config: SolveConfig) -> tuple[Output, Any]:
    """(output, context of its solve) of a training pass; the context is None for feed-forward
    models."""
    if not isinstance(model, EquilibriumModel):
        return model.run(graph), None
    model.check(graph)
    context = model.prepare(graph)
    options: dict[str, Any] = {}
    if config.steps is not None:
        options["steps"] = _drawn(config.steps)
    if config.start_scale is not None and float(torch.rand(())) < config.random_start:
        own = model.initial_state(context)
        options["initial_state"] = random_positive_start(own, config.start_scale)
    if config.step_noise or config.detached_steps is not None:
        detached = _drawn(config.detached_steps) if config.detached_steps is not None else 0
        options["adjoint"] = _Disturbed(model.adjoint, config.step_noise, detached)
    solution = model.solve(context, graph, **options)
    return Output(model.readout(solution.value, context), solution), context  # type: ignore[operator]


def random_positive_start(like: Tensor, scale: tuple[float, float]) -> Tensor:
    """(n, c) s exp(N(0, 1)) with s log-uniform between the two scales."""
    low, high = (math.log(value) for value in scale)
    return math.exp(low + (high - low) * float(torch.rand(()))) * torch.randn_like(like).exp()


def _drawn(span: tuple[int, int]) -> int:
    return int(torch.randint(span[0], span[1] + 1, ()))


@dataclass(frozen=True)
class _Disturbed:
    """A gradient rule whose map is noisy and which begins after some steps without gradient."""

    rule: Adjoint
    noise: float
    detached: int

    def solve(
        self, function: Function, initial: Tensor, solver: Solver, **options: Any
    ) -> Solution:
        def disturbed(state: Tensor) -> Tensor:
            return function(state * torch.exp(self.noise * torch.randn_like(state)))

        used = disturbed if self.noise else function
        with torch.no_grad():
            for _ in range(self.detached):
                initial = used(initial)
        return self.rule.solve(used, initial, solver, **options)
