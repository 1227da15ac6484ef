"""The normalised adjacency of a graph: fixed weights, and propagation with them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops.sparse import aggregate

__all__ = ["FixedWeights", "gcn_weights", "propagate"]


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """The symmetrically normalised adjacency: ``edge`` (e,) for stored edges, ``own`` (n,) for the
    added self-loops."""

    edge: Tensor
    own: Tensor


def gcn_weights(edges: Edges, *, self_loops: bool) -> FixedWeights:
    r"""D^{-1/2} A D^{-1/2}, or with self-loops :math:`D_+^{-1/2} (A + I) D_+^{-1/2}`; kept as long
    as the edges live.

    Degrees count incoming edges, each by its share where edges have weights (plus one with
    ``self_loops``), and are clamped to one where they divide.
    """

    def make() -> FixedWeights:
        if not self_loops:
            return FixedWeights(edges.weight, edges.degree.new_zeros(edges.num_targets))
        if edges.share is None:
            root = (edges.in_degree + 1).to(edges.dtype).rsqrt()
        else:
            root = (edges.in_share + 1).rsqrt()
        edge = root.index_select(0, edges.source) * root.index_select(0, edges.target)
        return FixedWeights(edge if edges.share is None else edge * edges.share, root.square())

    return edges.kept(("gcn_weights", self_loops), make)


def propagate(
    edge_weight: Tensor, own_weight: Tensor | None, own: Tensor, table: Tensor, edges: Edges
) -> Tensor:
    """Weighted sum over incoming edges, reading ``table``, plus the self-loop's share of ``own``:
    (n, c)."""
    received = aggregate(edge_weight, table, edges)
    return received if own_weight is None else received + own_weight.unsqueeze(1) * own
