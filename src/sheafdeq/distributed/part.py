"""One part of a graph: its own nodes, their incoming edges, and the halo.

The *halo* of a part are the nodes of other parts that its edges read. A part is itself a small
closed
:class:`~sheafdeq.data.graph.Graph`, own nodes first and halo rows after them, in which halo nodes
have no
incoming edges but keep their true degrees. So for every local model

    step(state of own nodes and halo)[own rows]  =  step(whole state)[own nodes],

and nothing else of the whole graph is needed. Edges keep the order they have in the whole graph, so
sums are taken in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.distributed.assignment import checked_assignment
from sheafdeq.edges import Edges
from sheafdeq.errors import DataError, InputError

__all__ = ["Part", "cut_graph"]

FORMAT = "sheafdeq-part-1"


@dataclass(frozen=True, eq=False)
class Part:
    """What one worker holds.

    ``owners[q] = (first, last)``: rows ``first`` to ``last - 1`` of the halo belong to part q.
    ``readers[q]``: the own rows that part q reads, in the order of q's halo.
    """

    number: int
    count: int  # of parts
    graph: Graph  # own nodes, then halo
    nodes: Tensor  # (own,) numbers in the whole graph, ascending
    halo: Tensor  # (halo,) the same, by owner, then ascending
    owners: dict[int, tuple[int, int]]
    readers: dict[int, Tensor]
    graph_of_own: Tensor  # (own,) the graph of the batch every own node is in
    num_graphs: int

    @property
    def own(self) -> int:
        """Number of own nodes."""
        return len(self.nodes)

    def describe(self) -> dict[str, int]:
        """Sizes, ready for JSON."""
        return {
            "part": self.number,
            "nodes": self.own,
            "edges": self.graph.num_edges,
            "halo": len(self.halo),
            "sent_rows": sum(len(rows) for rows in self.readers.values()),
        }

    # ------------------------------------------------------------------ bytes, without pickle

    def to_bytes(self) -> bytes:
        """A safetensors file."""
        tensors = {
            "x": self.graph.x,
            "edge_index": self.graph.edge_index,
            "incoming": self.graph.in_degree,
            "nodes": self.nodes,
            "halo": self.halo,
            "graph_of_own": self.graph_of_own,
            **{f"readers/{part}": rows for part, rows in self.readers.items()},
        }
        if self.graph.edge_attr is not None:
            tensors["edge_attr"] = self.graph.edge_attr
        facts = {
            "number": self.number,
            "count": self.count,
            "num_graphs": self.num_graphs,
            "owners": {str(part): list(rows) for part, rows in self.owners.items()},
        }
        packed = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return safetensors.torch.save(packed, {"format": FORMAT, "facts": json.dumps(facts)})

    @staticmethod
    def from_bytes(data: bytes, source: str = "part") -> Part:
        """The inverse of :meth:`to_bytes`; :class:`DataError` for anything else."""
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            facts = header["__metadata__"]
            if facts["format"] != FORMAT:
                raise DataError(f"{source}: part format {facts['format']!r}, expected {FORMAT!r}")
            return _assemble(json.loads(facts["facts"]), safetensors.torch.load(data))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}: not a part of a graph ({error}): cut it again") from error

    def save(self, path: str | Path) -> None:
        """Write the part to a file, for workers that should read it themselves."""
        Path(path).write_bytes(self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> Part:
        """Read what :meth:`save` wrote."""
        return Part.from_bytes(Path(path).read_bytes(), str(path))


def _assemble(facts: Mapping[str, Any], tensors: dict[str, Tensor]) -> Part:
    x = tensors["x"]
    index = tensors["edge_index"]
    inside = not index.numel() or (int(index.min()) >= 0 and int(index.max()) < len(x))
    if not inside or bool((index[1].diff() < 0).any()):
        raise ValueError("its edges name nodes it does not have, or are not sorted")
    edges = Edges.of(index, len(x), x.dtype, tensors["incoming"])
    graph = Graph(x, edges, tensors.get("edge_attr"))
    readers = {
        int(name.removeprefix("readers/")): rows
        for name, rows in tensors.items()
        if name.startswith("readers/")
    }
    owners = {int(part): (int(rows[0]), int(rows[1])) for part, rows in facts["owners"].items()}
    return Part(
        int(facts["number"]),
        int(facts["count"]),
        graph,
        tensors["nodes"],
        tensors["halo"],
        owners,
        dict(sorted(readers.items())),
        tensors["graph_of_own"],
        int(facts["num_graphs"]),
    )


def cut_graph(graph: Graph, assignment: Any) -> list[Part]:
    """The parts of a graph (on the CPU) under an assignment of its nodes, in the order of their
    numbers."""
    if graph.x.device.type != "cpu":
        raise InputError(
            f"graphs are cut on the CPU, this one is on {graph.x.device}: call .to('cpu')"
        )
    if graph.edges.counts is not None:
        raise InputError("this graph is a part already: cut the whole graph")
    if graph.edges.share is not None:
        raise InputError("graphs with an edge_weight cannot be cut into parts: solve them whole")
    assignment = checked_assignment(assignment, graph.num_nodes)
    count = int(assignment.max()) + 1
    members = [(assignment == number).nonzero().flatten() for number in range(count)]
    halos = [_halo(graph, assignment, number, nodes) for number, nodes in enumerate(members)]
    parts = []
    for number in range(count):
        readers = {}
        for other in range(count):
            wanted = halos[other][assignment[halos[other]] == number]
            if other != number and len(wanted):
                readers[other] = torch.searchsorted(members[number], wanted)
        parts.append(
            _part(graph, assignment, number, members[number], halos[number], readers, count)
        )
    return parts


def _halo(graph: Graph, assignment: Tensor, number: int, nodes: Tensor) -> Tensor:
    """Nodes of other parts that edges into ``nodes`` read, by owner and number."""
    source = graph.source[graph.edges.edges_into(nodes)]
    outside = source[assignment[source] != number].unique()
    result: Tensor = outside[torch.argsort(assignment[outside], stable=True)]
    return result


def _part(
    graph: Graph,
    assignment: Tensor,
    number: int,
    nodes: Tensor,
    halo: Tensor,
    readers: dict[int, Tensor],
    count: int,
) -> Part:
    edges = graph.edges.edges_into(nodes)
    place = torch.empty(graph.num_nodes, dtype=torch.int64)  # only rows of this part are read
    place[nodes] = torch.arange(len(nodes))
    place[halo] = len(nodes) + torch.arange(len(halo))
    everyone = torch.cat([nodes, halo])
    owners, first = {}, 0
    for owner, rows in zip(*assignment[halo].unique_consecutive(return_counts=True), strict=True):
        owners[int(owner)] = (first, first + int(rows))
        first += int(rows)
    closed = Graph(
        graph.x[everyone],
        Edges.of(
            torch.stack([place[graph.source[edges]], place[graph.target[edges]]]),
            len(everyone),
            graph.x.dtype,
            graph.in_degree[everyone],
        ),
        None if graph.edge_attr is None else graph.edge_attr[edges],
    )
    return Part(
        number,
        count,
        closed,
        nodes,
        halo,
        owners,
        readers,
        graph.graph_ids[nodes],
        graph.num_graphs,
    )
