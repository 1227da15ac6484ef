r"""The slope of a level by its own states, as an operator: no matrix is formed.

In log coordinates, with h the states and A = P W_1 the blocks of all edges (and the diagonal ones),

    J = diag(phi_a / T) J+ - diag(|phi_b| / T) J-,
    J+ e = A+ (h e) W_2+ + A- (h e) W_2-,      J- e = A+ (h e) W_2- + A- (h e) W_2+,

where + and - are positive and negative parts. Every entry of J is one product, so |J| has the same
two terms added.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.predictions.arithmetic import scaled_up

__all__ = ["OwnMap"]

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class OwnMap:
    """Exact numbers for every factor: the largest, the smallest, or those at the centre."""

    graph: Graph
    mixing: Tensor  # (q, q) W_2
    edges: Pair  # (e, d, d) positive and negative part of the edge blocks
    diagonal: Pair  # (n, d, d) the same of the diagonal blocks
    by_plus: Tensor  # (n, c) phi_a / T
    by_minus: Tensor  # (n, c) |phi_b| / T
    state: Tensor  # (n, c) h

    @property
    def channels(self) -> int:
        """q."""
        return len(self.mixing)

    @cached_property
    def terms(self) -> int:
        """Products in one entry of |J| e, at most."""
        deepest = int(self.graph.pointer.diff().max()) if self.graph.num_nodes else 0
        return 4 * (deepest + 1) * self.diagonal[0].shape[-1] * self.channels

    def parts(self, e: Tensor) -> Pair:
        """(n, c) J+ e and J- e for e >= 0, as they are computed."""
        q, graph = self.channels, self.graph
        both = torch.cat([self.mixing.clamp(min=0), (-self.mixing).clamp(min=0)], 1)
        values = (self.state * e).view(len(e), -1, q) @ both
        swapped = torch.cat([values[..., q:], values[..., :q]], 2)
        total = self.diagonal[0] @ values + self.diagonal[1] @ swapped
        arriving = self.edges[0] @ values[graph.source] + self.edges[1] @ swapped[graph.source]
        total = total.index_add(0, graph.target, arriving)
        return total[..., :q].reshape(e.shape), total[..., q:].reshape(e.shape)

    def sizes(self, e: Tensor) -> Tensor:
        """(n, c) an upper bound of |J| e for e >= 0."""
        plus, minus = self.parts(e)
        return scaled_up(self.by_plus * plus + self.by_minus * minus, self.terms)

    def apart(self, smallest: OwnMap, e: Tensor) -> Tensor:
        """(n, c) an upper bound of |J - J'| e for all J and J' between ``smallest`` and this one.

        Both terms of J have nonnegative factors, so each lies between the products of the
        smallest and of the largest ones.
        """
        high, low = self.sizes(e), smallest.parts(e)
        below = smallest.by_plus * low[0] + smallest.by_minus * low[1]
        slack = (self.terms + 8) * 2.0**-51
        return scaled_up((high - below).clamp(min=0) + slack * high, 4)

    def columns(self, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
        """J X for X (n, c, k), in ``dtype``: |J| X has two sparse products as well.

        J = diag((phi_a + |phi_b|) / 2T) A (h X) W_2 + diag((phi_a - |phi_b|) / 2T) |A| (h X) |W_2|.
        """
        n, d, q = len(self.state), self.diagonal[0].shape[-1], self.channels
        signed = self._sparse(self.edges[0] - self.edges[1], self.diagonal[0] - self.diagonal[1])
        sizes = self._sparse(self.edges[0] + self.edges[1], self.diagonal[0] + self.diagonal[1])
        signed, sizes = signed.to(dtype), sizes.to(dtype)
        mixing = self.mixing.T.contiguous().to(dtype)
        state = self.state.view(n * d, q, 1).to(dtype)
        half = [
            (0.5 * (self.by_plus + sign * self.by_minus)).view(n * d, q, 1).to(dtype)
            for sign in (1, -1)
        ]

        def apply(x: Tensor) -> Tensor:
            k = x.shape[2]
            scaled = x.view(n * d, q, k) * state
            first = torch.sparse.mm(signed, (mixing @ scaled).view(n * d, q * k))
            second = torch.sparse.mm(sizes, (mixing.abs() @ scaled).view(n * d, q * k))
            first = first.view(n * d, q, k).mul_(half[0])
            total: Tensor = first.addcmul_(second.view(n * d, q, k), half[1])
            return total.view(x.shape)

        return apply

    def column_rounding(self, e: Tensor) -> Tensor:
        """(n, c) what float32 can change in :meth:`columns`, for columns whose sizes sum to e.

        At most q + d (edges + 1) rounded additions and eight rounded factors, each within 2^-24;
        the two halves of phi_a and |phi_b| add up to more than either. The constant is for
        numbers below the range of float32.
        """
        plus, minus = self.parts(e)
        loose = (self.by_plus + self.by_minus) * (plus + minus)
        d = self.diagonal[0].shape[-1]
        additions = self.channels + self.terms // (4 * self.channels) + d + 16
        return scaled_up(loose, self.terms) * (additions * 2.0**-23) + 1e-30

    def _sparse(self, edges: Tensor, diagonal: Tensor) -> Tensor:
        """(n d, n d) blocks at their places, CSR."""
        n, d = len(diagonal), diagonal.shape[-1]
        every = torch.arange(n)
        rows = torch.cat([self.graph.target, every]).view(-1, 1, 1) * d
        columns = torch.cat([self.graph.source, every]).view(-1, 1, 1) * d
        inner = torch.arange(d)
        rows = (rows + inner.view(1, d, 1)).expand(-1, d, d)
        columns = (columns + inner.view(1, 1, d)).expand(-1, d, d)
        index = torch.stack([rows.reshape(-1), columns.reshape(-1)])
        values = torch.cat([edges, diagonal]).reshape(-1)
        with warnings.catch_warnings():  # that CSR tensors are in beta, once a process
            warnings.simplefilter("ignore")
            matrix = torch.sparse_coo_tensor(index, values, (n * d, n * d), check_invariants=False)
            return matrix.coalesce().to_sparse_csr()
