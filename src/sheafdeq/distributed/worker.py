"""What one part does: a worker that takes commands, reads its letters, and moves in small turns.

The same object runs in a thread of a test, in a process of its own, and in a Ray actor; only its
mail box and whoever calls :meth:`Worker.turn` differ. A turn never blocks: it does one piece of
work, or finds that there is nothing to do until news arrives.

Versions are ``solve * 2^40 + round``, so letters of an earlier solve are never taken for news.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints.backward import Peaks, probe_pattern
from sheafdeq.distances import distance_by_name
from sheafdeq.distributed.mail import Kind, Mail
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part import Part
from sheafdeq.distributed.tape import Piece, Tape
from sheafdeq.distributed.yardstick import metric_residuals
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.machine import peak_memory
from sheafdeq.solvers import Partition, Picard

__all__ = ["Worker", "checked_model", "version_of"]

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
class _Run:
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
class Adjoint:
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
class _Snapshot:
    epoch: int
    state: Tensor
    halo: Tensor | None = None
    image: Tensor | None = None


class Worker:
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
        self.run: _Run | None = None
        self.snapshot: _Snapshot | None = None
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
        self.adjoint = Adjoint()
        self.solver = Picard(steps=0)
        self.distance = self.solver.stopping.measure

    # ------------------------------------------------------------------ commands and turns

    def tell(self, command: Message) -> None:
        """Take a command; it is carried out in the next turn."""
        self.inbox.append(command)

    def turn(self) -> list[Message]:
        """Do one piece of work and return what is to be reported."""
        reports: list[Message] = []
        self.mail.tick()
        while self.inbox:
            reports += self._obey(self.inbox.popleft())
        with torch.no_grad():
            if self.stepping is not None:
                reports += self._try_step()
            if self.snapshot is not None and self.snapshot.image is None:
                reports += self._try_snapshot()
            if self.run is not None:
                reports += self._try_round(self.run)
            if self.adjoint.waiting is not None:
                reports += self._try_exchange(self.adjoint)
            if self.fetching is not None and self.stepping is None:
                reports += self._fetch(self.fetching)
        self._resend()
        return reports

    @property
    def busy(self) -> bool:
        """Whether the next turn has work to do without any news."""
        run = self.run
        return bool(self.inbox) or (
            run is not None
            and run.waiting_since is None
            and not self._stopped(run)
            and time.monotonic() >= run.wake
        )

    def _obey(self, command: Message) -> list[Message]:
        action = getattr(self, f"_on_{command.kind}", None)
        if action is None:
            raise InputError(
                f"a worker does not know the command {command.kind!r}: versions differ?"
            )
        return action(command) or []

    # ------------------------------------------------------------------ preparing

    def _on_prepare(self, command: Message) -> list[Message]:
        """Parameters, context and start of a solve; the kept state of this very solve comes back
        when resuming."""
        fields = command.fields
        self.gradient, self.tape = fields.get("gradient"), None
        self.model.train(bool(fields.get("training", False)))
        if fields.get("seed") is not None:
            torch.manual_seed(fields["seed"] + self.part.number)
        with torch.no_grad():
            self._load(command)
            self.model.check(self.part.graph)
        own = self.part.own
        if self.gradient is not None:
            self.tape = Tape(self.model, self.part)
            self.context = self.tape.context
            start = torch.cat([self.tape.start.detach(), self.tape.halo_start])
        else:
            with torch.no_grad():
                self.context = self.model.prepare(self.part.graph)
                start = self.model.initial_state(self.context)
        self.state = (
            start[:own].clone()
            if "start" not in command.tensors
            else command.tensors["start"].to(start.dtype)
        )
        if self.state.shape != start[:own].shape:
            raise InputError(
                f"the start of part {self.part.number} must be "
                f"{tuple(start[:own].shape)}, got {tuple(self.state.shape)}"
            )
        self.halo = start[own:].clone()
        self.solver = Picard(steps=0, damping=fields["damping"], undamped=fields["undamped"])
        self.slowdown = fields.get("slowdown", 1.0)
        self.distance = distance_by_name(fields["distance"])
        self.metric = None
        if fields.get("metric") is not None:
            self.metric = (fields["metric"], fields["levels"], command.tensors.get("weights"))
        self._forget(fields["solve"])
        return [
            Message(
                "prepared",
                {
                    "solve": self.solve,
                    "width": start.shape[1],
                    "dtype": str(start.dtype).removeprefix("torch."),
                    "own": own,
                    "readers": {
                        str(reader): len(rows) for reader, rows in self.part.readers.items()
                    },
                    "graphs": self.part.num_graphs,
                    "sizes": self.part.describe(),
                },
            )
        ]

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
        self.piece, self.adjoint, self.idle_since = None, Adjoint(), None
        self.heard = {}

    def _on_resume(self, command: Message) -> list[Message]:
        """After a restart: go on from the kept state if it belongs to this solve."""
        kept = self.mail.kept()
        resumed = -1
        if kept is not None and kept[0] // ROUNDS_A_SOLVE == self.solve:
            resumed = self.round = kept[0] % ROUNDS_A_SOLVE
            self.state = kept[1][0].clone()
            self.image = kept[1][1].clone() if len(kept[1]) > 1 else None
        return [
            Message(
                "resumed", {"solve": self.solve, "round": resumed, "image": self.image is not None}
            )
        ]

    # ------------------------------------------------------------------ the map on this part

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

    # ------------------------------------------------------------------ letters

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

    # ------------------------------------------------------------------ synchronous steps

    def _on_evaluate(self, command: Message) -> list[Message]:
        """Take over the last proposal for the active graphs, publish, and evaluate when all halos
        are there."""
        number = command.fields["step"]
        # done already, by a worker that died before saying so
        if self.round == number and self.image is not None:
            return [
                self._judged("evaluated", {"step": number, **self._facts()}, self.image, self.state)
            ]
        self._begin_step(number, command.tensors["active"], evaluate=True)
        return []

    def _on_settle(self, command: Message) -> list[Message]:
        """Take over the last proposal and fetch its halos, without evaluating again."""
        self._begin_step(command.fields["step"], command.tensors["active"], evaluate=False)
        return []

    def _begin_step(self, number: int, active: Tensor, *, evaluate: bool) -> None:
        with torch.no_grad():
            self._propose(active)
        self.round, self.image = number, None
        self._publish(Kind.HALO, version_of(self.solve, number), self.state)
        self.stepping = (number, evaluate)
        self.waiting_since = time.monotonic()
        if self.idle_since is not None:
            self.counters.waited += self.waiting_since - self.idle_since
            self.idle_since = None

    def _propose(self, active: Tensor) -> None:
        if self.image is None or not bool(active.any()):
            return
        if self.piece is not None and self.tape is not None:
            with torch.enable_grad():
                self.piece.out = self._moved(self.piece.own, self.piece.out, active)
            self.tape.pieces.append(self.piece)
            self.state, self.piece = self.piece.out.detach(), None
        else:
            self.state = self._moved(self.state, self.image, active)

    def _moved(self, state: Tensor, image: Tensor, active: Tensor) -> Tensor:
        """The solver's proposal for the graphs that still move."""
        proposal, _ = self.solver.propose(state, image, self.round)
        if bool(active.all()):
            return proposal.contiguous()
        return torch.where(active[self.part.graph_of_own].unsqueeze(1), proposal, state)

    def _try_step(self) -> list[Message]:
        assert self.stepping is not None
        number, evaluate = self.stepping
        self._listen()
        wanted = version_of(self.solve, number)
        if any(self.heard.get(owner) != wanted for owner in self.part.owners):
            return []
        begun = time.monotonic()
        self.counters.waited += begun - self.waiting_since
        self.stepping = None
        if not evaluate:
            return [Message("settled", self._facts())]
        if self.gradient == "unrolled":
            assert self.tape is not None
            self.piece = self.tape.step(self.state, self.halo)
            self.image = self.piece.out.detach()
        else:
            self.image = self._step(self.state, self.halo)
        self.counters.rounds += 1
        self._note_staleness(number)
        if self.tape is None:  # a recorded pass cannot be taken up again: it begins anew
            self.mail.keep(wanted, self.state, self.image)
        report = self._judged(
            "evaluated", {"step": number, **self._facts()}, self.image, self.state
        )
        # all the work of a slow machine takes longer, as in a free-running round
        if self.slowdown > 1:
            time.sleep((self.slowdown - 1) * (time.monotonic() - begun))
        self.idle_since = time.monotonic()
        return [report]

    # ------------------------------------------------------------------ free running

    def _on_run(self, command: Message) -> list[Message]:
        """Update at the own pace from the newest halos."""
        fields = command.fields
        self.run = _Run(
            fields["rounds"],
            fields["staleness"],
            fields["on_late"] == "report",
            fields["report_seconds"],
            fields["keep_every"],
            fields["quiet"],
        )
        self._publish(Kind.HALO, version_of(self.solve, self.round), self.state)
        return []

    def _exhausted(self, run: _Run) -> bool:
        return self.round >= run.rounds or run.broken

    def _stopped(self, run: _Run) -> bool:
        """A part that keeps the bound stops at its limit; one that does not goes on until the
        slowest has got there."""
        return run.broken or (self._exhausted(run) and not run.report_late)

    def _try_round(self, run: _Run) -> list[Message]:
        read = self.counters.read
        self._listen()
        run.news = run.news or self.counters.read > read
        now = time.monotonic()
        if self._stopped(run):
            return self._progress(run, now)
        oldest = min((self.heard.get(owner, -1) for owner in self.part.owners), default=None)
        staleness = 0 if oldest is None else version_of(self.solve, self.round) - oldest
        unheard = len(self.heard) < len(self.part.owners)
        repeating = run.report_late and not run.news and run.residual <= run.quiet
        if (
            unheard
            or repeating
            or (staleness > run.staleness and not run.report_late)
            or now < run.wake
        ):
            if run.waiting_since is None and now >= run.wake:
                run.waiting_since = now
            return self._progress(run, now)
        if run.waiting_since is not None:
            self.counters.waited += now - run.waiting_since
            run.waiting_since = None
        run.news = False
        self._note_staleness(self.round, run.staleness)
        image = self._step(self.state, self.halo)
        residual, broken = self._measure(image, self.state)
        if bool(broken.any()):
            run.broken = True  # the last finite state stays
            return [Message("broken", self._facts(), {"broken": broken})]
        run.residual = float(residual.max()) if len(residual) else 0.0
        proposal, _ = self.solver.propose(self.state, image, self.round)
        self.state = proposal.contiguous()
        self.round += 1
        self.counters.rounds += 1
        if run.keep_every and self.round % run.keep_every == 0:
            self.mail.keep(version_of(self.solve, self.round), self.state)
        self._publish(Kind.HALO, version_of(self.solve, self.round), self.state)
        if self.slowdown > 1:
            after = time.monotonic()
            run.wake = after + (self.slowdown - 1) * (after - now)
        return self._progress(run, time.monotonic())

    def _note_staleness(self, number: int, bound: int | None = None) -> None:
        """Measured by the reader: how many rounds each letter it reads now is behind its own
        count."""
        for version in self.heard.values():
            age = max(0, number - version % ROUNDS_A_SOLVE)
            self.counters.staleness[age] = self.counters.staleness.get(age, 0) + 1
            self.counters.largest_staleness = max(self.counters.largest_staleness, age)
            self.counters.late += bound is not None and age > bound

    def _progress(self, run: _Run, now: float) -> list[Message]:
        if now - run.last_report < run.report_seconds:
            return []
        run.last_report = now
        return [Message("progress", self._facts())]

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

    # ------------------------------------------------------------------ snapshots

    def _on_snapshot(self, command: Message) -> list[Message]:
        """Freeze the own state for one measurement; updating goes on."""
        self.snapshot = _Snapshot(command.fields["epoch"], self.state.clone())
        self._publish(
            Kind.SNAPSHOT, version_of(self.solve, self.snapshot.epoch), self.snapshot.state
        )
        return []

    def _try_snapshot(self) -> list[Message]:
        snapshot = self.snapshot
        assert snapshot is not None
        wanted = version_of(self.solve, snapshot.epoch)
        rows = torch.empty_like(self.halo)
        for owner, (first, last) in self.part.owners.items():
            letter = self.mail.newest(owner, Kind.SNAPSHOT)
            if letter is None or letter[0] != wanted:
                return []
            rows[first:last] = letter[1]
        snapshot.halo, snapshot.image = rows, self._step(snapshot.state, rows)
        fields = {"epoch": snapshot.epoch, **self._facts()}
        return [self._judged("measured", fields, snapshot.image, snapshot.state)]

    def _on_halt(self, command: Message) -> list[Message]:
        """Stop updating; the state is that of the snapshot the driver has judged."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.halo is None or snapshot.epoch != command.fields["epoch"]:
            raise InputError(f"part {self.part.number} has no snapshot {command.fields['epoch']}")
        self.state, self.halo, self.image = snapshot.state, snapshot.halo, snapshot.image
        self.run, self.snapshot = None, None
        return [Message("halted", self._facts())]

    # ------------------------------------------------------------------ gradients

    def _on_attach(self, command: Message) -> list[Message]:
        """Implicit gradients: one attached step at the equilibrium; its rows are what is read
        out."""
        assert self.tape is not None
        self.tape.attached = self.tape.step(self.state, self.halo)
        self.state, self.image = self.tape.attached.out.detach(), None
        self._begin_step(
            command.fields["step"],
            torch.zeros(self.part.num_graphs, dtype=torch.bool),
            evaluate=False,
        )
        return []

    def _on_backward(self, command: Message) -> list[Message]:
        """The cotangent of the outputs arrives; it goes through the readout."""
        assert self.tape is not None
        assert self.tape.outputs is not None
        self.adjoint = Adjoint(level=len(self.tape.pieces))
        own, halo = self.tape.back(
            self.tape.outputs, command.tensors["cotangent"].to(self.tape.outputs.out.dtype)
        )
        self._exchange(command.fields["number"], own, halo, "pulled")
        return []

    def _on_pull(self, command: Message) -> list[Message]:
        """One recorded step backwards."""
        assert self.tape is not None
        self.adjoint.level -= 1
        own, halo = self.tape.back(self.tape.pieces[self.adjoint.level], self.adjoint.state)
        self._exchange(command.fields["number"], own, halo, "pulled")
        return []

    def _on_adjoint_begin(self, command: Message) -> list[Message]:
        """Every graph's cotangent is divided by the largest entry it has anywhere."""
        assert self.tape is not None
        self.tape.scale = self.partition.column(command.tensors["scale"])
        self.adjoint.state = self.tape.unit = self.adjoint.state / self.tape.scale
        return []

    def _on_adjoint(self, command: Message) -> list[Message]:
        """One evaluation of u -> g + J^T u, after taking over the last one for the graphs that
        still move."""
        self._take_over(command.tensors["active"])
        self._pull(self.adjoint.state, command, "adjointed")
        return []

    def _take_over(self, active: Tensor) -> None:
        adjoint = self.adjoint
        if adjoint.image is not None:
            adjoint.state = torch.where(self.partition.column(active), adjoint.image, adjoint.state)

    def _pull(self, vector: Tensor, command: Message, report: str) -> None:
        assert self.tape is not None
        self._exchange(command.fields["number"], *self.tape.pull(vector), report)

    def _on_probe(self, command: Message) -> list[Message]:
        """Begin to measure the rate of J^T, one more product, or what its entries have shown."""
        adjoint, what, column = self.adjoint, command.fields["what"], self.partition.column
        if what == "pull":
            unit = adjoint.probe / column(command.tensors["scale"])
            if "window" in command.fields:
                weighted = unit * column(command.tensors["weight"])
                adjoint.peaks.see(command.fields["window"], weighted)
            self._pull(unit, command, "probed")
            return []
        if what == "lag":
            return [self._probed(command.fields["number"], adjoint.peaks.lag(self.partition))]
        adjoint.peaks = Peaks()
        if what == "residual":
            assert adjoint.image is not None
            adjoint.probe = adjoint.image - adjoint.state
        else:
            width, dtype = adjoint.state.shape[1], adjoint.state.dtype
            adjoint.probe = probe_pattern(self.part.nodes, width, dtype)
        return [self._probed(command.fields["number"], self.partition.largest(adjoint.probe))]

    def _probed(self, number: int, size: Tensor) -> Message:
        return Message("probed", {"step": number, "solve": self.solve}, {"size": size})

    def _on_adjoint_end(self, command: Message) -> list[Message]:
        """The adjoint system is solved: its solution goes to the parameters through the attached
        step."""
        assert self.tape is not None
        assert self.tape.attached is not None
        if "active" in command.tensors:
            self._take_over(command.tensors["active"])
            self.adjoint.state = self.adjoint.state * self.tape.scale
        self.tape.back(self.tape.attached, self.adjoint.state)
        return [Message("adjoint_ended")]

    def _on_gradients(self, command: Message) -> list[Message]:
        """The share of this part in the gradient of every parameter."""
        assert self.tape is not None
        if self.gradient == "unrolled" and self.tape.start.requires_grad:
            torch.autograd.backward(self.tape.start, self.adjoint.state)
        gradients = self.tape.finish()
        self.tape, self.gradient = None, None
        return [Message("gradients", self._facts(), gradients)]

    def _exchange(self, number: int, own: Tensor, halo: Tensor, report: str) -> None:
        """Send cotangents of halo rows to their owners and await those of own rows."""
        self.adjoint.number, self.adjoint.own, self.adjoint.waiting = number, own, report
        for owner, (first, last) in self.part.owners.items():
            self.mail.send(owner, Kind.GRADIENT, version_of(self.solve, number), halo[first:last])
            self.counters.sent += 1

    def _try_exchange(self, adjoint: Adjoint) -> list[Message]:
        wanted = version_of(self.solve, adjoint.number)
        letters = {reader: self.mail.newest(reader, Kind.GRADIENT) for reader in self.part.readers}
        if any(letter is None or letter[0] != wanted for letter in letters.values()):
            return []
        total = adjoint.own.clone()
        # in the order of their numbers: the same sum every time
        for reader, rows in self.part.readers.items():
            letter = letters[reader]
            assert letter is not None
            total.index_add_(0, rows, letter[1])
        report, adjoint.waiting = adjoint.waiting, None
        if report == "pulled":
            adjoint.state = total
            largest = {"largest": self.partition.largest(total)}
            return [Message("pulled", {"number": adjoint.number, "solve": self.solve}, largest)]
        if report == "probed":
            adjoint.probe = total
            return [self._probed(adjoint.number, self.partition.largest(total))]
        assert self.tape is not None
        adjoint.image = self.tape.unit + total
        tensors = {
            "residual": self.partition.largest(adjoint.image - adjoint.state),
            "size": self.partition.largest(adjoint.image),
            "broken": self.partition.any((~torch.isfinite(adjoint.image)).any(dim=1)),
        }
        return [Message("adjointed", {"step": adjoint.number, "solve": self.solve}, tensors)]

    # ------------------------------------------------------------------ results

    def _on_fetch(self, command: Message) -> list[Message]:
        """The outputs of the own nodes, or their states, once the halos of the present step are
        there."""
        self.fetching = list(command.fields["what"])
        return []

    def _fetch(self, what: list[str]) -> list[Message]:
        """Outputs may read the halo."""
        tensors: dict[str, Tensor] = {"nodes": self.part.nodes}
        self.fetching = None
        with torch.no_grad():
            if "state" in what:
                tensors["state"] = self.state
            if "outputs" in what and self.tape is not None:
                tensors["outputs"] = self.tape.read_out(self.state, self.halo)
            elif "outputs" in what:
                rows = torch.cat([self.state, self.halo])
                tensors["outputs"] = self.model.readout(rows, self.context)[: self.part.own]  # type: ignore[operator]
        return [Message("fetched", {**self._facts(), "memory": peak_memory()}, tensors)]
