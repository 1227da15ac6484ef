"""The backward system u = g + J^T u, its vectors shared by the parts.

The algorithm is that of one process (:mod:`sheafdeq.adjoints.backward`); the driver sees the
largest entries of every graph, the vectors stay with the parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints.backward import ERROR_DISTANCE, estimated_error
from sheafdeq.distances import Distance
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.synchronous import StandIn
from sheafdeq.distributed.team import Team
from sheafdeq.solvers import Solution
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.solvers.iterate import iterate

__all__ = ["Parts"]


class Parts:
    """The system of a team whose workers hold the cotangent of the equilibrium, of which ``scale``
    (graphs,) are the largest entries."""

    def __init__(self, team: Team, scale: Tensor) -> None:
        self.team, self.dtype = team, team.dtype
        divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
        team.tell_all(Message("adjoint_begin", {}, {"scale": divisor}))
        self.stand_in = self._fresh(1)

    def _fresh(self, first: int) -> StandIn:
        return StandIn(
            self.team, command="adjoint", answer="adjointed", tolerant=False, first=first
        )

    def _probed(self, what: str, tensors: dict[str, Tensor], **fields: Any) -> Tensor:
        self.stand_in.number += 1
        reports = self.stand_in.everyone("probe", "probed", tensors, what=what, **fields)
        return torch.stack([report.tensors["size"] for report in reports]).amax(0)

    def begin_probe(self, *, at_residual: bool) -> Tensor:
        """The residual is the one of the last :meth:`defect`."""
        return self._probed("residual" if at_residual else "pattern", {})

    def pull_probe(self, scale: Tensor, seen: tuple[int, Tensor] | None) -> Tensor:
        """One product, which crosses the halos."""
        if seen is None:
            return self._probed("pull", {"scale": scale})
        return self._probed("pull", {"scale": scale, "weight": seen[1]}, window=seen[0])

    def lag(self) -> Tensor:
        """Of the slowest entry anywhere."""
        return self._probed("lag", {})

    def solve(self, solver: FixedPointSolver, rate: Tensor, tolerances: Tensor) -> Solution:
        """By the loop, on a stand-in."""
        stand_in = self.stand_in = self._fresh(self.stand_in.number + 1)

        def measure(image: Tensor, state: Tensor) -> Tensor:
            return estimated_error(stand_in.residual, stand_in.size, rate)

        stopping = replace(solver.stopping, distance=Distance(ERROR_DISTANCE, measure), probe=False)
        self.solution = iterate(
            stand_in.function,
            stand_in.moved,
            stand_in,
            stopping,
            partition=stand_in.partition,
            tolerances=tolerances,
        )
        return self.solution

    def defect(self) -> tuple[Tensor, Tensor]:
        """One evaluation at the state the loop returned."""
        self.stand_in.function(self.solution.value)
        return self.stand_in.residual, self.stand_in.size
