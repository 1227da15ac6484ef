"""Who hears whom: the edges of a graph, or of some of its nodes, without any features.

One class serves all who ask. A model reads ``source``, ``target``, ``degree`` and ``weight``; a
sparse product reads the edges into each target as the entries of a matrix row (``pointer``,
``source``), its derivative the :attr:`~Edges.transposed` ones; attention repeats them for each head
and matrix-valued propagation for each block; the native kernel and whoever else derives something
from the edges alone keeps it with them (:meth:`Edges.kept`), for as long as they live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.plain_tensor import plain_tensor

__all__ = ["Edges"]

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Edges:
    """Edge k carries a message from row ``source[k]`` of a table of ``num_sources`` rows to its
    target.

    The edges into target v are ``pointer[v]:pointer[v + 1]``. For a whole graph sources and targets
    are the same nodes. The asynchronous simulator reads a table of past states (:meth:`reading`)
    and updates some targets only (:meth:`restricted`). Parallel edges are allowed, in any order.

    The plain constructor and :meth:`of` trust their arguments; :meth:`build` checks everything. The
    native kernel checks every index once more when it makes its own copy.
    """

    source: Tensor  # (e,) int64
    pointer: Tensor  # (num_targets + 1,) int64
    num_sources: int
    dtype: torch.dtype = torch.float32  # of degree and weight
    # (num_targets,) int64 true in-degrees where some edges are stored elsewhere; None: as stored
    counts: Tensor | None = field(default=None, repr=False)
    given_degree: Tensor | None = field(default=None, repr=False)
    given_weight: Tensor | None = field(default=None, repr=False)
    original: Edges | None = field(default=None, repr=False)  # the same edges with other weights
    # (e,) how much each edge counts, >= 0; None: one each. A share of zero is an edge less
    share: Tensor | None = field(default=None, repr=False)

    # ------------------------------------------------------------------ construction

    @staticmethod
    def of(
        edge_index: Tensor,
        num_nodes: int,
        dtype: torch.dtype,
        counts: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Edges:
        """The edges of a whole graph from ``edge_index`` (2, e), sorted by target; ``share`` (e,)
        says how much each counts."""
        source, target = edge_index
        pointer = _pointer(target, num_nodes)
        return Edges(source, pointer, num_nodes, dtype, counts, share=share)

    @staticmethod
    def build(
        source: Tensor, pointer: Tensor, weight: Tensor, degree: Tensor, num_sources: int
    ) -> Edges:
        """Check the parts and put them together.

        Args:
            source: (e,) integer row each edge reads.
            pointer: (n + 1,) integer offsets of the edges into each target.
            weight: (e,) weight of each message.
            degree: (n,) positive divisor of each target's diagonal term.
            num_sources: number of rows of the table that is read.
        """
        source, pointer = plain_tensor(source, "source"), plain_tensor(pointer, "pointer")
        weight, degree = plain_tensor(weight, "weight"), plain_tensor(degree, "degree")
        for name, index in (("source", source), ("pointer", pointer)):
            if (
                index.dim() != 1
                or index.dtype.is_floating_point
                or index.dtype in (torch.bool, torch.complex64)
            ):
                raise InputError(
                    f"{name} must be a vector of integers, got {index.dtype} of "
                    f"shape {tuple(index.shape)}"
                )
        if pointer.numel() == 0:
            raise InputError("pointer must have one entry more than there are targets, got none")
        source, pointer = source.to(torch.int64), pointer.to(torch.int64)
        e, n = source.numel(), pointer.numel() - 1
        for name, values, count in (("weight", weight, e), ("degree", degree, n)):
            if values.shape != (count,) or not values.dtype.is_floating_point:
                raise InputError(
                    f"{name} must hold {count} floating point numbers, got {values.dtype} "
                    f"{tuple(values.shape)}"
                )
        if int(pointer[0]) != 0 or int(pointer[-1]) != e or bool((pointer.diff() < 0).any()):
            raise InputError(f"pointer must rise from 0 to the number of edges, {e}")
        if e and (int(source.min()) < 0 or int(source.max()) >= num_sources):
            raise InputError(
                f"source holds rows {int(source.min())} to {int(source.max())}, the table has "
                f"rows 0 to {num_sources - 1}"
            )
        if bool((degree <= 0).any()) or not bool(torch.isfinite(degree).all()):
            raise InputError("degrees must be positive and finite: clamp them to at least one")
        return Edges(source, pointer, num_sources, weight.dtype, None, degree, weight)

    # ------------------------------------------------------------------ sizes and derived structure

    @property
    def num_targets(self) -> int:
        """Number of rows that are updated, n."""
        return self.pointer.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of stored edges, e."""
        return self.source.numel()

    @property
    def target(self) -> Tensor:
        """(e,) int64 target of every edge, non-decreasing."""
        if torch.compiler.is_compiling():  # of a size that is known without looking at numbers
            edges = torch.arange(self.num_edges, device=self.source.device)
            return torch.searchsorted(self.pointer, edges, right=True) - 1
        return self._target

    @cached_property
    def _target(self) -> Tensor:
        nodes = torch.arange(self.num_targets, device=self.source.device)
        return torch.repeat_interleave(nodes, self.pointer.diff())

    @property
    def in_degree(self) -> Tensor:
        """(n,) int64 number of incoming edges: ``counts`` where given, else the stored ones."""
        return self.pointer.diff() if self.counts is None else self.counts

    @property
    def in_share(self) -> Tensor:
        """(n,) shares of the incoming edges together: their number without shares."""
        if self.share is None:
            return self.in_degree.to(self.dtype)
        return self.share.new_zeros(self.num_targets).index_add(0, self.target, self.share)

    @property
    def degree(self) -> Tensor:
        """(n,) number of incoming edges, or their shares together, and one where there is none."""
        return self._degree_now() if self._differentiated else self._degree

    @property
    def weight(self) -> Tensor:
        """(e,) the symmetric scalar normalisation 1 / sqrt(deg_u deg_v), times the share, unless
        weights were given."""
        return self._weight_now() if self._differentiated else self._weight

    @property
    def _differentiated(self) -> bool:
        # what carries a gradient belongs to one backward pass and is never kept
        return self.share is not None and self.share.requires_grad

    @cached_property
    def _degree(self) -> Tensor:
        return self._degree_now()

    @cached_property
    def _weight(self) -> Tensor:
        return self._weight_now()

    def _degree_now(self) -> Tensor:
        if self.given_degree is not None:
            return self.given_degree
        if self.share is None:
            return self.in_degree.clamp(min=1).to(self.dtype)
        total = self.in_share
        return torch.where(total > 0, total, torch.ones_like(total))

    def _weight_now(self) -> Tensor:
        if self.given_weight is not None:
            return self.given_weight
        root = self.degree.rsqrt()
        weight = root[self.source] * root[self.target]
        return weight if self.share is None else weight * self.share

    @cached_property
    def by_source(self) -> Tensor:
        """(e,) int64 permutation that lists the edges by source (stable)."""
        return torch.argsort(self.source, stable=True)

    @property
    def wiring(self) -> Edges:
        """These edges as they were before weights were changed: what does not depend on weights is
        kept there."""
        return self if self.original is None else self.original

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        return {}

    def kept(self, key: Any, make: Callable[[], Made]) -> Made:
        """What ``make`` returns, made once and kept while the edges live (every time anew where
        shares carry a gradient)."""
        if self._differentiated:
            return make()
        if key not in self._kept:
            self._kept.setdefault(key, make())
        made: Made = self._kept[key]
        return made

    # ------------------------------------------------------------------ some of the edges

    def edges_into(self, nodes: Tensor) -> Tensor:
        """Positions of all edges whose target is one of ``nodes`` (in the order of ``nodes``)."""
        start, end = self.pointer[nodes], self.pointer[nodes + 1]
        counts = end - start
        offsets = torch.repeat_interleave(start - (counts.cumsum(0) - counts), counts)
        return offsets + torch.arange(int(counts.sum()), device=nodes.device)

    def restricted(self, nodes: Tensor, edges: Tensor) -> Edges:
        """Only the targets ``nodes`` with the edges into them, at ``edges``; targets are
        renumbered, sources keep their numbers."""
        counts = self.pointer[nodes + 1] - self.pointer[nodes]
        pointer = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        degree, weight = self.degree[nodes], self.weight[edges]
        share = None if self.share is None else self.share[edges]
        return Edges(
            self.source[edges],
            pointer,
            self.num_sources,
            self.dtype,
            None,
            degree,
            weight,
            share=share,
        )

    def reading(self, source: Tensor, num_sources: int) -> Edges:
        """The same edges reading another table: edge k reads row ``source[k]`` of ``num_sources``
        rows."""
        return Edges(
            source,
            self.pointer,
            num_sources,
            self.dtype,
            self.counts,
            self.degree,
            self.weight,
            share=self.share,
        )

    def reweighted(self, weight: Tensor) -> Edges:
        """The same edges with other weights; what was derived without weights is shared."""
        return replace(self, given_degree=self.degree, given_weight=weight, original=self.wiring)

    # ------------------------------------------------------------------ as entries of a matrix

    @cached_property
    def transposed(self) -> Edges:
        """Every edge turned round; its edge k is edge ``by_source[k]`` here."""
        source = self.target[self.by_source]
        return Edges(source, _pointer(self.source, self.num_sources), self.num_targets, self.dtype)

    @cached_property
    def one_by_one(self) -> Edges:
        """The same targets reading a table with one row for each edge."""
        numbers = torch.arange(self.num_edges, device=self.source.device)
        return Edges(numbers, self.pointer, self.num_edges, self.dtype)

    @cached_property
    def with_loops(self) -> tuple[Edges, Tensor]:
        """The edges of a whole graph with one more from every node to itself, last of those into
        it; and where each is found when the loops are listed behind the edges."""
        nodes = torch.arange(self.num_targets, device=self.source.device)
        order = torch.argsort(torch.cat([self.target, nodes]), stable=True)
        source = torch.cat([self.source, nodes])[order]
        pointer = self.pointer + torch.arange(self.num_targets + 1, device=self.source.device)
        return Edges(source, pointer, self.num_sources, self.dtype), order

    def heads(self, count: int) -> Edges:
        """``count`` copies beside each other: values (count, e), tables (count, sources, width),
        both flattened."""
        return self if count == 1 else self.kept(("heads", count), lambda: self._heads(count))

    def blocks(self, size: int) -> Edges:
        """Every edge becomes a ``size`` x ``size`` block.

        Values are flattened (size, e, size): block row, edge, block column. The table is (sources,
        size, width) and the result (size, targets, width), both flattened.
        """
        return self.kept(("blocks", size), lambda: self._blocks(size))

    def _heads(self, count: int) -> Edges:
        copies = torch.arange(count, device=self.source.device).unsqueeze(1)
        source = (self.source + copies * self.num_sources).flatten()
        starts = (self.pointer[:-1] + copies * self.num_edges).flatten()
        pointer = torch.cat([starts, count * self.pointer[-1:]])
        return Edges(source, pointer, count * self.num_sources, self.dtype)

    def _blocks(self, size: int) -> Edges:
        inner = torch.arange(size, device=self.source.device)
        source = (self.source.unsqueeze(1) * size + inner).flatten().repeat(size)
        entries = self.num_edges * size
        starts = (self.pointer[:-1] * size + inner.unsqueeze(1) * entries).flatten()
        pointer = torch.cat([starts, size**2 * self.pointer[-1:]])
        return Edges(source, pointer, self.num_sources * size, self.dtype)

    # ------------------------------------------------------------------ elsewhere

    def to(self, device: torch.device, dtype: torch.dtype) -> Edges:
        """The same edges on a device, with degrees and weights in another dtype."""
        if device == self.source.device and dtype == self.dtype:
            return self

        def moved(tensor: Tensor | None, kind: torch.dtype | None = None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, kind)

        return Edges(
            self.source.to(device),
            self.pointer.to(device),
            self.num_sources,
            dtype,
            moved(self.counts),
            moved(self.given_degree, dtype),
            moved(self.given_weight, dtype),
            share=moved(self.share, dtype),
        )

    def __reduce__(self) -> Any:  # copies and pickles leave behind what can be derived
        return Edges, tuple(getattr(self, entry.name) for entry in fields(self))


def _pointer(index: Tensor, count: int) -> Tensor:
    """(count + 1,) offsets of the runs of a sorted ``index``."""
    if torch.compiler.is_compiling():  # the size of a bincount is not known before it is counted
        counts = index.new_zeros(count).index_add(0, index, torch.ones_like(index))
    else:
        counts = torch.bincount(index, minlength=count)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
