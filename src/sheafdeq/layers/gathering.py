"""Models that read the states of their neighbours from a table: written once, they run on whole
graphs and on late messages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["GatheringModel"]


class GatheringModel(EquilibriumModel):
    """A recurrence given by one update that takes a node's own state apart from what its edges
    read.

    In ``update(own, table, edges, context)`` the edges into node i say which rows of ``table`` (m,
    c) it reads. A synchronous step reads the state itself; a delayed one reads a table of old
    states. The context needs the field ``edges``.
    """

    @abstractmethod
    def update(self, own: Tensor, table: Tensor, edges: Edges, context: Any) -> Tensor:
        """(n, c), (m, c) -> (n, c), pure."""

    def step(self, state: Tensor, context: Any) -> Tensor:
        """Every edge reads the current state of its source."""
        return self.update(state, state, context.edges, context)

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        """The same with edge k reading ``received[k]``."""
        return self.gathered_step(
            own, received, torch.arange(len(received), device=own.device), context
        )

    def gathered_step(self, own: Tensor, table: Tensor, index: Tensor, context: Any) -> Tensor:
        """The same with edge k reading ``table[index[k]]``."""
        return self.update(own, table, context.edges.reading(index, len(table)), context)
