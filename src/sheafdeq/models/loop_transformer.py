"""Loop Transformer: one graph Transformer block applied again and again, without any guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.adjoints import Unrolled
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Readout
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_dropout
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.layers.gathering import GatheringModel
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.sizes import HeadModel, HeadOptions
from sheafdeq.ops.attention import Attended, EdgeTerms, attention, packed_attention
from sheafdeq.ops.linear import linear
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["LoopContext", "LoopTransformer"]


@dataclass(frozen=True, eq=False)
class LoopContext:
    """What stays constant during one solve."""

    edges: Edges
    projection: Tensor  # (3c, c) Q, K and V, for one product
    projection_bias: Tensor  # (3c,)
    start: Tensor = node_field()  # (n, c) the encoded features
    edge_embedding: Tensor | None = edge_field(default=None)  # (e, c)
    # (n, 2c) dropout of the feed-forward block where one mask serves the solve
    mask: Tensor | None = node_field(default=None)


class LoopTransformer(HeadModel, GatheringModel):
    r"""A weight-tied block of masked attention and a feed-forward network, both residual with
    LayerNorm after.

    .. math::
        H_0 = B(X), \quad
        H' = \mathrm{LN}_1(H + \mathrm{Conv}(H)), \quad
        H \leftarrow \mathrm{LN}_2(H' + W_2\, \mathrm{GELU}(W_1 H'))

    Conv is PyG's ``TransformerConv(c, c/M, heads=M, beta=True, edge_dim)`` (Shi et al., IJCAI
    2021), restricted to N(i), without self-loop:

    .. math::
        m_i = \Vert \sum_j \alpha_{ij}(V h_j + E a_{ij}), \quad
        \alpha_{ij} = \mathrm{softmax}_j \frac{(Q h_i)^\top (K h_j + E a_{ij})}{\sqrt{c/M}}, \quad
        \mathrm{Conv}_i = g_i\, S h_i + (1 - g_i)\, m_i, \quad g_i = \sigma(w^\top [m_i, S h_i, m_i
            - S h_i]).

    It is written out here (and tested equal to PyG's) so that every edge can read its own, possibly
    old, source state. Such a run is an approximate simulation of a delayed network: nothing
    guarantees that this loop converges, with or without delays.

    The paper's own control; there is no other code. Readings: a two-layer ReLU encoder, which the
    printed count requires; dropout after the GELU, with a mask for each loop. One mask for the
    whole solve can serve as a mark of its node that is gone at test time; so trained, it stayed far
    below the paper (``docs/results.md``). Without edge features the paper feeds a zero attribute
    of width one; its embedding is identically zero, so it is skipped, and the 48 parameters stay
    for the count. 21,843 parameters at f = 3, c = 48, o = 3, whatever K.

    At the paper's learning rate of 1e-2 it needs the warm-up of the paper's schedule: with a
    constant rate the first updates throw it to equal odds and it stays there (``docs/results.md``).

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``heads`` M, ``channels`` c / M.
        edge_dim: width of the edge features, None without.
        dropout: in the feed-forward block, while training.
        masks: ``"loop"``: a dropout mask for every loop, so that the step is random while training;
            ``"solve"``: one for the whole solve. A gradient taken at the equilibrium needs one map
            and always has the solve's.
        options: ``steps`` K, ``solver``, ``gradient``, as for every equilibrium model.

    Shapes: x (n, f), edge_attr (e, edge_dim) -> (n, o).
    """

    edge_input = "optional"

    def __init__(
        self,
        *sizes: int,
        edge_dim: int | None = None,
        dropout: float = 0.1,
        masks: Literal["loop", "solve"] = "loop",
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(*sizes, **options)
        self.edge_dim = edge_dim or None
        self.dropout = checked_dropout(dropout)
        if masks not in ("loop", "solve"):
            raise InputError(f"masks must be 'loop' or 'solve', got {masks!r}")
        self.masks = masks
        c = self.width
        self.encoder = nn.Sequential(nn.Linear(self.in_channels, c), nn.ReLU(), Dense(c, c))
        self.query, self.key, self.value, self.skip = (Dense(c, c) for _ in range(4))
        self.edge = nn.Linear(edge_dim or 1, c, bias=False)
        self.gate = nn.Linear(3 * c, 1, bias=False)
        self.expand, self.contract = Dense(c, 2 * c), Dense(2 * c, c)
        self.readout = Readout(c, self.out_channels)
        self.norm_attention, self.norm_forward = nn.LayerNorm(c), nn.LayerNorm(c)
        self._start_matrices()

    def reset_parameters(self) -> None:
        """Xavier uniform for matrices; biases and norms as PyTorch starts them."""
        super().reset_parameters()
        self._start_matrices()

    def _start_matrices(self) -> None:
        # Biases keep PyTorch's uniform start: with zero biases a node without features and
        # neighbours would stay at the zero row, where LayerNorm multiplies gradients by 1/sqrt(eps)
        # in every loop until they overflow.
        xavier(parameter for parameter in self.parameters() if parameter.dim() > 1)

    def prepare(self, graph: Graph) -> LoopContext:
        """Encoded features, embedded edge features, and the mask if one serves the solve."""
        start = self.encoder(graph.x)
        embedding = (
            None if self.edge_dim is None or graph.edge_attr is None else self.edge(graph.edge_attr)
        )
        hidden = start.new_empty(len(start), self.expand.out_features)
        mask = dropout_mask(hidden, self.dropout, self.training and not self.masks_each_loop)
        layers = (self.query, self.key, self.value)
        projection = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return LoopContext(graph.edges, projection, bias, start, embedding, mask)

    @property
    def masks_each_loop(self) -> bool:
        """Whether every loop draws its own mask."""
        return self.masks == "loop" and isinstance(self.adjoint, Unrolled)

    def initial_state(self, context: LoopContext) -> Tensor:
        """B(X)."""
        return context.start

    def convolve(self, own: Tensor, table: Tensor, edges: Edges, context: LoopContext) -> Tensor:
        """(n, c) the gated attention layer."""
        terms = EdgeTerms(context.edge_embedding, context.edge_embedding)
        if table is own:
            packed = linear(own, context.projection, context.projection_bias)
            message = packed_attention(packed, edges, self.heads, own=False, terms=terms)
        else:
            rows = Attended(self.key(table), self.value(table))
            message = attention(self.query(own), rows, edges, self.heads, terms=terms)
        skipped = self.skip(own)
        # w^T [m, s, m - s] without the three of them side by side
        by_message, by_skipped, by_difference = self.gate.weight.view(3, -1)
        logit = message @ (by_message + by_difference) + skipped @ (by_skipped - by_difference)
        return torch.lerp(message, skipped, logit.sigmoid().unsqueeze(1))

    def update(self, own: Tensor, table: Tensor, edges: Edges, context: LoopContext) -> Tensor:
        """One pass through the block."""
        state = self.norm_attention(own + self.convolve(own, table, edges, context))
        hidden = functional.gelu(self.expand(state))
        mask = context.mask
        if mask is None:
            mask = dropout_mask(hidden, self.dropout, self.training)
        if mask is not None:
            hidden = hidden * mask
        result: Tensor = self.norm_forward(state + self.contract(hidden))
        return result
