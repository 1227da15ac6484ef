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

from dataclasses import field, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError

__all__ = ["LocalRecurrence", "Recurrence", "edge_field", "node_field", "restrict"]

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
    edges = getattr(context, "edges", None)
    if not isinstance(edges, Edges):
        raise InputError(
            f"{type(context).__name__} has no field 'edges', so its nodes cannot update alone"
        )
    kept = edges.edges_into(nodes)
    changes: dict[str, Any] = {"edges": edges.restricted(nodes, kept)}
    for entry in fields(context):
        rows = entry.metadata.get("rows")
        value = getattr(context, entry.name)
        if rows is not None and value is not None:
            changes[entry.name] = value[nodes if rows == "node" else kept]
    return replace(context, **changes), kept  # type: ignore[type-var]
