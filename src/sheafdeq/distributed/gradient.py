"""Training in parts: forward and backward passes whose gradients cross the halos.

:class:`Partitioned` stands where a model stands: ``run(graph)`` gives the :class:`Output` of one
process, and ``backward`` on its
outputs gives the gradients of one process. The loss itself is computed by the caller on all
outputs, (n, o) numbers, so any loss works. Unrolled and implicit gradients; the parameters'
gradients of the parts are summed in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints import Implicit, Unrolled
from sheafdeq.adjoints.backward import solve_backward, unsolved
from sheafdeq.adjoints.implicit import warn_unsolved
from sheafdeq.data.graph import Graph
from sheafdeq.derivatives import differentiable_once
from sheafdeq.distances import Distance
from sheafdeq.distributed.adjoint import Parts
from sheafdeq.distributed.engine import Engine, PartSource
from sheafdeq.distributed.infer import check_parts, divide, engine_for
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part_state import checked_model
from sheafdeq.distributed.synchronous import Lost, StandIn, checked_solver
from sheafdeq.distributed.team import Team
from sheafdeq.equilibrium import EquilibriumModel, Output
from sheafdeq.errors import InputError, WorkerError
from sheafdeq.solvers import Picard, Solution
from sheafdeq.solvers.iterate import iterate
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["Partitioned"]

MOST_ATTEMPTS = 20


class Partitioned:
    """A model whose solves run in parts. Use it as a context manager: leaving it ends the workers.

    One team of workers is made for every graph that is met and kept while the graph is in use
    (training and validation graphs, say). ``joint=True`` admits models with a solve of their own
    (the cascade solves level by level): in parts they iterate their ``step``, as ``model.run(graph,
    steps=...)`` does.
    """

    def __init__(
        self,
        model: EquilibriumModel,
        parts: int | Callable[[Graph], Tensor] = 2,
        *,
        engine: str | Callable[[Sequence[PartSource], EquilibriumModel], Engine] = "local",
        method: str = "auto",
        steps: int | None = None,
        joint: bool = False,
        **engine_options: Any,
    ) -> None:
        self.model = checked_model(model)
        name = type(model).__name__
        if type(model).solve is not EquilibriumModel.solve and not joint:
            raise InputError(
                f"{name} has a way of solving of its own, which parts do not follow: they iterate "
                "its step; "
                "train it in one process, or ask for joint=True"
            )
        if not isinstance(model.adjoint, Unrolled | Implicit):
            raise InputError(
                f"parts differentiate 'unrolled' or 'implicit', not {type(model.adjoint).__name__}"
            )
        if isinstance(model.adjoint, Implicit):
            checked_solver(model.adjoint.solver)
        checked_solver(model.solver)
        self.steps = steps
        self.parts, self.method = parts, method
        self.making = (
            engine
            if callable(engine)
            else (lambda p, m: engine_for(engine, p, m, **engine_options))
        )
        self.teams: dict[int, tuple[Graph, Team, list[Tensor]]] = {}

    def __enter__(self) -> Partitioned:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for _, team, _ in self.teams.values():
            team.__exit__(None, None, None)
        self.teams = {}

    def team_of(self, graph: Graph) -> tuple[Team, list[Tensor]]:
        """The workers of a graph, started when it is first met, and the nodes of each part."""
        known = self.teams.get(id(graph))
        if known is None:
            self.model.check(graph)
            with torch.no_grad():
                # models may take note of the graph (IGNN: its spectral radius)
                self.model.prepare(graph)
            choice = self.parts if isinstance(self.parts, int) else self.parts(graph)
            parts, _ = divide(graph, choice, method=self.method)
            check_parts(self.model, graph, parts)
            # workers get the model itself, not what stands before it
            standing = self.model.__dict__.pop("run", None)
            try:
                team = Team(self.making(parts, self.model))
            finally:
                if standing is not None:
                    self.model.__dict__["run"] = standing
            team.__enter__()
            known = self.teams[id(graph)] = (graph, team, [part.nodes for part in parts])
        return known[1], known[2]

    # ------------------------------------------------------------------ forward

    def run(self, graph: Graph) -> Output:
        """Solve in parts; outputs carry gradients when grad mode is on."""
        team, rows = self.team_of(graph)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not torch.is_grad_enabled() or not parameters:
            outputs, solution = self._forward(team, recorded=False, seed=self._seed())
            return Output(outputs, solution)
        seed = self._seed()
        outputs, solution = self._forward(team, recorded=True, seed=seed)
        if isinstance(self.model.adjoint, Implicit):
            solution.adjoint = AdjointReport()
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        job = _Job(self, team, rows, names, solution, seed)
        return Output(_Attach.apply(job, outputs, *parameters), solution)  # type: ignore[no-untyped-call]

    def _seed(self) -> int | None:
        """In training mode models may draw; every part then draws from a seed of this process's
        generator."""
        return int(torch.randint(2**31 - 1, (1,))) if self.model.training else None

    def _forward(self, team: Team, *, recorded: bool, seed: int | None) -> tuple[Tensor, Solution]:
        solver, implicit = (
            self.model.judged(checked_solver(self.model.solver)),
            isinstance(self.model.adjoint, Implicit),
        )
        solver = solver if self.steps is None else solver.with_steps(self.steps)
        gradient = None if not recorded else ("implicit" if implicit else "unrolled")
        for _ in range(MOST_ATTEMPTS):
            team.prepare(
                damping=solver.damping,
                undamped=solver.undamped,
                distance=solver.stopping.measure.name,
                parameters={
                    name: tensor.detach() for name, tensor in self.model.state_dict().items()
                },
                training=self.model.training,
                gradient=gradient,
                seed=seed,
            )
            stand_in = StandIn(team, tolerant=not recorded)
            try:
                solution = _looped(stand_in, solver)
                if gradient == "implicit":
                    stand_in.settle(solution.value, ())
                    tensors = stand_in.attach(("outputs",))
                else:
                    tensors = stand_in.settle(solution.value, ("outputs",))
            except Lost:
                team.journal.event("restarted", why="a worker died in a recorded pass")
                continue
            return tensors["outputs"], solution
        raise WorkerError(
            f"workers died in {MOST_ATTEMPTS} attempts at one pass: the run is given up"
        )

    # ------------------------------------------------------------------ backward

    def _backward(self, job: _Job, cotangent: Tensor) -> dict[str, Tensor]:
        for attempt in range(MOST_ATTEMPTS):
            if attempt:  # the tape went with a worker: record the same pass again
                self._forward(job.team, recorded=True, seed=job.seed)
            try:
                return self._pull(job, cotangent)
            except Lost:
                job.team.journal.event("restarted", why="a worker died in a backward pass")
        raise WorkerError(
            f"workers died in {MOST_ATTEMPTS} attempts at one backward pass: the run is given up"
        )

    def _pull(self, job: _Job, cotangent: Tensor) -> dict[str, Tensor]:
        team = job.team
        for part in range(team.count):
            command = Message("backward", {"number": 0}, {"cotangent": cotangent[job.rows[part]]})
            team.engine.tell(part, command)
        reports = _answers(team, "pulled")
        if isinstance(self.model.adjoint, Implicit):
            largest = torch.stack([report.tensors["largest"] for report in reports]).amax(0)
            self._adjoint(job, self.model.adjoint, largest)
        else:
            for number in range(1, job.solution.steps + 1):
                team.tell_all(Message("pull", {"number": number}))
                _answers(team, "pulled")
        team.tell_all(Message("gradients"))
        totals: dict[str, Tensor] = {}
        for report in _answers(team, "gradients"):
            for name, gradient in report.tensors.items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        return totals

    def _adjoint(self, job: _Job, adjoint: Implicit, scale: Tensor) -> None:
        """Solve u = g + J^T u over all parts, every graph judged by its estimated error, as
        :class:`~sheafdeq.adjoints.Implicit` does; ``scale`` (graphs,) are the largest entries of
        g."""
        team, report = job.team, job.solution.adjoint
        ended = Message("adjoint_end")
        if bool(torch.isfinite(scale).all()):
            system = Parts(team, scale)
            backward = solve_backward(system, adjoint.solver)
            ended.tensors["active"] = system.stand_in.unsettled(backward.value)
        else:
            backward = unsolved(scale.new_empty(0), scale)
        if report is not None:
            report.solution = backward
        warn_unsolved(backward)
        team.tell_all(ended)
        _answers(team, "adjoint_ended")


def _looped(stand_in: StandIn, solver: Picard) -> Solution:
    stopping = replace(
        solver.stopping,
        distance=Distance(solver.stopping.measure.name, stand_in.measure),
        probe=False,
    )
    return iterate(
        stand_in.function, stand_in.moved, stand_in, stopping, partition=stand_in.partition
    )


def _answers(team: Team, kind: str) -> list[Message]:
    """One report of everyone; a death loses the tape."""
    found: dict[int, Message] = {}
    while len(found) < team.count:
        for part, report in team.listen():
            if report.kind == kind:
                found[part] = report
            elif report.kind == "died":
                raise Lost
    return [found[part] for part in range(team.count)]


class _Job:
    """One recorded pass."""

    def __init__(
        self,
        owner: Partitioned,
        team: Team,
        rows: list[Tensor],
        names: list[str],
        solution: Solution,
        seed: int | None,
    ) -> None:
        self.owner, self.team, self.rows, self.names = owner, team, rows, names
        self.solution, self.seed = solution, seed


class _Attach(torch.autograd.Function):
    """Outputs that were computed elsewhere; backward has the gradients computed there, too."""

    @staticmethod
    def forward(ctx: Any, job: _Job, outputs: Tensor, *parameters: Tensor) -> Tensor:
        ctx.job = job
        return outputs.view_as(outputs)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        job: _Job = ctx.job
        totals = job.owner._backward(job, cotangent)
        return None, None, *(totals.get(name) for name in job.names)
