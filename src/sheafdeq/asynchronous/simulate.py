"""Partial asynchronism in virtual time: deterministic, exact, and only the awake nodes cost
anything.

The simulator keeps the last tau + 1 states of every run in a ring. In a slot it evaluates the
model's own map on the active nodes alone (:func:`~sheafdeq.recurrence.restrict`), each edge reading
the row of the ring its delay points at
(:meth:`~sheafdeq.equilibrium.EquilibriumModel.gathered_step`). Several runs go through the slots
together, so that their active nodes share one evaluation. A slot in which all nodes update from
fresh messages is the model's ``step`` itself, so the schedule (1, 0) reproduces Picard iteration
bit for bit.

The same inputs give the same bits. Running schedules together instead of one by one may change the
last bits (matrix products of another height round differently), nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sheafdeq.asynchronous.schedule import Conditions, Slot, SlotSource, Violation
from sheafdeq.asynchronous.trace import Trace
from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.measure import evaluating
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.recurrence import restrict
from sheafdeq.solvers import Status

__all__ = ["Simulation", "simulate", "simulate_many"]

Observer = Callable[[int, float, Tensor], None]
"""``observe(run, work, state)``: called for the start and after slots that reach the next mark."""

_HISTORY_BYTES = 64 * 2**20
_DIVERGENCE = 1e8


@dataclass(frozen=True)
class Simulation:
    """The end of one asynchronous run.

    ``status``: CONVERGED when the residual of the *synchronous* map at the final state is within
    tolerance; MAX_STEPS when the work was done first; DIVERGED or NON_FINITE when the state left
    all bounds (``state`` is then the last finite one). ``stationary``: the slot from which nothing
    changed any more although every node had updated from messages that no longer changed; the rest
    of the work is not computed then, since it would change nothing either.
    """

    state: Tensor  # (n, c)
    status: Status
    residual: float
    work: float
    trace: Trace
    violations: tuple[Violation, ...]
    schedule: dict[str, Any]
    stationary: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the state, ready for JSON."""
        return {
            "schedule": self.schedule,
            "status": self.status.label,
            "residual": self.residual,
            "work": self.work,
            "stationary": self.stationary,
            "violations": [vars(violation) for violation in self.violations[:10]],
            "trace": self.trace.to_json(),
        }


def simulate(
    model: EquilibriumModel, graph: AnyGraph, schedule: SlotSource, **options: Any
) -> Simulation:
    """One run; options as in :func:`simulate_many`."""
    return simulate_many(model, graph, [schedule], **options)[0]


def simulate_many(
    model: EquilibriumModel,
    graph: AnyGraph,
    schedules: Sequence[SlotSource],
    *,
    work: float,
    context: Any = None,
    initial_state: Tensor | None = None,
    marks: Sequence[float] = (),
    observe: Observer | None = None,
    tolerance: float = 1e-6,
    history_bytes: int = _HISTORY_BYTES,
) -> list[Simulation]:
    """Run the model under every schedule, from the same start, until each has done ``work`` mean
    updates a node.

    ``context`` defaults to ``model.prepare(graph)`` in evaluation mode. ``observe(run, work,
    state)`` sees the start, then the state after the first slot that reaches each of ``marks``, and
    the end. ``history_bytes`` limits the memory of the rings, and so how many schedules run
    together. A recording that ends before the work is done ends its run there.
    """
    if not isinstance(model, EquilibriumModel):
        raise InputError(
            f"{type(model).__name__} is feed-forward: it has no recurrence to run asynchronously"
        )
    if not hasattr(model, "local_step"):
        raise InputError(
            f"{type(model).__name__} has no local_step, so its nodes cannot update "
            "alone: implement local_step"
        )
    if not work > 0:
        raise InputError(f"work must be positive (mean updates a node), got {work!r}")
    graph = Graph.of(graph)
    with evaluating(model):
        context = model.prepare(graph) if context is None else context
        start = model.initial_state(context) if initial_state is None else initial_state
        if start.shape[0] != graph.num_nodes:
            raise InputError(
                f"the initial state has {start.shape[0]} rows, the graph has "
                f"{graph.num_nodes} nodes"
            )
        results: list[Simulation] = []
        for first, last in _groups(schedules, start, history_bytes):
            group = _Group(
                model, context, start, schedules[first:last], sorted(marks), observe, first
            )
            group.run(work)
            results.extend(run.result(model, context, tolerance) for run in group.runs)
    return results


