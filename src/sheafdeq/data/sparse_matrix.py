"""Adjacency matrices in the place of ``edge_index``: what PyG users hold as ``adj_t``.

As everywhere in PyG the matrix is the *transposed* adjacency: row v, column u is the edge u -> v,
so that ``adj_t @ x`` sends messages along the edges. Every stored entry is an edge, a stored zero
included. Its value is the weight of the edge (all ones: none), or, where entries are vectors, its
features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError

__all__ = ["entries_of", "is_sparse_matrix"]

_LAYOUTS = {torch.sparse_coo: "COO", torch.sparse_csr: "CSR", torch.sparse_csc: "CSC"}


def is_sparse_matrix(value: Any) -> bool:
    """A sparse tensor of torch, or an object like torch_sparse's ``SparseTensor``."""
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.layout is not torch.strided and not value.is_nested
    return callable(getattr(value, "coo", None)) and callable(getattr(value, "sparse_sizes", None))


def entries_of(matrix: Any, n: int) -> tuple[Tensor, Tensor | None]:
    """``edge_index`` (2, e) and the values (e,) or (e, width), None where there are none.

    Args:
        matrix: (n, n) the transposed adjacency: a COO, CSR or CSC tensor of torch, or an object
            with ``coo()`` and ``sparse_sizes()``. Entries keep the order in which they are stored.
        n: number of nodes.
    """
    if not isinstance(matrix, Tensor):
        size = tuple(int(count) for count in matrix.sparse_sizes())
        target, source, values = matrix.coo()
    elif matrix.layout in (torch.sparse_csr, torch.sparse_csc):
        size = tuple(matrix.shape[:2])
        by_row = matrix.layout is torch.sparse_csr
        pointer = matrix.crow_indices() if by_row else matrix.ccol_indices()
        inner = matrix.col_indices() if by_row else matrix.row_indices()
        values = matrix.values()
        if pointer.dim() != 1:
            raise InputError(
                f"edge_index is a batch of sparse matrices, {tuple(matrix.shape)}: give one (n, n) "
                "matrix, and say by batch which node is in which graph"
            )
        outer = torch.repeat_interleave(
            torch.arange(pointer.numel() - 1, device=pointer.device), pointer.diff().long()
        )
        target, source = (outer, inner) if by_row else (inner, outer)
    elif matrix.layout is torch.sparse_coo:
        size = tuple(matrix.shape[: matrix.sparse_dim()])
        if len(size) == 2:
            target, source = matrix._indices()  # parallel entries are parallel edges
        values = matrix._values()
    else:
        raise InputError(
            f"edge_index is a {matrix.layout} tensor: give an adjacency matrix in one of "
            f"{', '.join(_LAYOUTS.values())}, or edge_index (2, edges)"
        )
    if size != (n, n):
        raise InputError(
            f"edge_index is a sparse matrix of size {size}: the transposed adjacency of a graph of "
            f"{n} nodes has size ({n}, {n})"
        )
    return torch.stack([source.long(), target.long()]), values
