"""Deep Neural Sheaf Diffusion: twelve untied layers of directional sheaf propagation."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.sizes import StalkModel, StalkSizes
from sheafdeq.ops.sparse import aggregate

__all__ = ["DNSD", "DNSDLayer"]


class DNSDLayer(nn.Module):
    r"""One layer: maps from both ends, directional adjacency, residual update, LayerNorm.

    For a stored edge u -> v (v receives), with z = [x_v ; x_u],

    .. math::
        F_v = \tanh(\mathrm{lin}_v z), \quad F_u = \tanh(\mathrm{lin}_u z), \quad
        a_v = \sum_{u \to v} \frac{F_v^\top F_u x_u}{\sqrt{\deg_u \deg_v}}, \quad
        t = \phi(W_1 a W_2), \quad x \leftarrow \mathrm{LN}((1 + \epsilon) x - g \, t)

    with epsilon and the optional gate g = sigmoid(w [x ; a] + b) one value for each stalk
    coordinate (the gate's weights are shared by the coordinates). Shapes: x (n, d*q) -> (n, d*q),
    coordinate-major.
    """

    def __init__(
        self, stalk_dim: int, channels: int, *, maps: str, activation: str, gate: bool
    ) -> None:
        super().__init__()
        self.stalk_dim, self.channels, self.full, self.odd = (
            stalk_dim,
            channels,
            maps == "full",
            activation == "tanh",
        )
        c = stalk_dim * channels
        entries = stalk_dim**2 if self.full else stalk_dim
        self.receiver_maps, self.sender_maps = nn.Linear(2 * c, entries), nn.Linear(2 * c, entries)
        self.stalk_mixing = nn.Parameter(torch.empty(stalk_dim, stalk_dim))
        self.channel_mixing = nn.Parameter(torch.empty(channels, channels))
        self.epsilon = nn.Parameter(torch.empty(stalk_dim))
        self._scale_and_mix()
        self.gate = nn.Linear(2 * channels, 1) if gate else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        self.norm = nn.LayerNorm(c)

    def reset_parameters(self) -> None:
        """As released: maps at 1/sqrt(2) of PyTorch's start, mixings near the identity, gates at
        one half."""
        self.receiver_maps.reset_parameters()
        self.sender_maps.reset_parameters()
        self._scale_and_mix()
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        self.norm.reset_parameters()

    @torch.no_grad()
    def _scale_and_mix(self) -> None:
        for parameter in (*self.receiver_maps.parameters(), *self.sender_maps.parameters()):
            parameter.div_(math.sqrt(2))
        for mixing in (self.stalk_mixing, self.channel_mixing):
            size = len(mixing)
            mixing.copy_(torch.eye(size) + 0.01 * torch.randn(size, size))
        nn.init.zeros_(self.epsilon)

    def forward(self, x: Tensor, graph: Graph, edges: Edges) -> Tensor:
        """``edges``: the graph's, with heads (diagonal maps) or blocks (full maps)."""
        n, d, q = len(x), self.stalk_dim, self.channels
        received = self._aggregate(x, graph, edges)
        stalks = x.view(n, d, q)
        change = self.stalk_mixing @ received @ self.channel_mixing
        change = change.tanh() if self.odd else change.relu()
        if self.gate is not None:
            change = self.gate(torch.cat([stalks, received], dim=2)).sigmoid() * change
        result: Tensor = self.norm(
            ((1 + self.epsilon).view(1, d, 1) * stalks - change).view(n, d * q)
        )
        return result

    def _aggregate(self, x: Tensor, graph: Graph, edges: Edges) -> Tensor:
        n, d, q = len(x), self.stalk_dim, self.channels
        receiver, sender = self.maps(x, graph)
        if self.full:
            # (e, d, d)
            blocks = receiver.transpose(1, 2) @ sender * graph.edge_weight[:, None, None]
            values = blocks.transpose(0, 1).reshape(-1)  # (d, e, d)
            return aggregate(values, x.view(n * d, q), edges).view(d, n, q).transpose(0, 1)
        values = (receiver * sender * graph.edge_weight[:, None]).T.reshape(-1)  # (d, e)
        table = x.view(n, d, q).transpose(0, 1).reshape(d * n, q)
        return aggregate(values, table, edges).view(d, n, q).transpose(0, 1)

    def maps(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """The maps of the receiving and the sending end of every edge: (e, d, d), or (e, d)
        diagonals."""
        c = x.shape[1]
        weight = torch.cat([self.receiver_maps.weight, self.sender_maps.weight])
        bias = torch.cat([self.receiver_maps.bias, self.sender_maps.bias])
        # lin [x_v ; x_u] = W_a x_v + W_b x_u: two node-level products and two narrow gathers.
        of_receiver = torch.addmm(bias, x, weight[:, :c].T).index_select(0, graph.target)
        values = (of_receiver + (x @ weight[:, c:].T).index_select(0, graph.source)).tanh()
        receiver, sender = values.chunk(2, dim=1)
        if self.full:
            shape = (-1, self.stalk_dim, self.stalk_dim)
            return receiver.reshape(shape), sender.reshape(shape)
        return receiver, sender


class DNSD(StalkModel, ExplicitModel):
    """Linear encoder, ``layers`` untied :class:`DNSDLayer`, linear readout.

    Bourgerie et al., "Deep Neural Sheaf Diffusion", with the released code's layer
    (remibourgerie/deep-neural-sheaf-diffusion, ``directional=True``,
    ``layer_norm_mode="embedding"``): W_1, W_2, epsilon and the residual are in that code and not in
    the paper's prose. The released code calls the receiving end of an edge its source; here an edge
    u -> v is received by v. The paper's prose has the gate, but its printed counts (11,691
    diagonal, 25,659 full at f = 3) are those without it; with gate they are 12,087 and 26,055.
    ``gate`` is an option; without is the default, as the counts are what the paper audited.
    Initialisation is the released one, not the Xavier rule the paper states for all models.

    Args:
        sizes, named: ``in_channels`` f, ``out_channels`` o, ``stalk_dim`` d, ``channels`` q.
        layers: L.
        maps: ``"diagonal"`` or ``"full"``.
        activation: ``"tanh"`` or ``"relu"``.
        gate: the per-coordinate sigmoid gate.

    Shapes: x (n, f) -> (n, o). Edge features are ignored. Directed input: degrees count incoming
        edges (the released code
    counts outgoing ones at both ends; equal on undirected graphs).
    """

    edge_input = "ignored"

    def __init__(
        self,
        *sizes: int,
        layers: int = 12,
        maps: str = "diagonal",
        activation: str = "tanh",
        gate: bool = False,
        **named: Unpack[StalkSizes],
    ) -> None:
        super().__init__(*sizes, **named)
        checked_positive(layers=layers)
        if maps not in ("diagonal", "full"):
            raise InputError(f"maps must be 'diagonal' or 'full', got {maps!r}")
        if activation not in ("tanh", "relu"):
            raise InputError(f"activation must be 'tanh' or 'relu', got {activation!r}")
        self.full = maps == "full"
        self.encoder = nn.Linear(self.in_channels, self.width)
        self.layers = nn.ModuleList(
            DNSDLayer(self.stalk_dim, self.channels, maps=maps, activation=activation, gate=gate)
            for _ in range(layers)
        )
        self.readout = nn.Linear(self.width, self.out_channels)

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        edges = graph.edges
        edges = edges.blocks(self.stalk_dim) if self.full else edges.heads(self.stalk_dim)
        state = self.encoder(graph.x)
        for layer in self.layers:
            state = layer(state, graph, edges)
        result: Tensor = self.readout(state)
        return result
