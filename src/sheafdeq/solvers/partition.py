"""Which row of a state belongs to which graph of a batch.

Every decision of a solve (steps, coefficients, stopping) is taken for each graph alone, so a batch
gives each graph what it would get alone, while each evaluation serves them all. This object holds
what that takes: reductions from rows to graphs, and the way back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ONE_GRAPH", "Partition"]


@dataclass(frozen=True, eq=False)
class Partition:
    """``graph_of_node`` (n,) the graph of every row, None when there is one; ``count`` graphs."""

    graph_of_node: Tensor | None = None
    count: int = 1

    def sum(self, rows: Tensor) -> Tensor:
        """(n, ...) -> (count, ...)."""
        if self.graph_of_node is None:
            return rows.sum(0, keepdim=True)
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add(0, self.graph_of_node, rows)

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, c), (n, c) -> (count,) inner products."""
        # twice as fast as a sum over a short axis
        return self.sum((left * right) @ left.new_ones(left.shape[1]))

    def max(self, rows: Tensor) -> Tensor:
        """(n,) -> (count,): the maximum over each graph's nodes, 0 for a graph without nodes."""
        result = rows.new_zeros(self.count)
        if rows.numel() == 0:
            return result
        if self.graph_of_node is None:
            result[0] = rows.max()
            return result
        return result.scatter_reduce_(0, self.graph_of_node, rows, "amax", include_self=True)

    def any(self, rows: Tensor) -> Tensor:
        """(n,) bool -> (count,) bool."""
        return self.max(rows.to(torch.float32)) > 0

    def largest(self, rows: Tensor) -> Tensor:
        """(n, c) -> (count,) largest absolute entry; infinite where something is not finite."""
        size = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
        return self.max(torch.nan_to_num(size, nan=torch.inf))

    def spread(self, values: Tensor) -> Tensor:
        """(count, ...) -> (n, ...), or (1, ...) when there is one graph."""
        if self.graph_of_node is None:
            return values
        return values.index_select(0, self.graph_of_node)

    def column(self, values: Tensor) -> Tensor:
        """(count,) -> (n, 1) or (1, 1), to multiply a state."""
        return self.spread(values).unsqueeze(1)


ONE_GRAPH = Partition()
"""All rows belong to one graph."""
