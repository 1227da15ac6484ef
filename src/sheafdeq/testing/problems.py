"""Recurrences with known fixed points, for testing solvers, gradients, runtimes and checkers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import EquilibriumModel, Readout
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.recurrence import node_field

__all__ = ["LinearAverage", "constant_sheaf_deq", "two_node_graph"]


@dataclass(frozen=True, eq=False)
class LinearContext:
    """Edges and the injected signal."""

    edges: Edges
    drive: Tensor = node_field()  # (n, c)


class LinearAverage(EquilibriumModel):
    """h_v <- rate * mean over incoming edges of h_u + (1 - rate) * b_v: a contraction of the sup
    norm with factor ``rate``.

    Nodes without incoming edges receive nothing: h_v = (1 - rate) b_v. The fixed point solves a
    linear system (:meth:`exact`), so every solver and runtime can be held against it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        rate: float = 0.5,
        steps: int = 20,
        **options: object,
    ) -> None:
        super().__init__(steps=steps, **options)  # type: ignore[arg-type]
        self.in_channels, self.out_channels, self.rate = in_channels, out_channels, rate
        self.encoder = nn.Linear(in_channels, in_channels)
        self.readout = Readout(in_channels, out_channels)

    def prepare(self, graph: Graph) -> LinearContext:
        """The drive is a linear function of the features."""
        return LinearContext(graph.edges, self.encoder(graph.x))

    def initial_state(self, context: LinearContext) -> Tensor:
        """Zero."""
        return torch.zeros_like(context.drive)

    def step(self, state: Tensor, context: LinearContext) -> Tensor:
        """The map itself."""
        return self.local_step(state, state[context.edges.source], context)

    def local_step(self, own: Tensor, received: Tensor, context: LinearContext) -> Tensor:
        """The map with one source state for each edge."""
        edges = context.edges
        total = torch.zeros_like(context.drive).index_add(0, edges.target, received)
        return self.rate * total / edges.degree[:, None] + (1 - self.rate) * context.drive

    def exact(self, graph: Graph) -> Tensor:
        """(n, c) the fixed point by a dense solve."""
        context = self.prepare(graph)
        n = graph.num_nodes
        mean = torch.zeros(n, n, dtype=graph.x.dtype)
        mean.index_put_(
            (graph.target, graph.source),
            torch.ones(graph.num_edges, dtype=graph.x.dtype),
            accumulate=True,
        )
        mean = mean / graph.degree[:, None]
        result: Tensor = torch.linalg.solve(
            torch.eye(n, dtype=mean.dtype) - self.rate * mean, (1 - self.rate) * context.drive
        )
        return result


def two_node_graph(dtype: torch.dtype = torch.float64) -> Graph:
    """Two nodes, one undirected edge, one feature."""
    return Graph.build(torch.zeros(2, 1, dtype=dtype), torch.tensor([[0, 1], [1, 0]]))


def constant_sheaf_deq(
    channel_mixing: Tensor,
    *,
    stalk_dim: int = 1,
    shift: float = 1.2,
    in_channels: int = 1,
    **options: object,
) -> SheafDEQ:
    """A SheafDEQ whose maps are all I / sqrt(d), whose drive is zero and whose stalk mixing is the
    identity.

    With d = 1, W_2 = a [[1, -1], [-1, 1]] and two nodes this is the counterexample to the published
    theorem: for a > 1/2 it has three positive fixed points.
    """
    q = channel_mixing.shape[0]
    model = SheafDEQ(in_channels, 1, stalk_dim, q, shift=shift, **options).to(channel_mixing.dtype)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for generator in (model.source_maps, model.target_maps):
            generator[2].bias.copy_(torch.eye(stalk_dim, dtype=channel_mixing.dtype).flatten())  # type: ignore[operator]
        model.stalk_mixing.copy_(torch.eye(stalk_dim, dtype=channel_mixing.dtype))
        model.channel_mixing.copy_(channel_mixing)
        model.readout.weight.fill_(1.0)
    return model
