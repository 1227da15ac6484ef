"""The sheaf propagation operator of a set of restriction maps.

For stored edges e = (u -> v) with maps F_src(e), F_tgt(e) (d x d) and in-degrees deg,

    (P Y)_v = Y_v - (1/deg_v) sum_{e into v} F_tgt^T F_tgt Y_v + sum_{e = (u -> v)} F_tgt^T F_src
    Y_u / sqrt(deg_u deg_v),

that is P = I - D^{-1/2} L D^{-1/2} with the scalar degrees. When the two stored directions of an
undirected edge carry the same two incidence maps (see
:class:`~sheafdeq.layers.cellular_sheaf.CellularSheaf`), L is the symmetric sheaf Laplacian; learned
maps may differ between the directions, and then P is not symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError

__all__ = ["SheafOperator"]


@dataclass(frozen=True, eq=False)
class SheafOperator:
    """P, given by its maps. ``apply`` acts on (n, d, q); ``to_dense`` is the (n*d, n*d) twin."""

    edges: Edges
    source_maps: Tensor  # (e, d, d)
    target_maps: Tensor  # (e, d, d)

    def __post_init__(self) -> None:
        e = len(self.edges.source)
        for name, maps in (("source_maps", self.source_maps), ("target_maps", self.target_maps)):
            if maps.dim() != 3 or maps.shape[0] != e or maps.shape[1] != maps.shape[2]:
                raise InputError(
                    f"{name} must have shape ({e}, d, d), one square map for each "
                    f"edge, got {tuple(maps.shape)}"
                )
        if self.source_maps.shape != self.target_maps.shape:
            raise InputError(
                f"source_maps {tuple(self.source_maps.shape)} and target_maps "
                f"{tuple(self.target_maps.shape)} must agree"
            )

    @staticmethod
    def on(graph: Graph, source_maps: Tensor, target_maps: Tensor) -> SheafOperator:
        """Maps given in the graph's own (sorted) edge order."""
        return SheafOperator(graph.edges, source_maps, target_maps)

    @property
    def stalk_dim(self) -> int:
        """The stalk dimension d."""
        return self.source_maps.shape[1]

    @property
    def edge_blocks(self) -> Tensor:
        """(e, d, d) the off-diagonal blocks F_tgt^T F_src / sqrt(deg_u deg_v)."""
        return (
            self.target_maps.transpose(1, 2) @ self.source_maps * self.edges.weight[:, None, None]
        )

    @property
    def diagonal_blocks(self) -> Tensor:
        """(n, d, d) the diagonal blocks I - (1/deg_v) sum F_tgt^T F_tgt."""
        n, d = self.edges.num_targets, self.stalk_dim
        gram = self.target_maps.transpose(1, 2) @ self.target_maps
        if self.edges.share is not None:
            gram = gram * self.edges.share[:, None, None]
        total = gram.new_zeros(n, d, d).index_add(0, self.edges.target, gram)
        eye = torch.eye(d, dtype=gram.dtype, device=gram.device)
        return eye - total / self.edges.degree[:, None, None]

    def apply(self, values: Tensor, received: Tensor | None = None) -> Tensor:
        """(n, d, q) -> (n, d, q). ``received`` (e, d, q): values at the source of every edge,
        ``values[source]`` by default."""
        if values.dim() != 3 or values.shape[1] != self.stalk_dim:
            raise InputError(
                f"values must have shape (n, {self.stalk_dim}, q), got {tuple(values.shape)}"
            )
        gathered = values[self.edges.source] if received is None else received
        messages = self.edge_blocks @ gathered
        own = self.diagonal_blocks @ values
        return own.index_add(0, self.edges.target, messages)

    def transpose(self) -> SheafOperator | _Transposed:
        """P^T as an operator with ``apply``, ``transpose`` and ``to_dense``."""
        return _Transposed(self)

    def to_dense(self) -> Tensor:
        """(n*d, n*d) the matrix itself, for tests and small graphs."""
        n, m, d = self.edges.num_targets, self.edges.num_sources, self.stalk_dim
        if n != m:
            raise InputError("only a whole graph has a square operator")
        blocks = self.edge_blocks.new_zeros(n, n, d, d)
        blocks.index_put_((self.edges.target, self.edges.source), self.edge_blocks, accumulate=True)
        index = torch.arange(n, device=blocks.device)
        blocks[index, index] += self.diagonal_blocks
        return blocks.permute(0, 2, 1, 3).reshape(n * d, n * d)


@dataclass(frozen=True, eq=False)
class _Transposed:
    """P^T: messages run against the stored direction, blocks transposed."""

    original: SheafOperator

    def apply(self, values: Tensor) -> Tensor:
        """(n, d, q) -> (n, d, q)."""
        base, edges = self.original, self.original.edges
        messages = base.edge_blocks.transpose(1, 2) @ values[edges.target]
        own = base.diagonal_blocks.transpose(1, 2) @ values
        return own.index_add(0, edges.source, messages)

    def transpose(self) -> SheafOperator:
        """Back again."""
        return self.original

    def to_dense(self) -> Tensor:
        """(n*d, n*d)."""
        return self.original.to_dense().T
