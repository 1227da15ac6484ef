"""Models that read the states of their neighbours from a table: written once, they run on whole
graphs and on late messages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.ops.sparse import Pattern

__all__ = ["GatheringModel"]


class GatheringModel(EquilibriumModel):
    """A recurrence given by one update that takes a node's own state apart from what its edges
    read.

    In ``update(own, table, pattern, context)`` row i of the pattern lists the rows of ``table`` (m,
    c) that the incoming edges of node i read. A synchronous step reads the state itself; a delayed
    one reads a table of old states. The context needs the fields ``incidence`` and ``pattern`` (of
    the whole graph).
    """

    @abstractmethod
    def update(self, own: Tensor, table: Tensor, pattern: Pattern, context: Any) -> Tensor:
        """(n, c), (m, c) -> (n, c), pure."""

    def step(self, state: Tensor, context: Any) -> Tensor:
        """Every edge reads the current state of its source."""
        return self.update(state, state, context.pattern, context)

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        """The same with edge k reading ``received[k]``."""
        return self.gathered_step(
            own, received, torch.arange(len(received), device=own.device), context
        )

    def gathered_step(self, own: Tensor, table: Tensor, index: Tensor, context: Any) -> Tensor:
        """The same with edge k reading ``table[index[k]]``."""
        return self.update(
            own, table, Pattern(context.incidence.pointer, index, len(table)), context
        )
