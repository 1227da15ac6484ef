"""StrongAttnDEQ: GraphAttnDEQ with normalised attention, repaired so that its equilibrium is
guaranteed for every weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Readout
from sheafdeq.layers.attention_model import AttentionModel
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.edge_features import edge_feature_width, edge_features
from sheafdeq.layers.gates import ROUNDING_SLACK
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.rows import unit_rows
from sheafdeq.layers.sizes import HeadSizes
from sheafdeq.layers.strong import StrongModel, StrongOptions
from sheafdeq.ops.attention import Attended, EdgeTerms, attention
from sheafdeq.ops.gated_step import two_parts
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["StrongAttentionContext", "StrongAttnDEQ"]


@dataclass(frozen=True, eq=False)
class StrongAttentionContext:
    """What stays constant during one solve."""

    edges: Edges
    query_weight: Tensor  # (c, c) Q, each head scaled into the budget
    drive: Tensor = node_field()  # (n, c)
    bias: Tensor = edge_field()  # (e, M) the inputs' share of the logits


class StrongHeadOptions(HeadSizes, StrongOptions, total=False):
    """What :class:`StrongAttnDEQ` shares with other models."""


class StrongAttnDEQ(AttentionModel, StrongModel):
    r"""Attention recomputed from the normalised state at every step, with one equilibrium for every
    weight.

    .. math::
        H^\star = \beta + B(X) + \varphi(y^+, y^-), \qquad p_i = \sum_m C^m a^m_i, \quad g_i =
            \sum_m |C^m| a^m_i, \qquad
        a^m_i = \sum_{j \in N(i) \cup \{i\}} \alpha^m_{ij} H_j, \quad
        \alpha^m_{ij} = \mathrm{softmax}_j (\bar H_i^\top G^m \bar H_j + b^m_{ij})

    with C^m = W_m V^m of any sign, :math:`\bar H` the rows at unit Euclidean norm, G^m = Q^m^T K^m
    / sqrt(q), b any function of the inputs, and y+- = (g +- p)/2. Each Q^m is scaled so that
    :math:`(2 + \sqrt 2) \|G^m\|_2` keeps the budget rate / m(beta) - 1; the update then contracts
    Thompson's metric with ``rate`` (``docs/theory.md``, Theorem 24).

    Against GraphAttnDEQ with ``pre_norm``: the gate in place of tanh, the budget, and edge features
    (with the differences of the node features) in the logits' bias instead of the keys.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``heads`` M, ``channels`` q = c / M.
        hidden: hidden width of the bias network.
        options: ``shift``, ``gate``, ``rate``, ``gain`` (of W), ``edge_dim``, ``steps``,
            ``solver`` and ``gradient``, as for every :class:`~sheafdeq.layers.strong.StrongModel`.

    Shapes: x (n, f), edge_attr (e, edge_dim) -> (n, o).
    """

    def __init__(self, *sizes: int, hidden: int = 32, **options: Unpack[StrongHeadOptions]) -> None:
        super().__init__(*sizes, **options)
        checked_positive(hidden=hidden)
        self.bias = nn.Sequential(
            nn.Linear(edge_feature_width(self.in_channels, self.edge_dim), hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.heads),
        )
        self.own_bias = nn.Parameter(torch.zeros(self.heads))  # b_ii
        self.readout = Readout(self.width, self.out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix (W times ``gain``), zero for every vector."""
        xavier(self.parameters())
        with torch.no_grad():
            self.mixing.weight.mul_(self.gain)

    def budgeted_query(self) -> Tensor:
        """(c, c) Q with head m scaled so that (2 + sqrt 2) |G^m|_2 is within the budget."""
        c = self.width
        query = self.query.weight.view(self.heads, self.channels, c)
        key = self.key.weight.view(self.heads, self.channels, c)
        norms = torch.linalg.matrix_norm(query.transpose(1, 2) @ key, ord=2) / math.sqrt(
            self.channels
        )
        allowed = self.budget * (1.0 - ROUNDING_SLACK) / (2.0 + math.sqrt(2.0))
        scale = (allowed / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
        result: Tensor = (query * scale[:, None, None]).reshape(c, c)
        return result

    # ------------------------------------------------------------------ the contract

    def prepare(self, graph: Graph) -> StrongAttentionContext:
        """Drive, the inputs' share of the logits, and the query matrix within its budget."""
        bias = self.bias(edge_features(graph))
        return StrongAttentionContext(
            graph.edges,
            self.budgeted_query(),
            self.drive(graph.x).relu(),
            bias,
        )

    def initial_state(self, context: StrongAttentionContext) -> Tensor:
        """The shift everywhere."""
        return torch.full_like(context.drive, self.shift)

    def update(
        self, own: Tensor, table: Tensor, edges: Edges, context: StrongAttentionContext
    ) -> Tensor:
        """T(H)."""
        gathered = self._averages(own, table, edges, context)  # (n, M*c)
        mixing = self.mixing.weight.view(self.width, self.heads, self.channels)
        values = self.value.weight.view(self.heads, self.channels, self.width)
        coefficients = torch.einsum("omq,mqc->omc", mixing, values)  # C^m = W_m V^m
        plus, minus = (gathered @ part.flatten(1).T for part in two_parts(coefficients))
        return self.shift + context.drive + self.gate.of_parts(plus, minus)

    def _averages(
        self, own: Tensor, table: Tensor, edges: Edges, context: StrongAttentionContext
    ) -> Tensor:
        """(n, M*c) a^m_i: the states averaged with the attention of every head."""
        unit = unit_rows(own)
        own_rows = Attended(self.key(unit), own)
        rows = own_rows if table is own else Attended(self.key(unit_rows(table)), table)
        return attention(
            unit @ context.query_weight.T,
            rows,
            edges,
            self.heads,
            own=own_rows,
            terms=EdgeTerms(bias=context.bias, own_bias=self.own_bias),
            shared_value=True,
        )

    def __repr__(self) -> str:
        return (
            f"StrongAttnDEQ({self.in_channels}, {self.out_channels}, heads={self.heads}, "
            f"channels={self.channels}, "
            f"shift={self.shift:g}, gate={self.gate.name!r}, rate={self.rate:g}, "
            f"steps={self.steps})"
        )
