"""The exact Jacobian of one step, as node blocks, from ``local_step``.

Row v of ``local_step(own, received, context)`` depends on row v of ``own`` and on the rows of
``received`` that belong to edges into v, and on nothing else. So one reverse pass with the
cotangent e_i at every node yields row i of every block at once:

    own[v, i, :]  = d out[v, i] / d own[v, :]            (n, c, c)
    edge[k, i, :] = d out[target_k, i] / d received[k, :]   (e, c, c)

and c passes yield all of J. Derivatives are exact up to float64 rounding; where the map has a kink
(ReLU at zero) they are one of its one-sided derivatives. Nothing here bounds anything over a set:
see :mod:`.sheaf_enclosure` for that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.recurrence import LocalRecurrence

__all__ = ["edges_of", "jacobian", "log_jacobian"]


def edges_of(context: Any) -> Edges:
    """The edges a local recurrence's context carries."""
    edges = getattr(context, "edges", None)
    if not isinstance(edges, Edges):
        raise InputError(
            f"{type(context).__name__} has no field 'edges', so the Jacobian has no node blocks"
        )
    return edges


def jacobian(recurrence: LocalRecurrence, state: Tensor, context: Any) -> BlockMatrix:
    """J of the step at ``state`` (n, c)."""
    edges = edges_of(context)
    n, c = state.shape
    own = state.detach().clone().requires_grad_()
    received = state.detach()[edges.source].clone().requires_grad_()
    own_blocks = state.new_zeros(n, c, c)
    edge_blocks = state.new_zeros(len(edges.source), c, c)
    with torch.enable_grad():
        image = recurrence.local_step(own, received, context)
        for i in range(c):
            gradients = torch.autograd.grad(
                image[:, i].sum(),
                (own, received),
                retain_graph=i + 1 < c,
                allow_unused=True,
                materialize_grads=True,
            )
            own_blocks[:, i], edge_blocks[:, i] = gradients
    return BlockMatrix(edges, own_blocks, edge_blocks)


def log_jacobian(
    recurrence: LocalRecurrence, state: Tensor, context: Any, image: Tensor | None = None
) -> BlockMatrix:
    """Jacobian of log o T o exp at log(state): diag(1/T(z)) J diag(z), for positive states."""
    if not bool((state > 0).all()):
        raise InputError("log coordinates need a strictly positive state")
    if image is None:
        with torch.no_grad():
            image = recurrence.step(state, context)
    if not bool((image > 0).all()):
        raise InputError("log coordinates need a map that keeps this state positive")
    return jacobian(recurrence, state, context).scale(image.reciprocal(), state)
