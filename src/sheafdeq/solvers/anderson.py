"""Anderson mixing (type II), each graph of a batch with its own coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.partition import Partition

__all__ = ["Anderson"]


@dataclass
class _Memory:
    partition: Partition
    images: list[Tensor] = field(default_factory=list)
    defects: list[Tensor] = field(default_factory=list)  # f(z) - z
    best: Tensor | None = None  # (graphs,) smallest squared defect norm since the last restart


@dataclass(frozen=True, init=False)
class Anderson(FixedPointSolver):
    """z_{k+1} = sum_i a_i f(z_i) over the last ``window`` states, with sum_i a_i = 1 minimising
    ||sum_i a_i (f(z_i) - z_i)||_2.

    Differences from the common implementation, each of which answers a known complaint:

    * the least squares problem is regularised relative to its own scale (``ridge``), so identical
      or vanishing defects give the Picard step and never a singular solve;
    * coefficients are computed for every graph of the batch alone: a batch gives each graph what it
      would get alone;
    * when a graph's defect grows past ``restart_factor`` times its best, the graph falls back to
      the Picard step until it recovers, so mixing cannot turn a convergent iteration into a
      divergent one unnoticed.
    """

    window: int
    mixing: float
    ridge: float
    restart_factor: float

    def __init__(
        self,
        steps: int | None = None,
        *,
        window: int = 5,
        mixing: float = 1.0,
        ridge: float = 1e-10,
        restart_factor: float = 2.0,
        **stopping: Any,
    ) -> None:
        if window < 1:
            raise InputError(f"window must be at least 1, got {window!r}")
        if not 0 < mixing <= 1:
            raise InputError(f"mixing must be in (0, 1], got {mixing!r}")
        if "stopping" not in stopping:
            steps = 100 if steps is None else steps
            stopping = {"stop_early": True, **stopping}
        super().__init__(steps, **stopping)
        for name, value in (
            ("window", window),
            ("mixing", mixing),
            ("ridge", ridge),
            ("restart_factor", restart_factor),
        ):
            object.__setattr__(self, name, value)

    def start(self, state: Tensor, partition: Partition) -> _Memory:
        """An empty history."""
        return _Memory(partition)

    def propose(self, state: Tensor, image: Tensor, memory: _Memory) -> tuple[Tensor, _Memory]:
        """Mix the last images; fall back to the image itself for graphs whose defect grew."""
        memory.images.append(image)
        memory.defects.append(image - state)
        del memory.images[: -self.window], memory.defects[: -self.window]
        size = memory.partition.sum(memory.defects[-1].detach().square().sum(1))
        grown = None
        if memory.best is not None:
            grown = size > self.restart_factor**2 * memory.best
            memory.best = torch.minimum(memory.best, size)
        else:
            memory.best = size
        if len(memory.images) == 1:
            return image, memory
        weights = self._weights(memory)  # (graphs, m)
        if grown is not None and bool(grown.any()):
            newest = torch.zeros_like(weights)
            newest[:, -1] = 1.0
            weights = torch.where(
                grown.unsqueeze(1) | ~torch.isfinite(weights).all(1, keepdim=True), newest, weights
            )
        per_node = memory.partition.spread(weights)
        proposal = torch.zeros_like(state)
        for i, (past_image, past_defect) in enumerate(
            zip(memory.images, memory.defects, strict=True)
        ):
            mixed = (
                past_image if self.mixing == 1.0 else past_image - (1.0 - self.mixing) * past_defect
            )
            proposal = proposal + per_node[:, i : i + 1] * mixed
        return proposal, memory

    def _weights(self, memory: _Memory) -> Tensor:
        """(graphs, m) coefficients that sum to one, from each graph's Gram matrix of
        defects."""
        stacked = torch.stack(memory.defects, dim=1)  # (n, m, c)
        gram_rows = stacked @ stacked.transpose(1, 2)  # (n, m, m)
        m = gram_rows.shape[1]
        gram = memory.partition.sum(gram_rows)
        scale = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=torch.finfo(gram.dtype).tiny)
        eye = torch.eye(m, dtype=gram.dtype, device=gram.device)
        # The ridge pulls towards equal weights; it also bounds the condition number, so the solve
        # cannot fail.
        ridge = max(self.ridge, 10 * torch.finfo(gram.dtype).eps)
        system = gram / scale[:, None, None] + ridge * eye
        solved = torch.linalg.solve(
            system, torch.ones(m, 1, dtype=gram.dtype, device=gram.device).expand(len(gram), m, 1)
        )
        weights = solved.squeeze(-1)
        result: Tensor = weights / weights.sum(1, keepdim=True)
        return result
