"""Matrices with one c x c block for every node and every stored edge: Jacobians of local maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.edges import Edges

__all__ = ["BlockMatrix"]


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """M with blocks ``own[v]`` on the diagonal and ``edge[k]`` in block row ``target[k]``, block
    column ``source[k]``.

    Parallel edges keep separate blocks (each may carry a message of its own age); as a matrix they
    add up.
    """

    edges: Edges
    own: Tensor  # (n, c, c)
    edge: Tensor  # (e, c, c)

    @property
    def width(self) -> int:
        """c."""
        return self.own.shape[-1]

    def magnitude(self) -> BlockMatrix:
        """Entrywise absolute values (parallel blocks are not added first)."""
        return BlockMatrix(self.edges, self.own.abs(), self.edge.abs())

    def apply(self, vector: Tensor) -> Tensor:
        """M x for x (n, c)."""
        out = torch.bmm(self.own, vector.unsqueeze(-1)).squeeze(-1)
        messages = torch.bmm(self.edge, vector[self.edges.source].unsqueeze(-1)).squeeze(-1)
        return out.index_add(0, self.edges.target, messages)

    def scale(self, rows: Tensor, columns: Tensor) -> BlockMatrix:
        """diag(rows) M diag(columns), both (n, c)."""
        source, target = self.edges.source, self.edges.target
        own = rows.unsqueeze(2) * self.own * columns.unsqueeze(1)
        edge = rows[target].unsqueeze(2) * self.edge * columns[source].unsqueeze(1)
        return BlockMatrix(self.edges, own, edge)

    @property
    def terms(self) -> int:
        """Largest number of stored entries in one row: the length of its sum in ``apply``."""
        pointer = self.edges.pointer
        deepest = int((pointer[1:] - pointer[:-1]).max()) if len(self.own) else 0
        return self.width * (deepest + 1)

    def to_dense(self) -> Tensor:
        """(n*c, n*c), for tests and small graphs."""
        n, c = self.own.shape[:2]
        dense = self.own.new_zeros(n, n, c, c)
        dense.index_put_((self.edges.target, self.edges.source), self.edge, accumulate=True)
        index = torch.arange(n)
        dense[index, index] += self.own
        return dense.permute(0, 2, 1, 3).reshape(n * c, n * c)
