"""SheafRelay: messages that never turn back, so that what they carry does not fade and always
settles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.adjoints import Adjoint
from sheafdeq.data.graph import Graph
from sheafdeq.distances import SUP
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import EquilibriumModel, Readout
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.edge_features import edge_feature_width, edge_features
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.sizes import StalkModel
from sheafdeq.recurrence import edge_field, node_field
from sheafdeq.solvers import Picard, Solver

__all__ = ["RelayContext", "SheafRelay", "core_nodes"]


@dataclass(frozen=True, eq=False)
class RelayContext:
    """What stays constant during one solve: who passes what on to whom, and how it is
    transported."""

    edges: Edges
    slots: int  # D, the largest number of edges into one node
    slot: Tensor = edge_field()  # (e,) the place of an edge among the edges into its target
    heard: Tensor = edge_field()  # (e, D) 1 where the source passes on what it has in that place
    transport: Tensor = edge_field()  # (e, d, d) F
    origin: Tensor = edge_field()  # (e, c) B, what the source itself says
    own: Tensor = node_field()  # (n, o) the features' share of the outputs


class SheafRelay(StalkModel, EquilibriumModel):
    r"""A sheaf on the directed edges: each message is transported, added to, and never sent back
    where it came from.

    .. math::
        m_{u \to v} = F_{u \to v} \sum_{w \to u,\; w \ne v} m_{w \to u} \;+\; B_{u \to v}, \qquad
        y_v = R \sum_{u \to v} m_{u \to v} + r(x_v)

    F = I + (a two-layer image of what the inputs say about the edge), or F = I
    (``transport="identity"``: sums along paths are then exact at every length), B = (a two-layer
    image of x_u and of the edge). Both are unconstrained, except that on edges of the graph's
    **2-core** (what is left when leaves are taken away again and again) the rows of F are scaled to
    sum to at most kappa / p, with p the number of core messages that F gathers.

    **Why it settles, for every weight and every graph** (``docs/theory.md``, Theorem 38). A message
    depends on messages further back along a path that does not turn round. Such a path can close
    only inside the 2-core. Order the other messages by that dependence: they form a triangle with
    nothing on its diagonal, whatever F is, and the core's block contracts with kappa in the sup
    norm. So the equilibrium is unique and every positive or negative start reaches it, also with
    bounded delays. On a forest, a chain for example, it is reached *exactly*, after as many steps
    as the longest path has edges: nothing is forgotten on the way, where a contraction of rate q
    would have kept a share q^k of what is k hops away.

    Args:
        in_channels: f.
        out_channels: o.
        stalk_dim: d.
        channels: q; a message has c = d*q entries.
        hidden: hidden width of F, B and r.
        transport: ``"free"`` or ``"identity"``. What a free F learns wrong by epsilon, k hops make
            wrong by k epsilon.
        core_rate: kappa in (0, 1).
        max_degree: refuse graphs in which more edges than this arrive at one node; a state has D*c
            entries a node.
        steps: limit of the solve, which stops when nothing changes by more than ``tolerance``
            (largest entry).
        edge_dim: width of the edge features, None without.
        solver: as for every equilibrium model.
        gradient: as for every equilibrium model.

    Shapes: x (n, f), edge_index (2, e), edge_attr (e, edge_dim) -> (n, o). The state is (n, D*c):
        one place for each edge
    into a node. Self-loops carry nothing.
    """

    # the 2-core and the speakers before a source are not in a node's incoming edges
    local_prepare = False

    exportable = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stalk_dim: int = 3,
        channels: int = 2,
        *,
        hidden: int = 16,
        transport: str = "free",
        core_rate: float = 0.9,
        max_degree: int = 64,
        steps: int = 1000,
        tolerance: float = 1e-6,
        edge_dim: int | None = None,
        solver: str | Solver | None = None,
        gradient: str | Adjoint = "unrolled",
    ) -> None:
        checked_positive(hidden=hidden, max_degree=max_degree)
        if transport not in ("free", "identity"):
            raise InputError(f"transport must be 'free' or 'identity', got {transport!r}")
        if not 0.0 < float(core_rate) < 1.0:
            raise InputError(f"core_rate must be in (0, 1), got {core_rate!r}")
        # The residual of a message on its way does not fall until it arrives: no progress is no
        # stagnation here.
        default = Picard(
            steps=steps,
            tolerance=tolerance,
            stop_early=True,
            distance=SUP,
            stagnation_window=max(2, steps),
        )
        solver = default if solver is None else solver
        sizes = (in_channels, out_channels, stalk_dim, channels)
        super().__init__(*sizes, steps=steps, solver=solver, gradient=gradient)
        self.core_rate, self.max_degree = float(core_rate), max_degree
        self.edge_dim = edge_dim or None
        c = self.width
        about_edge = edge_feature_width(in_channels, edge_dim)
        self.turn: nn.Sequential | None = None
        if transport == "free":
            self.turn = nn.Sequential(
                nn.Linear(about_edge, hidden), nn.ReLU(), nn.Linear(hidden, stalk_dim**2)
            )
        self.say = nn.Sequential(
            nn.Linear(in_channels + about_edge, hidden), nn.ReLU(), nn.Linear(hidden, c)
        )
        self.own = nn.Sequential(
            nn.Linear(in_channels, hidden), nn.ReLU(), nn.Linear(hidden, out_channels)
        )
        self.output = Readout(c, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform, except that every transport starts as the identity: sums along paths are
        exact at the start."""
        xavier(self.parameters())
        if self.turn is not None:
            last = self.turn[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)

    def prepare(self, graph: Graph) -> RelayContext:
        """Places, what is passed on, transports and origins."""
        edges = graph.edges
        source, target = edges.source, edges.target
        arriving = edges.pointer.diff()
        slots = max(1, int(arriving.max()) if len(arriving) else 1)
        if slots > self.max_degree:
            raise InputError(
                f"a node of this graph hears {slots} edges, the relay keeps a place for each and "
                "was made for at most "
                f"{self.max_degree}: give max_degree={slots} if memory allows "
                f"({slots * self.width} numbers a node)"
            )
        slot = torch.arange(len(target), device=target.device) - edges.pointer[target]
        speaker = source.new_full((graph.num_nodes, slots), -1)
        speaker[target, slot] = source
        before = speaker[source]  # (e, D) who spoke to the source of each edge
        heard = (before >= 0) & (before != target.unsqueeze(1)) & (before != source.unsqueeze(1))
        carries = source != target
        about = edge_features(graph)
        said = self.say(torch.cat([graph.x.index_select(0, source), about], dim=1))
        return RelayContext(
            edges,
            slots,
            slot,
            heard.to(graph.x.dtype),
            self._transport(about, heard, before, edges) * carries[:, None, None],
            said * carries[:, None],
            self.own(graph.x),
        )

    def _transport(self, about: Tensor, heard: Tensor, before: Tensor, edges: Edges) -> Tensor:
        """(e, d, d) I + turn(edge), its rows scaled down on edges of the 2-core."""
        d = self.stalk_dim
        transport = torch.eye(d, dtype=about.dtype, device=about.device).expand(len(about), d, d)
        if self.turn is not None:
            transport = transport + self.turn(about).view(-1, d, d)
        source, target = edges.source, edges.target
        core = core_nodes(source, target, edges.num_targets)
        inside = core[source] & core[target]
        if not bool(inside.any()):
            return transport
        # where before is -1, nothing is heard
        gathered = (heard & core[before]).sum(1).clamp(min=1)
        sums = transport.abs().sum(2, keepdim=True)
        # s / sqrt(1 + s^2) < 1 and smooth; min(1, s) would have its kink at the identity, where
        # training starts.
        bounded = transport * (
            self.core_rate / gathered.to(sums).view(-1, 1, 1) * (1 + sums.square()).rsqrt()
        )
        return torch.where(inside.view(-1, 1, 1), bounded, transport)

    def initial_state(self, context: RelayContext) -> Tensor:
        """(n, D*c) silence."""
        n = context.edges.num_targets
        return context.origin.new_zeros(n, context.slots * self.width)

    def step(self, state: Tensor, context: RelayContext) -> Tensor:
        """Every message anew from the messages before it."""
        return self.local_step(state, state.index_select(0, context.edges.source), context)

    def local_step(self, own: Tensor, received: Tensor, context: RelayContext) -> Tensor:
        """The same with edge k reading the places ``received[k]`` of its source; what the target
        had is replaced."""
        n, slots, c = context.edges.num_targets, context.slots, self.width
        heard = context.heard.unsqueeze(1)  # (e, 1, D)
        total = (heard @ received.view(-1, slots, c)).view(-1, self.stalk_dim, self.channels)
        message = (context.transport @ total).view(-1, c) + context.origin
        place = context.edges.target * slots + context.slot
        return own.new_zeros(n * slots, c).index_copy(0, place, message).view(n, slots * c)

    def readout(self, state: Tensor, context: RelayContext) -> Tensor:
        """The sum of what arrived, through a linear map, and the node's own share."""
        result: Tensor = (
            self.output(state.view(len(state), context.slots, self.width).sum(1)) + context.own
        )
        return result

    def __repr__(self) -> str:
        return (
            f"SheafRelay({self.in_channels}, {self.out_channels}, stalk_dim={self.stalk_dim}, "
            f"channels={self.channels}, core_rate={self.core_rate:g})"
        )


def core_nodes(source: Tensor, target: Tensor, num_nodes: int) -> Tensor:
    """(n,) which nodes are in the 2-core of the undirected simple graph below the edges.

    Leaves are taken away until none is left: one pass over what remains for every round.
    """
    low, high = torch.minimum(source, target), torch.maximum(source, target)
    pairs = torch.unique(torch.stack([low, high])[:, low != high], dim=1)
    while pairs.shape[1]:
        degree = torch.bincount(pairs.flatten(), minlength=num_nodes)
        kept = (degree[pairs] > 1).all(0)
        if bool(kept.all()):
            break
        pairs = pairs[:, kept]
    inside = torch.zeros(num_nodes, dtype=torch.bool, device=source.device)
    inside[pairs.flatten()] = True
    return inside
