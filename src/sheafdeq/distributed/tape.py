"""Gradients through the halo exchange, on the side of one part.

A forward pass is cut into pieces at every exchange: piece k maps the leaves (own rows, halo rows)
of step k to the own rows of step k + 1. Backwards, the cotangent of the own rows goes through the
piece; what arrives at the halo leaf is sent back to the owners of those rows, and what others send
for rows of ours is added. Parameters collect their share as they go. What the features decide once
(the context) is cut off as leaves, too, so ``prepare`` is differentiated once and not once a step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.distributed.part import Part
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["Piece", "Tape", "cut_off"]


@dataclass
class Piece:
    """Own and halo rows that went in, own rows that came out."""

    own: Tensor
    halo: Tensor
    out: Tensor


def cut_off(context: Any) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
    """The context with its differentiable tensors as leaves, and the pairs (original, leaf)."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad:
            fresh = value.detach().requires_grad_()
            pairs.append((value, fresh))
            return fresh
        if isinstance(value, tuple):
            return tuple(leaf(entry) for entry in value)
        return value

    if not is_dataclass(context):
        return context, pairs
    changes = {
        entry.name: leaf(getattr(context, entry.name)) for entry in fields(context) if entry.init
    }
    return replace(context, **changes), pairs  # type: ignore[type-var]


class Tape:
    """What one forward pass leaves behind for its backward pass."""

    def __init__(self, model: EquilibriumModel, part: Part) -> None:
        self.model, self.part = model, part
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            self.context, self.pairs = cut_off(model.prepare(part.graph))
            whole = model.initial_state(self.context)
        self.start = whole[: part.own]  # attached
        self.halo_start = whole[part.own :].detach()
        self.pieces: list[Piece] = []
        self.attached: Piece | None = None  # one step at the equilibrium (implicit gradients)
        self.outputs: Piece | None = None
        self.unit: Tensor = torch.empty(0)  # the scaled cotangent of the equilibrium
        self.scale: Tensor = torch.ones(1, 1)  # (own, 1) what its graph was divided by

    def step(self, state: Tensor, halo: Tensor) -> Piece:
        """One attached evaluation of the map, from fresh leaves."""
        own, rows = state.detach().requires_grad_(), halo.detach().requires_grad_()
        with torch.enable_grad():
            out = self.model.step(torch.cat([own, rows]), self.context)[: self.part.own]
        return Piece(own, rows, out)

    def read_out(self, state: Tensor, halo: Tensor) -> Tensor:
        """The outputs of the own nodes, attached to fresh leaves."""
        own, rows = state.detach().requires_grad_(), halo.detach().requires_grad_()
        with torch.enable_grad():
            outputs = self.model.readout(torch.cat([own, rows]), self.context)[: self.part.own]  # type: ignore[operator]
        self.outputs = Piece(own, rows, outputs)
        result: Tensor = outputs.detach()
        return result

    @staticmethod
    def back(piece: Piece, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Through one piece, parameters collecting their share: cotangents of its own and halo
        rows."""
        if piece.out.requires_grad:
            torch.autograd.backward(piece.out, cotangent)
        return _gradient(piece.own), _gradient(piece.halo)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """J^T u at the equilibrium, parameters left alone: its own rows here, and its halo rows."""
        assert self.attached is not None
        piece = self.attached
        own, halo = torch.autograd.grad(
            piece.out, (piece.own, piece.halo), cotangent, retain_graph=True, allow_unused=True
        )
        zero = torch.zeros_like
        return (zero(piece.own) if own is None else own), (
            zero(piece.halo) if halo is None else halo
        )

    def finish(self) -> dict[str, Tensor]:
        """Through ``prepare``, once; then the gradient of every parameter that has one."""
        touched = [(original, leaf.grad) for original, leaf in self.pairs if leaf.grad is not None]
        if touched:
            torch.autograd.backward(
                [original for original, _ in touched], [gradient for _, gradient in touched]
            )
        return {
            name: parameter.grad.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
