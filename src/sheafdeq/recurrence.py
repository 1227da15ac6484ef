"""The contract everything shares.

A *recurrence* prepares a graph once, and from then on is one fixed map ``step`` of the state.
Solver, adjoint, diagnostics, certificates and the asynchronous runtime all examine that same map.

    prepare(graph)               -> context   once for each solve: drive, degrees, constrained
                                 weights, dropout masks
    initial_state(context)       -> (n, c)
    step(state, context)         -> (n, c)       pure: no randomness, no memory
    readout(state, context)      -> (n, o)

A *local* recurrence can also be evaluated with a different, possibly old, source state on every
edge:

    local_step(own (n, c), received (e, c), context) -> (n, c)

with ``local_step(h, h[source], context) == step(h, context)``. Row k of ``received`` belongs to
stored edge k. Contexts are frozen dataclasses whose fields say whether they have a row for each
node, each edge, or neither (:func:`node_field`, :func:`edge_field`), so that :func:`restrict` can
cut a context down to some target nodes and their incoming edges: what an asynchronous runtime
evaluates when only some nodes are awake.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError

__all__ = ["Incidence", "LocalRecurrence", "Recurrence", "edge_field", "node_field", "restrict"]

Context = TypeVar("Context")


@runtime_checkable
class Recurrence(Protocol):
    """A map on node states, and what surrounds it."""

    def prepare(self, graph: Graph) -> Any:
        """Everything that stays constant during one solve."""

    def initial_state(self, context: Any) -> Tensor:
        """(n, c) the default start."""

    def step(self, state: Tensor, context: Any) -> Tensor:
        """(n, c) -> (n, c), pure."""

    def readout(self, state: Tensor, context: Any) -> Tensor:
        """(n, c) -> (n, o)."""


@runtime_checkable
class LocalRecurrence(Recurrence, Protocol):
    """A recurrence whose nodes can update from the messages they happen to have."""

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        """(n, c) own states and (e, c) one source state for each incoming edge -> (n, c)."""


@dataclass(frozen=True, eq=False)
class Incidence:
    """Who hears whom: the edges of a graph without its features, possibly only those into some
    nodes.

    ``source`` indexes the rows of whatever table of states is read (``num_sources`` rows),
    ``target`` the rows of the nodes that are updated (``num_targets`` rows, non-decreasing). For a
    whole graph both are its nodes.
    """

    source: Tensor  # (e,)
    target: Tensor  # (e,) non-decreasing
    degree: Tensor  # (num_targets,) clamped in-degree
    edge_weight: Tensor  # (e,) 1 / sqrt(deg_u deg_v)
    num_sources: int
    num_targets: int

    @staticmethod
    def of(graph: Graph) -> Incidence:
        """The incidence of a whole graph, made once and kept with it (kernels keep their checked
        layout here)."""
        memory = graph.__dict__
        if "_incidence" not in memory:
            n = graph.num_nodes
            memory["_incidence"] = Incidence(
                graph.source, graph.target, graph.degree, graph.edge_weight, n, n
            )
        return memory["_incidence"]

    @cached_property
    def pointer(self) -> Tensor:
        """(num_targets + 1,) the edges into target v are ``pointer[v]:pointer[v + 1]``."""
        counts = torch.bincount(self.target, minlength=self.num_targets)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    def edges_into(self, nodes: Tensor) -> Tensor:
        """Positions of all edges whose target is one of ``nodes`` (in the order of ``nodes``)."""
        start, end = self.pointer[nodes], self.pointer[nodes + 1]
        counts = end - start
        offsets = torch.repeat_interleave(start - (counts.cumsum(0) - counts), counts)
        return offsets + torch.arange(int(counts.sum()), device=nodes.device)

    def restricted(self, nodes: Tensor, edges: Tensor) -> Incidence:
        """Only the targets ``nodes``; targets are renumbered, sources keep their numbers."""
        counts = self.pointer[nodes + 1] - self.pointer[nodes]
        target = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), counts)
        return Incidence(
            self.source[edges],
            target,
            self.degree[nodes],
            self.edge_weight[edges],
            self.num_sources,
            len(nodes),
        )

    def reading(self, source: Tensor, num_sources: int) -> Incidence:
        """The same edges reading another table: edge k reads row ``source[k]`` of ``num_sources``
        rows."""
        return replace(self, source=source, num_sources=num_sources)


def node_field(**options: Any) -> Any:
    """A context field with one row for each node."""
    return field(metadata={"rows": "node"}, **options)


def edge_field(**options: Any) -> Any:
    """A context field with one row for each stored edge."""
    return field(metadata={"rows": "edge"}, **options)


def restrict(context: Context, nodes: Tensor) -> tuple[Context, Tensor]:
    """Cut a context down to the target ``nodes``; returns it with the positions of the edges it
    keeps.

    ``local_step(own[nodes], received[edges], restricted)`` equals ``local_step(own, received,
    context)[nodes]``.
    """
    if not is_dataclass(context):
        raise InputError(
            f"a context must be a dataclass to be restricted, got {type(context).__name__}"
        )
    incidence = getattr(context, "incidence", None)
    if not isinstance(incidence, Incidence):
        raise InputError(
            f"{type(context).__name__} has no 'incidence' field, so its nodes cannot update alone"
        )
    edges = incidence.edges_into(nodes)
    changes: dict[str, Any] = {"incidence": incidence.restricted(nodes, edges)}
    for entry in fields(context):
        rows = entry.metadata.get("rows")
        value = getattr(context, entry.name)
        if rows is not None and value is not None:
            changes[entry.name] = value[nodes if rows == "node" else edges]
    return replace(context, **changes), edges  # type: ignore[type-var]
