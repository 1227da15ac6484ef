"""Edge indices, checked once, in the form the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.ops.native_module import native_module
from sheafdeq.plain_tensor import plain_tensor

__all__ = ["EdgeLayout"]


@dataclass(frozen=True, eq=False)
class EdgeLayout:
    """Who hears whom: edge k carries a message from row ``source[k]`` of a table of ``num_sources``
    rows to its target.

    The edges into target v are ``pointer[v]:pointer[v + 1]``. For a whole graph sources and targets
    are the same nodes; the asynchronous simulator reads a table of past states and updates some
    targets only.

    Build it with :meth:`of` (a ``Graph``, or anything with ``source``, ``pointer``, ``edge_weight``
    and ``degree``) or
    :meth:`build`. Both check every index, and the native kernels read a private copy of what was
    checked: no malformed or
    later modified index can reach them.
    """

    source: Tensor  # (e,) int64
    target: Tensor  # (e,) int64, non-decreasing
    pointer: Tensor  # (n + 1,) int64
    weight: Tensor  # (e,) floating
    degree: Tensor  # (n,) floating, at least one where it divides
    num_sources: int

    @staticmethod
    def of(graph: Any) -> EdgeLayout:
        """The layout of a graph (or incidence), built at the first call and kept with the
        object."""
        memory = graph.__dict__
        layout = memory.get("_edge_layout")
        if layout is None:
            sources = graph.num_sources if hasattr(graph, "num_sources") else graph.num_nodes
            layout = EdgeLayout.build(
                graph.source, graph.pointer, graph.edge_weight, graph.degree, sources
            )
            memory["_edge_layout"] = layout
        return layout

    @staticmethod
    def build(
        source: Tensor, pointer: Tensor, weight: Tensor, degree: Tensor, num_sources: int
    ) -> EdgeLayout:
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
        if weight.shape != (e,) or not weight.dtype.is_floating_point:
            raise InputError(
                f"weight must hold {e} floating point numbers, got {weight.dtype} "
                f"{tuple(weight.shape)}"
            )
        if degree.shape != (n,) or not degree.dtype.is_floating_point:
            raise InputError(
                f"degree must hold {n} floating point numbers, got {degree.dtype} "
                f"{tuple(degree.shape)}"
            )
        counts = pointer[1:] - pointer[:-1]
        if int(pointer[0]) != 0 or int(pointer[-1]) != e or bool((counts < 0).any()):
            raise InputError(f"pointer must rise from 0 to the number of edges, {e}")
        if e and (int(source.min()) < 0 or int(source.max()) >= num_sources):
            raise InputError(
                f"source holds rows {int(source.min())} to {int(source.max())}, the table has "
                f"rows 0 to {num_sources - 1}"
            )
        if bool((degree <= 0).any()) or not bool(torch.isfinite(degree).all()):
            raise InputError("degrees must be positive and finite: clamp them to at least one")
        target = torch.repeat_interleave(torch.arange(n, device=source.device), counts)
        return EdgeLayout(source, target, pointer, weight, degree, num_sources)

    @property
    def num_targets(self) -> int:
        """Number of rows that are updated, n."""
        return self.pointer.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of stored edges, e."""
        return self.source.numel()

    @cached_property
    def native(self) -> Any:
        """The compiled counterpart, which owns a checked copy of the indices."""
        module = native_module()
        if module is None:
            raise InputError("the native kernel is not built")
        arrays = (
            self.source.contiguous(),
            self.pointer.contiguous(),
            self.weight.detach().double().contiguous(),
            self.degree.detach().double().contiguous(),
        )
        return module.Layout(*arrays, self.num_sources)
