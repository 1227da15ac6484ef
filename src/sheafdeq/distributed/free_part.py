"""A part that updates at its own pace from the newest halos, and can freeze its state."""

from __future__ import annotations

import time

import torch

from sheafdeq.distributed.mail import Kind
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part_state import FreeRun, PartState, Snapshot, version_of
from sheafdeq.errors import InputError

__all__ = ["FreePart"]


class FreePart(PartState):
    """Commands of an asynchronous solve."""

    def _on_run(self, command: Message) -> list[Message]:
        """Update at the own pace from the newest halos."""
        fields = command.fields
        self.run = FreeRun(
            fields["rounds"],
            fields["staleness"],
            fields["on_late"] == "report",
            fields["report_seconds"],
            fields["keep_every"],
            fields["quiet"],
        )
        self._publish(Kind.HALO, version_of(self.solve, self.round), self.state)
        return []

    def _stopped(self, run: FreeRun) -> bool:
        """A part that keeps the bound stops at its limit; one that does not goes on until the
        slowest has got there."""
        return run.broken or (self._exhausted(run) and not run.report_late)

    def _try_round(self, run: FreeRun) -> list[Message]:
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

    def _progress(self, run: FreeRun, now: float) -> list[Message]:
        if now - run.last_report < run.report_seconds:
            return []
        run.last_report = now
        return [Message("progress", self._facts())]

    def _on_snapshot(self, command: Message) -> list[Message]:
        """Freeze the own state for one measurement; updating goes on."""
        self.snapshot = Snapshot(command.fields["epoch"], self.state.clone())
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
