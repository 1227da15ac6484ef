"""One part with its model, its state and its letters: what every way of solving needs.

Versions are ``solve * 2^40 + round``, so letters of an earlier solve are never taken for news.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints.backward import Peaks
from sheafdeq.distributed.mail import Kind, Mail
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part import Part
from sheafdeq.distributed.tape import Piece, Tape
from sheafdeq.distributed.yardstick import metric_residuals
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.solvers import Partition, Picard

__all__ = [
    "ROUNDS_A_SOLVE",
    "BackwardPass",
    "Counters",
    "FreeRun",
    "PartState",
    "Snapshot",
    "checked_model",
    "version_of",
]

ROUNDS_A_SOLVE = 1 << 40
RESEND_SECONDS = 0.02


def version_of(solve: int, number: int) -> int:
    """One number for a round of a solve, larger for everything later."""
    return solve * ROUNDS_A_SOLVE + number


def checked_model(model: Any) -> EquilibriumModel:
    """An equilibrium model whose nodes can update from their neighbours alone; :class:`InputError`
    otherwise."""
    name = type(model).__name__
    if not isinstance(model, EquilibriumModel):
        raise InputError(
            f"{name} is not an equilibrium model: there is no iteration to divide into parts"
        )
    if not callable(getattr(model, "local_step", None)):
        raise InputError(
            f"{name} has no local_step: its update needs more than the incoming edges of a node, "
            "so a part cannot "
            "compute it alone; use a model with local_step"
        )
    if not getattr(model, "local_prepare", True):
        raise InputError(
            f"{name} prepares from more of the graph than a node's incoming edges (its "
            "local_prepare is False), "
            "so a part cannot prepare alone; run it in one process"
        )
    return model


@dataclass
class Counters:
    """What a worker has done since it was started."""

    rounds: int = 0
    sent: int = 0
    resent: int = 0
    sent_bytes: int = 0
    read: int = 0  # letters that brought something new
    waited: float = 0.0  # seconds without anything to do while a round was due
    computed: float = 0.0  # seconds inside the map
    largest_staleness: int = 0
    late: int = 0  # reads older than the bound (on_late="report" only)
    staleness: dict[int, int] = field(default_factory=dict)  # reads by staleness in rounds

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **{name: value for name, value in vars(self).items() if name != "staleness"},
            "waited": round(self.waited, 6),
            "computed": round(self.computed, 6),
            "staleness": {str(age): count for age, count in sorted(self.staleness.items())},
        }


@dataclass
class FreeRun:
    """A free-running solve."""

    rounds: int
    staleness: int
    report_late: bool
    report_seconds: float
    keep_every: int
    # below this residual a part that reports late reads waits for news instead of repeating itself
    quiet: float
    last_report: float = 0.0
    residual: float = float("inf")
    broken: bool = False
    wake: float = 0.0  # not before this time, when slowed down
    waiting_since: float | None = None
    news: bool = True  # a letter has come since the last round


@dataclass
class BackwardPass:
    """A backward pass under way: cotangents of own rows, and the exchange that is awaited."""

    number: int = -1  # of the exchange
    waiting: str | None = None  # the report that follows it
    # this part's share, before others' is added
    own: Tensor = field(default_factory=lambda: torch.empty(0))
    # u of the adjoint system, or the running cotangent
    state: Tensor = field(default_factory=lambda: torch.empty(0))
    image: Tensor | None = None
    probe: Tensor = field(default_factory=lambda: torch.empty(0))  # by which the rate is measured
    peaks: Peaks = field(default_factory=Peaks)
    level: int = 0  # pieces of the tape still to go through


@dataclass
class Snapshot:
    """The own state frozen for one measurement, with the halos and image that belong to it."""

    epoch: int
    state: Tensor
    halo: Tensor | None = None
    image: Tensor | None = None


class PartState:
    """One part with its model, its state and its letters."""

    def __init__(
        self,
        part: Part,
        model: EquilibriumModel,
        mail: Mail,
        *,
        resend_seconds: float = RESEND_SECONDS,
    ) -> None:
        self.part, self.mail = part, mail
        self.partition = Partition(part.graph_of_own, part.num_graphs)
        self.model = checked_model(model)
        self.resend_seconds = resend_seconds
        self.inbox: deque[Message] = deque()
        self.counters = Counters()
        self.solve = 0
        self.round = 0
        self.context: Any = None
        self.state: Tensor = torch.empty(0)  # (own, c)
        self.image: Tensor | None = None
        self.halo: Tensor = torch.empty(0)  # (halo, c) rows as last read
        self.heard: dict[int, int] = {}  # owner -> version its halo rows have
        # synchronous step under way: number, whether to evaluate
        self.stepping: tuple[int, bool] | None = None
        self.run: FreeRun | None = None
        self.snapshot: Snapshot | None = None
        self.fetching: list[str] | None = None
        self.last_send = 0.0
        self.waiting_since = 0.0  # of the synchronous step under way
        # the own share of a synchronous step is done, others' is not
        self.idle_since: float | None = None
        self.metric: tuple[str, int, Tensor | None] | None = None
        # a round takes this many times as long as it needs (a slow machine, for studies)
        self.slowdown = 1.0
        self.gradient: str | None = None  # unrolled or implicit while a forward pass is recorded
        self.tape: Tape | None = None
        # the last recorded evaluation, until its proposal is taken over or dropped
        self.piece: Piece | None = None
        self.adjoint = BackwardPass()
        self.solver = Picard(steps=0)
        self.distance = self.solver.stopping.measure

    def _load(self, command: Message) -> None:
        parameters = {
            name[6:]: tensor
            for name, tensor in command.tensors.items()
            if name.startswith("model/")
        }
        if parameters:
            self.model.load_state_dict(parameters)

    def _forget(self, solve: int) -> None:
        self.solve, self.round = solve, 0
        self.image, self.stepping, self.run, self.snapshot, self.fetching = (
            None,
            None,
            None,
            None,
            None,
        )
        self.piece, self.adjoint, self.idle_since = None, BackwardPass(), None
        self.heard = {}

    def _step(self, state: Tensor, halo: Tensor) -> Tensor:
        """(own, c), (halo, c) -> (own, c)."""
        begun = time.perf_counter()
        image = self.model.step(torch.cat([state, halo]), self.context)[: self.part.own]
        self.counters.computed += time.perf_counter() - begun
        return image

    def _measure(self, image: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(graphs,) largest residual of every graph here, and whether a row of it is not finite."""
        broken_rows = ~torch.isfinite(image).all(dim=1)
        residual = self.distance(image, state)
        residual = torch.where(
            broken_rows | residual.isnan(), torch.full_like(residual, torch.inf), residual
        )
        return self.partition.max(residual), self.partition.any(broken_rows)

    def _judged(self, kind: str, fields: dict[str, Any], image: Tensor, state: Tensor) -> Message:
        residual, broken = self._measure(image, state)
        tensors = {"residual": residual, "broken": broken}
        if self.metric is not None:
            name, levels, weights = self.metric
            tensors["metric"] = metric_residuals(name, levels, weights, image, state)
        return Message(kind, fields, tensors)

    def _publish(self, kind: Kind, version: int, state: Tensor, *, again: bool = False) -> None:
        for reader, rows in self.part.readers.items():
            letter = state.index_select(0, rows)
            self.mail.send(reader, kind, version, letter)
            self.counters.sent += 1
            self.counters.resent += again
            self.counters.sent_bytes += letter.numel() * letter.element_size()
        self.last_send = time.monotonic()

    def _listen(self) -> None:
        """Take every halo row that is newer than the one held."""
        for owner, (first, last) in self.part.owners.items():
            letter = self.mail.newest(owner, Kind.HALO)
            if (
                letter is None
                or letter[0] // ROUNDS_A_SOLVE != self.solve
                or letter[0] <= self.heard.get(owner, -1)
            ):
                continue
            self.heard[owner] = letter[0]
            self.halo[first:last] = letter[1]
            self.counters.read += 1

    def _resend(self) -> None:
        """Where letters can be lost, the newest is written again until somebody has surely read
        it."""
        if (
            not self.mail.lossy
            or self.context is None
            or time.monotonic() - self.last_send < self.resend_seconds
        ):
            return
        if self.run is not None or self.stepping is not None or self.image is not None:
            self._publish(Kind.HALO, version_of(self.solve, self.round), self.state, again=True)
        if self.snapshot is not None:
            self._publish(
                Kind.SNAPSHOT,
                version_of(self.solve, self.snapshot.epoch),
                self.snapshot.state,
                again=True,
            )

    def _on_publish(self, command: Message) -> list[Message]:
        """A neighbour lost its letters: write again."""
        if self.run is not None or self.stepping is not None or self.image is not None:
            self._publish(Kind.HALO, version_of(self.solve, self.round), self.state, again=True)
        return []

    def _exhausted(self, run: FreeRun) -> bool:
        return self.round >= run.rounds or run.broken

    def _note_staleness(self, number: int, bound: int | None = None) -> None:
        """Measured by the reader: how many rounds each letter it reads now is behind its own
        count."""
        for version in self.heard.values():
            age = max(0, number - version % ROUNDS_A_SOLVE)
            self.counters.staleness[age] = self.counters.staleness.get(age, 0) + 1
            self.counters.largest_staleness = max(self.counters.largest_staleness, age)
            self.counters.late += bound is not None and age > bound

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "round": self.round,
            "solve": self.solve,
            "counters": self.counters.to_json(),
        }
        if self.run is not None:
            waiting = (
                0.0 if self.run.waiting_since is None else time.monotonic() - self.run.waiting_since
            )
            facts["residual"] = None if self.run.residual == float("inf") else self.run.residual
            facts["exhausted"] = self._exhausted(self.run)
            facts["counters"]["waited"] = round(self.counters.waited + waiting, 6)
        return facts
