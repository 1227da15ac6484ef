"""Lockstep: every part waits for its halos of step k, so the result is that of one process.

The loop is the package's only loop (:func:`sheafdeq.solvers.iterate.iterate`). It runs in the
driver on a *stand-in* with one row for each graph of the batch: what it sees of a state is only how
often each graph has moved, and what it sees of the map are the residuals that the parts measure. So
limits, freezing of finished graphs and verdicts are the same code as in one process, and the driver
never holds a state.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.distances import Distance
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.team import Outcome, Team
from sheafdeq.errors import InputError, WorkerError
from sheafdeq.solvers import Partition, Picard, Solution, Status
from sheafdeq.solvers.iterate import iterate

__all__ = ["Lost", "StandIn", "checked_solver", "solve_synchronously"]

MOST_SOLVES = 20


def checked_solver(solver: Any) -> Picard:
    """Plain or damped Picard iteration; :class:`InputError` for methods that mix states over all
    nodes."""
    if not isinstance(solver, Picard):
        raise InputError(
            f"{type(solver).__name__} mixes the states of all nodes in every step, which parts do "
            "not share: use Picard"
        )
    return solver


class Lost(Exception):
    """A worker came back without what it had of the present pass, which must begin again."""


class _TimeOver(Exception):
    """No further step may begin."""


class StandIn:
    """Function, method and distance of the loop, all about residuals of graphs.

    ``command`` is what the parts do for one evaluation and ``answer`` what they report.
    ``tolerant``: steps can be repeated by a worker that came back; otherwise a death raises
    :class:`Lost`.
    """

    def __init__(
        self,
        team: Team,
        *,
        command: str = "evaluate",
        answer: str = "evaluated",
        tolerant: bool = True,
        first: int = 0,
    ) -> None:
        self.team, self.command, self.answer, self.tolerant = team, command, answer, tolerant
        self.moved = torch.zeros(team.num_graphs, 1, dtype=team.dtype)
        self.partition = Partition(torch.arange(team.num_graphs), team.num_graphs)
        self.residual = torch.zeros(team.num_graphs, dtype=team.dtype)
        self.size = self.residual  # of the image, where the parts report it
        self.metric: Tensor | None = None
        self.number = first - 1
        self.trace: list[float] = []
        self.deadline: float | None = None

    def start(self, state: Tensor, partition: Partition) -> None:
        """No memory."""

    def propose(self, state: Tensor, image: Tensor, memory: None) -> tuple[Tensor, None]:
        """Every graph moves once; the loop takes that back for finished ones."""
        return state + 1, None

    def halted(self, memory: None) -> None:
        """Parts always move."""

    def function(self, state: Tensor) -> Tensor:
        """Have the map evaluated everywhere; rows of broken graphs are NaN."""
        if self.deadline is not None and self.trace and time.monotonic() > self.deadline:
            raise _TimeOver
        self.number += 1
        active = self.unsettled(state)
        reports = self.everyone(self.command, self.answer, {"active": active})
        self.residual = torch.stack([report.tensors["residual"] for report in reports]).amax(0)
        broken = torch.stack([report.tensors["broken"] for report in reports]).any(0)
        self.trace.append(float(self.residual.max()) if len(self.residual) else 0.0)
        for name in ("metric", "size"):
            if name in reports[0].tensors:
                found = torch.stack([report.tensors[name] for report in reports]).amax(0)
                setattr(self, name, found)
        image = state.clone()
        image[broken] = torch.nan
        return image

    def measure(self, image: Tensor, state: Tensor) -> Tensor:
        """(graphs,) what the parts measured."""
        return self.residual

    def settle(self, state: Tensor, what: tuple[str, ...]) -> dict[str, Tensor]:
        """Take over the last proposals and fetch: now the parts hold the state the loop
        returned."""
        self.number += 1
        fetch = Message("fetch", {"what": list(what)})
        reports = self.everyone("settle", "fetched", {"active": self.unsettled(state)}, fetch)
        return self.team.assemble(dict(enumerate(reports)), what)

    def unsettled(self, state: Tensor) -> Tensor:
        """(graphs,) which proposals the parts have yet to take over."""
        active = (state > self.moved).squeeze(1)
        self.moved = state.clone()
        return active

    def attach(self, what: tuple[str, ...]) -> dict[str, Tensor]:
        """One recorded step at the equilibrium, for implicit gradients."""
        self.number += 1
        reports = self.everyone("attach", "fetched", {}, Message("fetch", {"what": list(what)}))
        return self.team.assemble(dict(enumerate(reports)), what)

    def everyone(
        self, command: str, answer: str, tensors: dict[str, Tensor], *then: Message, **fields: Any
    ) -> list[Message]:
        """What every part answers to a command of the present number."""
        team, number = self.team, self.number
        first = Message(command, {"step": number, "number": number, **fields}, tensors)
        messages = [first, *then]
        for message in messages:
            team.tell_all(message)
        found: dict[int, Message] = {}
        while len(found) < team.count:
            for part, report in team.listen():
                if report.fields.get("solve", team.solve) != team.solve:
                    continue  # of a solve that was given up
                if report.kind == answer and report.fields.get("step", number) == number:
                    found[part] = report
                elif report.kind == "died":
                    if not self.tolerant:
                        raise Lost
                    found.pop(part, None)
                elif report.kind == "resumed":
                    # Its state is that of the last step (or of this one), or the start; anything
                    # else is lost.
                    fits = report.fields["image"] and report.fields["round"] in (number - 1, number)
                    if number > 0 and not fits:
                        raise Lost
                    for message in messages:
                        team.engine.tell(part, message)
                    team.neighbours_publish(part)
        return [found[part] for part in range(team.count)]


def solve_synchronously(
    team: Team,
    solver: Picard,
    *,
    fetch: tuple[str, ...] = (),
    seconds: float | None = None,
    **preparation: Any,
) -> Outcome:
    """The solution that one process would find, and what is to be fetched of it (``outputs``,
    ``state``).

    A worker that dies is replaced and the step repeated from its kept state; if that is lost, the
    solve begins again, which gives the same numbers.
    """
    stopping = solver.stopping
    deadline = None if seconds is None else time.monotonic() + seconds
    for _ in range(MOST_SOLVES):
        team.prepare(
            damping=solver.damping,
            undamped=solver.undamped,
            distance=stopping.measure.name,
            **preparation,
        )
        stand_in = StandIn(team)
        stand_in.deadline = deadline
        # A stand-in has no digits to round otherwise.
        judged = replace(
            stopping, distance=Distance(stopping.measure.name, stand_in.measure), probe=False
        )
        try:
            try:
                solution = iterate(
                    stand_in.function,
                    stand_in.moved,
                    stand_in,
                    judged,
                    partition=stand_in.partition,
                )
            except _TimeOver:
                solution = _cut_short(stand_in, solver)
            tensors = stand_in.settle(solution.value, fetch)
        except Lost:
            team.journal.event("restarted", why="a worker came back without its state")
            continue
        solution.value = torch.empty(0, team.prepared[0]["width"], dtype=team.dtype)
        return Outcome(solution, stand_in.metric, tensors)
    raise WorkerError(f"workers lost their states in {MOST_SOLVES} attempts: the run is given up")


def _cut_short(stand_in: StandIn, solver: Picard) -> Solution:
    """The state of the last evaluation, whose residual is therefore known."""
    tolerance = solver.tolerance
    statuses = tuple(
        Status.CONVERGED if tolerance is not None and value <= tolerance else Status.MAX_STEPS
        for value in stand_in.residual.tolist()
    )
    return Solution(
        value=stand_in.moved,
        status=Status.worst(statuses),
        steps=stand_in.number,
        evaluations=stand_in.number + 1,
        residuals=stand_in.trace,
        distance=solver.stopping.measure.name,
        tolerance=tolerance,
        graph_status=statuses,
        graph_residual=stand_in.residual,
        graph_steps=stand_in.moved.squeeze(1).to(torch.int64),
    )
