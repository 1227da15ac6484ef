"""States to restriction maps: the adaptive half of a neural sheaf.

For a stored edge e = (u -> v), with normalised states z and edge features a_e,

    F_src(e) = Pi(g_src([z_u ; z_v ; a_e])),    F_tgt(e) = Pi(g_tgt([z_u ; z_v ; a_e])),    Pi(A) =
    A / ||A||_F,

where g_src and g_tgt are two-layer perceptrons 2c + d_e -> h -> d*d with ReLU. The first layer is
linear in the concatenation, so it splits into two node-level products and a gather (plus a constant
edge part): ten times fewer operations than a product of width 2c for every edge, and the same
numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sheafdeq.errors import InputError
from sheafdeq.ops.native_module import NORM_FLOOR
from sheafdeq.ops.sheaf_propagate import unit_or_zero

__all__ = [
    "FirstLayer",
    "frobenius_normalise",
    "linear_layers",
    "map_generator",
    "normalise_rows",
    "restriction_maps",
]


def normalise_rows(state: Tensor, d: int, q: int, order: float) -> Tensor:
    """Divide each of the n*d rows of length q by its p-norm; (n, d*q) -> (n, d*q).

    Scale invariant: ``normalise_rows(s * H) == normalise_rows(H)`` for s > 0 (Lemma on
    pre-restriction normalisation).
    """
    rows = state.view(-1, d, q)
    norm = torch.linalg.vector_norm(rows, ord=order, dim=-1, keepdim=True)
    result: Tensor = (rows / norm.clamp(min=NORM_FLOOR)).view_as(state)
    return result


def frobenius_normalise(maps: Tensor) -> Tensor:
    """(e, d, d) -> (e, d, d) with unit Frobenius norm; a map of norm below :data:`NORM_FLOOR`
    counts as zero and passes no gradient."""
    return unit_or_zero(maps.flatten(1)).view_as(maps)


def map_generator(
    channels: int, edge_dim: int, stalk_dim: int, hidden: int | None = None
) -> nn.Sequential:
    """``Sequential(Linear(2c + d_e, c), ReLU, Linear(c, d*d))``; inputs: source state, target
    state, edge features."""
    hidden = channels if hidden is None else hidden
    return nn.Sequential(
        nn.Linear(2 * channels + edge_dim, hidden),
        nn.ReLU(),
        nn.Linear(hidden, stalk_dim * stalk_dim),
    )


def linear_layers(generator: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    """The two linear layers of a map generator."""
    first, _, second = generator
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    return first, second


class FirstLayer:
    """The first generator layer of both generators side by side, split by what it multiplies.

    ``source`` (2h, c), ``target`` (2h, c), ``edge`` (2h, d_e), ``bias`` (2h,): rows 0..h-1 belong
    to the source generator.
    """

    def __init__(
        self, source_maps: nn.Sequential, target_maps: nn.Sequential, channels: int
    ) -> None:
        first = [linear_layers(generator)[0] for generator in (source_maps, target_maps)]
        weight = torch.cat([layer.weight for layer in first])
        self.source = weight[:, :channels]
        self.target = weight[:, channels : 2 * channels]
        self.edge = weight[:, 2 * channels :]
        self.bias = torch.cat([layer.bias for layer in first])


def restriction_maps(
    source_maps: nn.Sequential,
    target_maps: nn.Sequential,
    source_hidden: Tensor,
    target_hidden: Tensor,
    edge_hidden: Tensor | None,
    stalk_dim: int,
) -> tuple[Tensor, Tensor]:
    """Normalised maps of every edge from gathered first-layer products.

    ``source_hidden``, ``target_hidden``, ``edge_hidden``: (e, 2h) rows for the source node, the
    target node (bias included) and the edge itself. Returns F_src, F_tgt, each (e, d, d).
    """
    hidden = source_hidden + target_hidden
    if edge_hidden is not None:
        hidden = hidden + edge_hidden
    hidden = hidden.relu()
    half = hidden.shape[1] // 2
    maps = [
        frobenius_normalise(linear_layers(generator)[1](part).view(-1, stalk_dim, stalk_dim))
        for generator, part in ((source_maps, hidden[:, :half]), (target_maps, hidden[:, half:]))
    ]
    return maps[0], maps[1]


def checked_norm_order(order: float) -> float:
    """``p`` in [1, inf]."""
    value = float(order)
    if not value >= 1.0:
        raise InputError(f"norm_order must be in [1, inf], got {order!r}")
    return value
