"""A part in a backward pass: cotangents of halo rows go to their owners."""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.adjoints.backward import Peaks, probe_pattern
from sheafdeq.distributed.lockstep_part import LockstepPart
from sheafdeq.distributed.mail import Kind
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part_state import BackwardPass, version_of

__all__ = ["GradientPart"]


class GradientPart(LockstepPart):
    """Commands of a backward pass."""

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
        self.adjoint = BackwardPass(level=len(self.tape.pieces))
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

    def _try_exchange(self, adjoint: BackwardPass) -> list[Message]:
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