def _groups(
    schedules: Sequence[SlotSource], start: Tensor, history_bytes: int
) -> Iterator[tuple[int, int]]:
    """Consecutive schedules whose rings fit into the memory allowed (at least one at a time)."""
    first, used = 0, 0
    for position, schedule in enumerate(schedules):
        size = (schedule.delay_bound + 1) * start.numel() * start.element_size()
        if position > first and used + size > history_bytes:
            yield first, position
            first, used = position, 0
        used += size
    if first < len(schedules):
        yield first, len(schedules)


@dataclass
class _Run:
    """One schedule under way."""

    number: int
    source: SlotSource
    slots: Iterator[Slot]
    conditions: Conditions
    trace: Trace
    state: Tensor  # (n, c) a view of the newest row of the ring
    next_mark: int = 0
    quiet: int = 0  # slots since anything changed
    status: Status | None = None
    stationary: int | None = None
    work: float = 0.0
    alive: bool = field(default=True)

    def result(self, model: EquilibriumModel, context: Any, tolerance: float) -> Simulation:
        state = self.state.clone()
        image = model.step(state, context)
        residual = float(RELATIVE_SUP(image, state).max()) if state.numel() else 0.0
        status = self.status
        if status is None:
            status = Status.CONVERGED if residual <= tolerance else Status.MAX_STEPS
            if not bool(torch.isfinite(image).all()):
                status = Status.NON_FINITE
        violations = tuple(self.conditions.finish())
        return Simulation(
            state,
            status,
            residual,
            self.work,
            self.trace,
            violations,
            self.source.describe(),
            self.stationary,
        )


