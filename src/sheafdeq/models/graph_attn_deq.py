"""GraphAttnDEQ: SheafDEQ's skeleton with softmax attention in place of the sheaf."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.distances import THOMPSON
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Readout
from sheafdeq.errors import InputError
from sheafdeq.layers.attention_model import AttentionModel
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.restriction import checked_norm_order, normalise_rows
from sheafdeq.layers.sizes import HeadOptions
from sheafdeq.ops.attention import Attended, EdgeTerms, attention, packed_attention
from sheafdeq.ops.linear import linear
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["AttentionContext", "GraphAttnDEQ"]


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """What stays constant during one solve."""

    edges: Edges
    projection: Tensor  # (3c, c) Q, K and V, for one product
    drive: Tensor = node_field()  # (n, c)
    edge_embedding: Tensor | None = edge_field(default=None)  # (e, c)


class GraphAttnDEQ(AttentionModel):
    r"""Attention recomputed from the state at every step.

    .. math::
        H \leftarrow \tanh(\mathrm{Attn}(H, A + I) W) + B(X) + \beta, \qquad
        \mathrm{Attn}(H)_i = \Vert_m \sum_{j \in N(i) \cup \{i\}} \alpha^m_{ij} V^m h_j, \qquad
        \alpha^m_{ij} = \mathrm{softmax}_j \frac{(Q^m h_i)^\top K^m h_j}{\sqrt{c / M}}

    Q, K, V, W are bias-free c x c; B(X) = ReLU(linear); start 1/sqrt(c). The head count M equals
    SheafDEQ's stalk dimension.

    Edge features (``edge_dim``): a bias-free linear embedding is added to the key and to the value
    of its edge; the self-loop gets none.

    ``pre_norm=True`` is the variant of the paper's appendix: queries and keys see h_i / ||h_i||_p,
    values see h_i, and edge features enter keys only. Its propagation is positively homogeneous (a
    test). The unique equilibrium the appendix derives from that does not follow: it rests on the
    same lemma as SheafDEQ's theorem, and W may have signs that cancel (``docs/theory.md``).

    The paper's own ablation; there is no other code. Reading chosen where the text is silent: B has
    the ReLU of SheafDEQ's drive. A self-loop that is already stored is one more neighbour. 9,555
    parameters at f = 3, c = 48, o = 3.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``heads`` M, ``channels`` q = c / M.
        shift: beta > 1.
        edge_dim: width of the edge features, None without.
        pre_norm: the normalised variant.
        norm_order: its p.
        options: ``steps`` K, ``solver``, ``gradient``, as for every equilibrium model.

    Shapes: x (n, f), edge_attr (e, edge_dim) -> (n, o).
    """

    distance = THOMPSON  # states are positive
    edge_input = "optional"

    def __init__(
        self,
        *sizes: int,
        shift: float = 1.3,
        edge_dim: int | None = None,
        pre_norm: bool = False,
        norm_order: float = 2,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(*sizes, **options)
        if not float(shift) > 1.0:
            raise InputError(f"shift must be above 1 (it keeps the state positive), got {shift!r}")
        self.shift, self.edge_dim = float(shift), edge_dim or None
        self.pre_norm, self.norm_order = bool(pre_norm), checked_norm_order(norm_order)
        self.edge = nn.Linear(edge_dim, self.width, bias=False) if edge_dim else None
        self.readout = Readout(self.width, self.out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias."""
        xavier(self.parameters())

    def prepare(self, graph: Graph) -> AttentionContext:
        """The drive and the embedded edge features."""
        embedding = (
            None if self.edge is None or graph.edge_attr is None else self.edge(graph.edge_attr)
        )
        projection = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        return AttentionContext(graph.edges, projection, self.drive(graph.x).relu(), embedding)

    def initial_state(self, context: AttentionContext) -> Tensor:
        """All ones, each row scaled to unit Euclidean norm."""
        return torch.full_like(context.drive, self.width**-0.5)

    def attention(
        self, own: Tensor, table: Tensor, edges: Edges, context: AttentionContext
    ) -> Tensor:
        """(n, c) the multi-head propagation before W."""
        embedding = context.edge_embedding
        terms = EdgeTerms(embedding, None if self.pre_norm else embedding)
        if table is own and not self.pre_norm:
            packed = linear(own, context.projection)
            return packed_attention(packed, edges, self.heads, own=True, terms=terms)
        seen = self._normalised(own)
        own_rows = Attended(self.key(seen), self.value(own))
        rows = own_rows
        if table is not own:
            rows = Attended(self.key(self._normalised(table)), self.value(table))
        return attention(self.query(seen), rows, edges, self.heads, own=own_rows, terms=terms)

    def update(self, own: Tensor, table: Tensor, edges: Edges, context: AttentionContext) -> Tensor:
        """tanh(Attn(H) W) + B + beta."""
        result: Tensor = (
            self.mixing(self.attention(own, table, edges, context)).tanh()
            + self.shift
            + context.drive
        )
        return result

    def _normalised(self, state: Tensor) -> Tensor:
        return normalise_rows(state, 1, self.width, self.norm_order) if self.pre_norm else state
