"""Which part every node belongs to.

A good assignment gives every part about the same work and cuts few edges, because a cut edge is a
row that must travel in every round. METIS finds such assignments; without it nodes are ordered so
that neighbours stand close together (reverse Cuthill-McKee) and the order is cut into blocks of
equal work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError

__all__ = ["METHODS", "checked_assignment", "edge_cut", "partition"]

METHODS = ("auto", "metis", "ordered", "blocks")


def partition(graph: Graph, parts: int, *, method: str = "auto", seed: int = 0) -> Tensor:
    """(n,) the part of every node, numbered 0 to ``parts - 1``, none of them empty.

    ``method``: ``metis`` (needs ``sheafdeq[distributed]``), ``ordered`` (built in), ``blocks``
    (consecutive node numbers), or ``auto``: METIS where it is installed, else ``ordered``.
    """
    n = graph.num_nodes
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise InputError(f"parts must be a positive integer, got {parts!r}")
    if parts > n:
        raise InputError(
            f"{parts} parts of a graph with {n} nodes: some would be empty; ask for at most {n}"
        )
    if method not in METHODS:
        raise InputError(f"unknown partition {method!r}: choose one of {', '.join(METHODS)}")
    if parts == 1:
        return torch.zeros(n, dtype=torch.int64)
    if method == "blocks":
        return torch.arange(n) * parts // n
    pymetis = None if method == "ordered" else _import_pymetis(required=method == "metis")
    adjacency = _undirected(graph)
    if pymetis is None:
        return _without_empty(_ordered_blocks(adjacency, parts), parts)
    options = pymetis.Options(seed=seed)
    rows = pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices)
    _, membership = pymetis.part_graph(parts, adjacency=rows, options=options)
    return _without_empty(np.asarray(membership, dtype=np.int64), parts)


def checked_assignment(assignment: Any, n: int) -> Tensor:
    """A user's own assignment as an (n,) tensor; :class:`InputError` says what is wrong with it."""
    if not isinstance(assignment, Tensor):
        assignment = torch.as_tensor(np.asarray(assignment))
    if assignment.dim() != 1 or len(assignment) != n:
        raise InputError(
            f"an assignment holds the part of each of the {n} nodes, got shape "
            f"{tuple(assignment.shape)}"
        )
    if assignment.is_floating_point() or assignment.dtype == torch.bool or assignment.is_complex():
        raise InputError(f"an assignment holds whole part numbers, got {assignment.dtype}")
    if n == 0:
        raise InputError("a graph without nodes cannot be divided into parts")
    assignment = assignment.to("cpu", torch.int64)
    if int(assignment.min()) < 0:
        raise InputError(f"an assignment holds the negative part {int(assignment.min())}")
    count = int(assignment.max()) + 1
    if count > n:
        raise InputError(f"an assignment names part {count - 1}, but there are only {n} nodes")
    sizes = torch.bincount(assignment, minlength=count)
    if bool((sizes == 0).any()):
        empty = int((sizes == 0).nonzero()[0])
        raise InputError(
            f"part {empty} of {count} is empty: number the parts 0, 1, ... without gaps"
        )
    result: Tensor = assignment
    return result


def edge_cut(graph: Graph, assignment: Tensor) -> int:
    """Stored edges whose ends are in different parts."""
    return int((assignment[graph.source] != assignment[graph.target]).sum())


def _import_pymetis(*, required: bool) -> Any:
    try:
        import pymetis
    except ImportError as error:
        if required:
            raise InputError(
                "the partition 'metis' needs pymetis: install sheafdeq[distributed], or use "
                "'ordered'"
            ) from error
        return None
    return pymetis


def _undirected(graph: Graph) -> scipy.sparse.csr_matrix:
    """The pattern of A + A^T without loops and duplicates."""
    n = graph.num_nodes
    kind = np.int32 if max(n, 2 * graph.num_edges) < 2**31 - 1 else np.int64
    source, target = (end.numpy().astype(kind) for end in (graph.source, graph.target))
    between = source != target
    source, target = source[between], target[between]
    ones = np.ones(len(source), dtype=np.int8)
    matrix = scipy.sparse.csr_matrix((ones, (target, source)), shape=(n, n))
    return (matrix + matrix.T).tocsr()


def _ordered_blocks(adjacency: scipy.sparse.csr_matrix, parts: int) -> np.ndarray:
    """Blocks of equal work (nodes and edges) along an order in which neighbours are close."""
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True).astype(np.int64)
    work = np.cumsum(1 + np.diff(adjacency.indptr)[order])
    membership = np.empty(len(order), dtype=np.int64)
    membership[order] = np.minimum((work - 1) * parts // work[-1], parts - 1)
    return membership


def _without_empty(membership: np.ndarray, parts: int) -> Tensor:
    """Give every empty part one node of the largest."""
    sizes = np.bincount(membership, minlength=parts)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        node = int(np.flatnonzero(membership == largest)[-1])
        membership[node] = empty
        sizes[largest] -= 1
        sizes[empty] += 1
    return torch.from_numpy(membership)
