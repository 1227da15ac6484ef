"""APPNP and its shifted-tanh variants: personalised PageRank on predictions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.distances import RELATIVE_ENTRY, THOMPSON, Distance
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Readout, Solving
from sheafdeq.errors import InputError
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.checks import checked_dropout
from sheafdeq.layers.gathering import GatheringModel
from sheafdeq.layers.sizes import WideModel, Width
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["APPNP", "AppnpContext"]


@dataclass(frozen=True, eq=False)
class AppnpContext:
    """What stays constant during one solve."""

    edges: Edges
    drive: Tensor = node_field()  # (n, c) H0
    own_weight: Tensor = node_field()  # (n,)
    edge_weight: Tensor = edge_field()  # (e,)


class APPNPOptions(Width, Solving, total=False):
    """What :class:`APPNP` shares with other models."""


class APPNP(WideModel, GatheringModel):
    r"""Predict with a perceptron, then propagate with teleport weight alpha.

    .. math::
        H_0 = B(X), \qquad U = (1 - \alpha) \hat A_+ H + \alpha H_0, \qquad
        H \leftarrow \begin{cases} U & \text{APPNP} \\ \tanh(U) + \beta & \text{shifted tanh}
            \end{cases}

    with :math:`\hat A_+ = D_+^{-1/2}(A + I)D_+^{-1/2}` and B a two-layer perceptron f -> c -> c
    (ReLU; dropout on the raw input and on the hidden layer). A linear readout follows. Plain APPNP
    has the equilibrium :math:`\alpha [I - (1 - \alpha) \hat A_+]^{-1} H_0` (:meth:`closed_form`).

    Gasteiger et al., "Predict then Propagate", ICLR 2019; the shifted tanh after Sittoni and
    Tudisco, "Subhomogeneous Deep Equilibrium Models", ICML 2024. The paper's form is followed.
    Deviations of the released SubDEQ code from it: its "APPNP tanh" has no shift, its normalised
    variant divides tanh(.) + 1.2 by the row maximum, and it also drops edge weights (at every step
    anew); it has no readout after propagation (the second encoder layer already has the output
    width). PyG's APPNP drops edges cumulatively. None of these is done here: dropout acts in the
    encoder only, drawn once for each solve. 2,691 parameters at f = 3, c = 48, o = 3, with or
    without shift.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        alpha: teleport weight in (0, 1].
        shift: None for APPNP, beta for the shifted tanh (a contraction of Thompson's metric for
            beta >= 1.2 when B >= 0; B is unsigned here, as in the paper, so positivity rests on
            beta > 1 alone).
        dropout: in the encoder, while training.
        options: ``steps`` K, ``solver``, ``gradient``, as for every equilibrium model.

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    edge_input = "ignored"
    weighted = True

    def __init__(
        self,
        *sizes: int,
        alpha: float = 0.1,
        shift: float | None = None,
        dropout: float = 0.5,
        **options: Unpack[APPNPOptions],
    ) -> None:
        super().__init__(*sizes, **options)
        if not 0.0 < float(alpha) <= 1.0:
            raise InputError(f"alpha must be in (0, 1], got {alpha!r}")
        if shift is not None and not float(shift) > 1.0:
            raise InputError(
                "shift must be above 1 (it keeps the state positive), or None for "
                f"plain APPNP, got {shift!r}"
            )
        self.alpha = float(alpha)
        self.shift = None if shift is None else float(shift)
        self.dropout = checked_dropout(dropout)
        widths = (self.in_channels, self.width, self.width)
        self.encoder = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.readout = Readout(self.width, self.out_channels)
        self.reset_parameters()

    @property
    def distance(self) -> Distance:  # type: ignore[override]
        """Thompson's metric with a shift, which keeps states positive."""
        return RELATIVE_ENTRY if self.shift is None else THOMPSON

    def prepare(self, graph: Graph) -> AppnpContext:
        """The encoded features and the normalised adjacency."""
        hidden = functional.dropout(graph.x, self.dropout, self.training)
        hidden = functional.dropout(self.encoder[0](hidden).relu(), self.dropout, self.training)
        weights = gcn_weights(graph.edges, self_loops=True)
        return AppnpContext(
            graph.edges,
            self.encoder[1](hidden),
            weights.own,
            weights.edge,
        )

    def initial_state(self, context: AppnpContext) -> Tensor:
        """H0."""
        return context.drive

    def update(self, own: Tensor, table: Tensor, edges: Edges, context: AppnpContext) -> Tensor:
        """One propagation, mixed with the drive."""
        mean = propagate(context.edge_weight, context.own_weight, own, table, edges)
        mixed = torch.lerp(mean, context.drive, self.alpha)
        return mixed if self.shift is None else mixed.tanh() + self.shift

    def closed_form(self, context: AppnpContext, *, max_nodes: int = 10_000) -> Tensor:
        """(n, c) the equilibrium of plain APPNP by one dense solve: a diagnostic, not the training
        path."""
        if self.shift is not None:
            raise InputError("the shifted tanh has no closed form; solve it by iteration")
        n = context.edges.num_targets
        if n > max_nodes:
            raise InputError(
                f"the dense solve is limited to {max_nodes} nodes, the graph has "
                f"{n}: iterate, or raise max_nodes"
            )
        adjacency = context.drive.new_zeros(n, n)
        entries = (context.edges.target, context.edges.source)
        adjacency.index_put_(entries, context.edge_weight, accumulate=True)
        adjacency.diagonal().add_(context.own_weight)
        system = (
            torch.eye(n, dtype=adjacency.dtype, device=adjacency.device)
            - (1 - self.alpha) * adjacency
        )
        result: Tensor = torch.linalg.solve(system, self.alpha * context.drive)
        return result
