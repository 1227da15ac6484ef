"""A part that steps with all others: one round when the halos of that round are there."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from sheafdeq.distributed.mail import Kind
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part_state import PartState, version_of

__all__ = ["LockstepPart"]


class LockstepPart(PartState):
    """Commands of a synchronous solve."""

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
