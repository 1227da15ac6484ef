"""What one part does: a worker that takes commands, reads its letters, and moves in small turns.

The same object runs in a thread of a test, in a process of its own, and in a Ray actor; only its
mail box and whoever calls :meth:`Worker.turn` differ. A turn never blocks: it does one piece of
work, or finds that there is nothing to do until news arrives.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from sheafdeq.distances import distance_by_name
from sheafdeq.distributed.free_part import FreePart
from sheafdeq.distributed.gradient_part import GradientPart
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part_state import ROUNDS_A_SOLVE
from sheafdeq.distributed.tape import Tape
from sheafdeq.errors import InputError
from sheafdeq.machine import peak_memory
from sheafdeq.solvers import Picard

__all__ = ["Worker"]


class Worker(FreePart, GradientPart):
    """One part that does what it is told."""

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
