"""Signed separation at a positive equilibrium, executable (``docs/theory.md``, Proposition 15; the
paper's 3.1).

Any labelling of a graph without isolated nodes is read off the unique equilibrium of

    h = tanh(P h) + beta

for a sheaf of signed permutations. Class a gets a sign vector s_a with floor(d/2) negative entries;
Q_ab is the signed permutation that sends the k-th positive (negative) coordinate of s_b to the k-th
positive (negative) one of s_a, with the sign of its row: all positive vectors x have sign(Q_ab x) =
s_a, and Q_ba = Q_ab^T. An edge between v (the smaller number, class a) and u (class b) has the maps
I/sqrt(d) at v and Q_ab/sqrt(d) at u. A stored edge uses the map of its source and of its target, so
both stored directions carry the same sheaf, and

    P_vv = (1 - 1/d) I,      P_vu = Q_ab / (d sqrt(deg_v deg_u)),      0 <= P <= I.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.distances import SUP
from sheafdeq.errors import InputError
from sheafdeq.layers.operator import SheafOperator
from sheafdeq.solvers import Picard, Solution

__all__ = ["SignedSeparation", "sign_vectors", "signed_permutation", "signed_separation"]


@dataclass(frozen=True, eq=False)
class SignedSeparation:
    """The sheaf, and the linear readout that recovers the labels at its equilibrium."""

    graph: Graph
    labels: Tensor  # (n,) classes 0 .. C-1
    signs: Tensor  # (C, d) readout: logits of node v are signs @ h_v
    source_maps: Tensor  # (e, d, d) invertible, Frobenius norm one
    target_maps: Tensor  # (e, d, d)

    @property
    def stalk_dim(self) -> int:
        """The stalk dimension d."""
        return self.signs.shape[1]

    @cached_property
    def operator(self) -> SheafOperator:
        """P, symmetric with spectrum in [0, 1]."""
        return SheafOperator.on(self.graph, self.source_maps, self.target_maps)

    def step(self, state: Tensor, shift: float) -> Tensor:
        """``tanh(P h) + beta``, (n, d) -> (n, d)."""
        messages = (self._edge_blocks @ state[self.graph.source].unsqueeze(-1)).squeeze(-1)
        propagated = ((1 - 1 / self.stalk_dim) * state).index_add(0, self.graph.target, messages)
        return torch.tanh(propagated) + shift

    @cached_property
    def _edge_blocks(self) -> Tensor:
        """(e, d, d) F_tgt^T F_src / sqrt(deg_u deg_v), kept for the many steps of a solve."""
        return self.operator.edge_blocks

    def solve(self, shift: float = 1.2, solver: Picard | None = None) -> Solution:
        """The unique equilibrium, by Picard iteration from h = beta (it converges from every
        start)."""
        if not (math.isfinite(shift) and shift > 1):
            raise InputError(f"the shift must be finite and above 1, got {shift!r}")
        solver = solver or Picard(steps=20_000, tolerance=1e-12, stop_early=True, distance=SUP)
        start = torch.full((self.graph.num_nodes, self.stalk_dim), shift, dtype=self.signs.dtype)
        return solver.solve(lambda state: self.step(state, shift), start)

    def readout(self, state: Tensor) -> Tensor:
        """(n, d) -> (n, C) logits ``s_a . h_v``; the largest names the class."""
        return state @ self.signs.T


def sign_vectors(count: int, d: int) -> Tensor:
    """(count, d) distinct vectors of +-1 with floor(d/2) entries -1; there are binom(d, floor(d/2))
    of them."""
    most = math.comb(d, d // 2)
    if not 1 <= count <= most:
        raise InputError(
            f"stalk dimension {d} separates between 1 and {most} classes, got {count}: raise d"
        )
    signs = torch.ones(count, d, dtype=torch.float64)
    for row, negative in enumerate(islice(combinations(range(d), d // 2), count)):
        signs[row, list(negative)] = -1.0
    return signs


def signed_permutation(own: Tensor, other: Tensor) -> Tensor:
    """(d, d) Q with ``sign(Q x) = own`` and ``sign(Q^T x) = other`` for every x > 0; the transpose
    swaps the arguments."""
    matrix = torch.zeros(len(own), len(own), dtype=own.dtype)
    for sign in (1.0, -1.0):
        rows, columns = (own == sign).nonzero().flatten(), (other == sign).nonzero().flatten()
        matrix[rows, columns] = sign
    return matrix


def signed_separation(graph: Graph, labels: Tensor, d: int) -> SignedSeparation:
    """Build the sheaf that separates ``labels`` (integers 0 .. C-1, with C <= binom(d,
    floor(d/2))).

    The graph must store every undirected edge in both directions and have no isolated node (the
    proposition's hypotheses; otherwise P is not symmetric, or a node hears nothing). Self-loops and
    parallel edges are allowed.
    """
    if d < 2:
        raise InputError(f"signed separation needs a stalk dimension of at least 2, got {d!r}")
    n = graph.num_nodes
    if not isinstance(labels, Tensor) or labels.shape != (n,) or labels.dtype.is_floating_point:
        raise InputError(
            f"labels must be an integer tensor of shape ({n},), one class for every node"
        )
    if n == 0:
        raise InputError("signed separation needs at least one node, got an empty graph")
    if int(labels.min()) < 0:
        raise InputError(f"labels must be 0 or larger, got {int(labels.min())}")
    if bool((graph.pointer[1:] == graph.pointer[:-1]).any()):
        node = int((graph.pointer[1:] == graph.pointer[:-1]).nonzero()[0])
        raise InputError(
            f"node {node} is isolated: no sheaf can tell it its label; remove it or connect it"
        )
    codes, mirrored = graph.target * n + graph.source, graph.source * n + graph.target
    if not torch.equal(codes.sort().values, mirrored.sort().values):
        raise InputError(
            "some edge is stored in one direction only: add the reverse of every edge first"
        )

    signs = sign_vectors(int(labels.max()) + 1, d)
    count = len(signs)
    table = torch.stack(
        [torch.stack([signed_permutation(own, other) for other in signs]) for own in signs]
    )
    low = torch.minimum(graph.source, graph.target)
    high = torch.maximum(graph.source, graph.target)
    assert table.shape == (count, count, d, d)
    scale = 1.0 / math.sqrt(d)
    low_map = torch.eye(d, dtype=torch.float64).expand(graph.num_edges, -1, -1) * scale
    high_map = table[labels[low], labels[high]] * scale
    source_is_low = (graph.source < graph.target)[:, None, None]
    # A self-loop (neither smaller) reads the identity at its target and Q_aa, a diagonal of signs,
    # at its source.
    source_maps = torch.where(source_is_low, low_map, high_map)
    target_maps = torch.where(source_is_low, high_map, low_map)
    return SignedSeparation(graph.to(torch.float64), labels, signs, source_maps, target_maps)
