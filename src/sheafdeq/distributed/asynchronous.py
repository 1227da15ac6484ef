"""Free running: every part updates at its own pace from the newest halos, none more than tau rounds
behind.

Before its round k + 1 a part needs from every neighbour it reads a letter of round k - tau at
least, and waits for it (``on_late="wait"``), or goes on and counts (``"report"``). Staleness is
measured by the reader, in its own rounds.

When does it stop? Never because parts are quiet. The driver asks for a *snapshot*: every part
freezes its state as it is, the frozen boundary rows are exchanged under one epoch number, and every
part evaluates the map once on them. The largest residual over all parts is exactly that of the
frozen global state, which is what is returned if the residual is within tolerance. Quiet parts only
decide when asking is worth while; updating goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sheafdeq.distributed.message import Message
from sheafdeq.distributed.team import Outcome, Team
from sheafdeq.errors import InputError
from sheafdeq.solvers import Picard, Solution, Status
from sheafdeq.solvers.stopping import Stopping

__all__ = ["Pace", "solve_asynchronously"]

Ended = tuple[tuple[Status, ...], Tensor, Tensor | None]
"""Verdicts and residuals by graph, residuals in the certified metric."""


@dataclass(frozen=True)
class Pace:
    """How free the parts are.

    ``staleness``: tau. ``on_late``: ``wait`` keeps the bound, ``report`` exceeds it and counts.
    ``snapshot_rounds``: a snapshot is taken at least whenever every part has made so many rounds
    since the last. ``keep_every``: rounds between two states that survive the death of the worker
    (0: none do). ``slowdown[p]``: part p takes so many times as long.
    """

    staleness: int = 4
    on_late: str = "wait"
    snapshot_rounds: int = 25
    keep_every: int = 1
    report_seconds: float = 0.05
    slowdown: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("staleness", 0), ("snapshot_rounds", 1), ("keep_every", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.on_late not in ("wait", "report"):
            raise InputError(
                "on_late is 'wait' (keep the bound) or 'report' (exceed it and "
                f"count), got {self.on_late!r}"
            )
        for part, factor in self.slowdown.items():
            if not float(factor) >= 1:
                raise InputError(
                    f"part {part} cannot be slowed down by {factor!r}: give a factor of at least 1"
                )


@dataclass
class _Course:
    """What the driver knows while the parts run."""

    rounds: dict[int, int]
    residual: dict[int, float]
    exhausted: set[int] = field(default_factory=set)
    broken: Tensor | None = None
    epoch: int = 0
    measured: dict[int, Message] = field(default_factory=dict)
    pending: bool = False
    # the snapshot under way is the last: nobody moves any more, or the time is over
    final: bool = False
    last_round: int = -1  # of the slowest part at the last snapshot
    patience: int = 0  # times the driver has looked since the last snapshot
    back: set[int] = field(default_factory=set)  # parts that are being replaced

    @property
    def slowest(self) -> int:
        return min(self.rounds.values())


class _Judge:
    """Verdicts from snapshots, by the rules of the loop."""

    def __init__(self, stopping: Stopping, graphs: int) -> None:
        self.stopping = stopping
        self.residuals: list[float] = []
        self.first: Tensor | None = None
        self.best = torch.full((graphs,), torch.inf)
        self.best_round = torch.zeros(graphs, dtype=torch.int64)

    def verdict(self, residual: Tensor, slowest: int) -> list[Status | None]:
        """One for each graph: how it has ended, or None."""
        stopping = self.stopping
        tolerance = stopping.tolerance or 0.0
        self.residuals.append(float(residual.max()) if len(residual) else 0.0)
        if self.first is None:
            self.first = residual.clamp(min=tolerance or 1e-12)
        progress = residual < 0.99 * self.best
        self.best = torch.where(progress, residual, self.best)
        self.best_round = torch.where(
            progress, torch.full_like(self.best_round, slowest), self.best_round
        )
        result: list[Status | None] = []
        for graph, value in enumerate(residual.tolist()):
            if value <= tolerance:
                result.append(Status.CONVERGED)
            elif value > stopping.divergence_factor * float(self.first[graph]) and value < float(
                "inf"
            ):
                result.append(Status.DIVERGED)
            elif slowest - int(self.best_round[graph]) >= stopping.stagnation_window:
                result.append(Status.STAGNATED)
            else:
                result.append(None)
        return result


def solve_asynchronously(
    team: Team,
    solver: Picard,
    pace: Pace,
    *,
    fetch: tuple[str, ...] = (),
    seconds: float | None = None,
    **preparation: Any,
) -> Outcome:
    """Run until a snapshot is within tolerance, nothing improves any more, every part has made
    ``solver.steps`` rounds, or the time is over.

    ``residuals`` of the solution are those of the snapshots, each exact. A worker that dies at any
    moment is replaced and goes on from its kept state; if it takes the judged state along before
    that was fetched, everyone runs on.
    """
    stopping = solver.stopping
    deadline = None if seconds is None else time.monotonic() + seconds
    team.prepare(
        damping=solver.damping,
        undamped=solver.undamped,
        distance=stopping.measure.name,
        slowdown=pace.slowdown,
        **preparation,
    )
    everyone = range(team.count)
    course = _Course(dict.fromkeys(everyone, 0), dict.fromkeys(everyone, float("inf")))
    judge = _Judge(stopping, team.num_graphs)
    while True:
        for part in everyone:
            _run(team, part, solver, pace)
        statuses, residual, metric = _until_judged(course, team, judge, solver, pace, deadline)
        pieces = _fetch(course, team, fetch)
        if pieces is not None:
            break
    steps = max(course.rounds.values())
    solution = Solution(
        value=torch.empty(0, team.prepared[0]["width"], dtype=team.dtype),
        status=Status.worst(statuses),
        steps=steps,
        evaluations=sum(team.journal.total(part, "rounds") for part in everyone),
        residuals=judge.residuals,
        distance=stopping.measure.name,
        tolerance=stopping.tolerance,
        graph_status=statuses,
        graph_residual=residual,
        graph_steps=torch.full((team.num_graphs,), steps, dtype=torch.int64),
    )
    return Outcome(solution, metric, team.assemble(pieces, fetch))


def _until_judged(
    course: _Course, team: Team, judge: _Judge, solver: Picard, pace: Pace, deadline: float | None
) -> Ended:
    while True:
        for part, report in team.listen():
            _note(course, team, part, report, solver, pace)
        if course.pending and len(course.measured) == team.count:
            ended = _judge_snapshot(course, team, judge)
            if ended is not None:
                return ended
        late = deadline is not None and time.monotonic() > deadline
        if not course.pending and (
            _worth_while(course, team, solver.stopping, pace) or (late and not course.back)
        ):
            _begin_snapshot(course, team, final=late)


def _run(team: Team, part: int, solver: Picard, pace: Pace) -> None:
    fields = {
        "rounds": solver.steps,
        "staleness": pace.staleness,
        "on_late": pace.on_late,
        "report_seconds": pace.report_seconds,
        "keep_every": pace.keep_every,
        "quiet": 0.01 * (solver.tolerance or 0.0),
    }
    team.engine.tell(part, Message("run", fields))


def _note(
    course: _Course, team: Team, part: int, report: Message, solver: Picard, pace: Pace
) -> None:
    fields = report.fields
    if report.kind == "died":
        course.back.add(part)
        course.exhausted.discard(part)
        if course.pending:  # frozen rows are lost with the worker: this epoch is void
            team.journal.event("snapshot abandoned", epoch=course.epoch)
            course.pending, course.measured = False, {}
    elif report.kind == "resumed" and fields["solve"] == team.solve:
        course.back.discard(part)
        course.rounds[part] = max(fields["round"], 0)
        team.journal.event("resumed", part=part, round=fields["round"])
        _run(team, part, solver, pace)
        team.neighbours_publish(part)
    elif fields.get("solve") == team.solve and "round" in fields:
        course.rounds[part] = fields["round"]
        course.residual[part] = (
            float("inf") if fields.get("residual") is None else fields["residual"]
        )
        if fields.get("exhausted"):
            course.exhausted.add(part)
        if report.kind == "broken":
            flags = report.tensors["broken"]
            course.broken = flags if course.broken is None else course.broken | flags
        if report.kind == "measured" and course.pending and fields["epoch"] == course.epoch:
            course.measured[part] = report


def _worth_while(course: _Course, team: Team, stopping: Stopping, pace: Pace) -> bool:
    if course.back:
        return False
    if course.broken is not None or len(course.exhausted) == team.count:
        return True
    since = course.slowest - course.last_round
    quiet = stopping.tolerance is not None and all(
        value <= stopping.tolerance for value in course.residual.values()
    )
    course.patience += 1
    return since >= pace.snapshot_rounds or (quiet and (since >= 1 or course.patience > 10))


def _begin_snapshot(course: _Course, team: Team, *, final: bool) -> None:
    course.epoch += 1
    course.pending, course.measured = True, {}
    course.final = final or course.broken is not None or len(course.exhausted) == team.count
    course.last_round = course.slowest
    course.patience = 0
    team.tell_all(Message("snapshot", {"epoch": course.epoch}))


def _judge_snapshot(course: _Course, team: Team, judge: _Judge) -> Ended | None:
    """The end of the run, or None: then everyone simply goes on."""
    reports = [course.measured[part] for part in range(team.count)]
    course.pending = False
    residual = torch.stack([report.tensors["residual"] for report in reports]).amax(0)
    metric = None
    if "metric" in reports[0].tensors:
        metric = torch.stack([report.tensors["metric"] for report in reports]).amax(0)
    verdicts = judge.verdict(residual, course.last_round)
    team.journal.event(
        "snapshot",
        epoch=course.epoch,
        residual=_number(judge.residuals[-1]),
        slowest=course.last_round,
    )
    broken = torch.stack([report.tensors["broken"] for report in reports]).any(0)
    if course.broken is not None:
        broken = broken | course.broken
    for graph in broken.nonzero().flatten().tolist():
        verdicts[graph] = Status.NON_FINITE
    if all(verdict is not None for verdict in verdicts) or bool(broken.any()) or course.final:
        return tuple(verdict or Status.MAX_STEPS for verdict in verdicts), residual, metric
    return None


def _fetch(course: _Course, team: Team, what: tuple[str, ...]) -> dict[int, Message] | None:
    """Stop everyone at the judged state and fetch it; None if somebody died meanwhile and took rows
    of it along."""
    team.tell_all(Message("halt", {"epoch": course.epoch}))
    team.tell_all(Message("fetch", {"what": list(what)}))
    found: dict[int, Message] = {}
    died: set[int] = set()
    while len(found) < team.count:
        for part, report in team.listen():
            if report.kind == "fetched":
                found[part] = report
            elif report.kind == "died" and part not in found:
                died.add(part)
                course.exhausted.discard(part)
            elif report.kind == "resumed" and part in died:
                course.rounds[part] = max(report.fields["round"], 0)
                team.journal.event("resumed", part=part, round=report.fields["round"])
                return None
    return found


def _number(value: float) -> float | None:
    return value if value < float("inf") else None