class _Group:
    """Runs that go through the slots together, their rings side by side in one table."""

    def __init__(
        self,
        model: EquilibriumModel,
        context: Any,
        start: Tensor,
        sources: Sequence[SlotSource],
        marks: Sequence[float],
        observe: Observer | None,
        offset: int,
    ) -> None:
        self.model, self.context, self.marks, self.observe = model, context, marks, observe
        self.edges: Edges = context.edges
        self.n, self.c = start.shape
        self.depth = max(source.delay_bound for source in sources) + 1
        self.ring = start.expand(self.depth, len(sources), -1, -1).clone()  # (depth, runs, n, c)
        self.table = self.ring.view(-1, self.c)
        self.bound = _DIVERGENCE * max(1.0, float(start.abs().max()) if start.numel() else 1.0)
        self.runs = [
            _Run(
                offset + i,
                source,
                iter(source.slots(self.edges)),
                Conditions(self.edges, source.window, source.delay_bound),
                Trace(self.n),
                self.ring[0, i],
            )
            for i, source in enumerate(sources)
        ]

    def run(self, work: float) -> None:
        """Slot after slot until every run is done."""
        for run in self.runs:
            self._report(run)
        time = 0
        while any(run.alive for run in self.runs):
            self._slot(time, work)
            time += 1

    def _slot(self, time: int, work: float) -> None:
        now, later = self.ring[time % self.depth], self.ring[(time + 1) % self.depth]
        waiting: list[tuple[int, Slot, Tensor]] = []
        fresh: dict[int, Tensor] = {}
        for i, run in enumerate(self.runs):
            if not run.alive:
                continue
            slot = next(run.slots, None)
            if slot is None:  # a recording has ended
                run.alive = False
                continue
            edges = self.edges.edges_into(slot.active)
            self._admit(run, slot, edges, time)
            if len(slot.active) == self.n and slot.own_delay is None and not bool(slot.delay.any()):
                fresh[i] = self.model.step(now[i], self.context)
            else:
                waiting.append((i, slot, edges))
        images = self._evaluate(waiting, now, time) if waiting else []
        for i, run in enumerate(self.runs):
            # Runs that have ended keep their newest state in the row their view points at; nobody
            # reads it any more.
            if run.alive and self.depth > 1:
                later[i].copy_(now[i])
        changed = dict.fromkeys(fresh, True)
        broken: set[int] = set()
        for i, image in fresh.items():
            broken |= set() if self._sound(image) else {i}
            changed[i] = not torch.equal(image, now[i])
            if i not in broken:
                later[i].copy_(image)
        for (i, slot, _), image in zip(waiting, images, strict=True):
            broken |= set() if self._sound(image) else {i}
            changed[i] = not torch.equal(image, now[i, slot.active])
            if i not in broken:
                later[i, slot.active] = image
        for i in changed:
            self._account(self.runs[i], later[i], changed[i], i in broken, time, work)

    def _admit(self, run: _Run, slot: Slot, edges: Tensor, time: int) -> None:
        """Check and count a slot; a delay that points outside the ring cannot be carried out at
        all."""
        run.conditions.see(slot, edges)
        reach = min(self.depth - 1, time)
        for delays in (slot.delay, slot.own_delay):
            if (
                delays is not None
                and delays.numel()
                and (int(delays.min()) < 0 or int(delays.max()) > reach)
            ):
                raise InputError(
                    f"slot {time} reads delays from {int(delays.min())} to {int(delays.max())}; "
                    f"only 0 ... {reach} can be read "
                    f"(the schedule promises at most {run.source.delay_bound})"
                )
        if len(slot.delay) != len(edges):
            raise InputError(
                f"slot {time} has {len(slot.delay)} delays for {len(edges)} incoming "
                "edges of its active nodes"
            )
        run.trace.see(slot.active, slot.delay)

    def _evaluate(
        self, waiting: list[tuple[int, Slot, Tensor]], now: Tensor, time: int
    ) -> Sequence[Tensor]:
        """The new rows of the active nodes of every run, from one evaluation of the map."""
        runs = self.ring.shape[1]
        reads, owns = [], []
        for i, slot, edges in waiting:
            row = (time - slot.delay) % self.depth
            reads.append((row * runs + i) * self.n + self.edges.source[edges])
            moment = time - (
                slot.own_delay if slot.own_delay is not None else torch.zeros_like(slot.active)
            )
            owns.append((moment % self.depth * runs + i) * self.n + slot.active)
        nodes = torch.cat([slot.active for _, slot, _ in waiting])
        restricted, _ = restrict(self.context, nodes)
        index, own, table = torch.cat(reads), self.table[torch.cat(owns)], self.table
        if len(index) < len(table):  # fewer messages than stored rows: transform only what is read
            table, index = table[index], torch.arange(len(index))
        result: Sequence[Tensor] = self.model.gathered_step(own, table, index, restricted).split(
            [len(slot.active) for _, slot, _ in waiting]
        )
        return result

    @staticmethod
    def _sound(image: Tensor) -> bool:
        return bool(torch.isfinite(image).all())

    def _account(
        self, run: _Run, state: Tensor, changed: bool, broken: bool, time: int, work: float
    ) -> None:
        run.state, run.work = state, run.trace.work
        if broken:
            run.status = Status.NON_FINITE
        elif changed and float(state.abs().max()) > self.bound:
            run.status = Status.DIVERGED
        run.quiet = 0 if changed else run.quiet + 1
        settled = run.quiet >= run.source.window + run.source.delay_bound
        if settled:
            run.stationary = time + 1 - run.quiet
        run.alive = run.status is None and not settled and run.work < work
        self._report(run, final=not run.alive)
        if not run.alive:
            run.state = state.clone()

    def _report(self, run: _Run, final: bool = False) -> None:
        if self.observe is None:
            return
        due = False
        while run.next_mark < len(self.marks) and run.work >= self.marks[run.next_mark]:
            run.next_mark, due = run.next_mark + 1, True
        if due or final or run.work == 0:
            self.observe(run.number, run.work, run.state)
