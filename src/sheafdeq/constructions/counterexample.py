"""A family inside the paper's model class with three equilibria: why its Theorem 3.2 does not
follow.

With two channels, constant maps F = I/sqrt(d) on every incidence of a regular graph, W_1 = I, no
drive and

    W_2 = a [[1, -1], [-1, 1]],

a state that is the same at all nodes and coordinates, with row (h_1, h_2), is mapped to

    (beta + tanh(a (h_1 - h_2)),  beta - tanh(a (h_1 - h_2))).

Its fixed points are (beta + s/2, beta - s/2) with ``s = 2 tanh(a s)``: only s = 0 for a <= 1/2, and
three values for every a > 1/2, whatever the shift beta. Every hypothesis of the theorem holds
(``docs/theory.md``, Theorem 13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers.operator import SheafOperator
from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["BIFURCATION", "Counterexample", "channel_difference", "counterexample"]

BIFURCATION = 0.5
"""The gain above which the family has three fixed points."""


def channel_difference(gain: float) -> float:
    """The largest solution ``s >= 0`` of ``s = 2 tanh(gain * s)``: zero up to gain 1/2, positive
    above.

    Above 1/2 the function ``2 tanh(gain s) - s`` is positive just right of zero, concave, and
    negative at s = 2, so it has exactly one positive root, found by bisection to the last float.
    """
    if not (math.isfinite(gain) and gain >= 0):
        raise InputError(f"the gain must be finite and at least 0, got {gain!r}")
    if gain <= BIFURCATION:
        return 0.0
    # 2 tanh(x) >= 2 x (1 - x^2/3), so the function is positive at this point.
    low, high = 0.5 * math.sqrt(3.0 * (1.0 - BIFURCATION / gain)) / gain, 2.0
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        if 2.0 * math.tanh(gain * middle) > middle:
            low = middle
        else:
            high = middle


@dataclass(frozen=True, eq=False)
class Counterexample:
    """One member of the family: plain tensors, its update, and its fixed points in closed form."""

    graph: Graph
    gain: float
    shift: float
    source_maps: Tensor  # (e, d, d) I / sqrt(d)
    target_maps: Tensor  # (e, d, d) I / sqrt(d)
    stalk_mixing: Tensor  # (d, d) W_1 = I
    channel_mixing: Tensor  # (2, 2) W_2

    @property
    def stalk_dim(self) -> int:
        """The stalk dimension d; the state has c = 2 d entries a node."""
        return self.stalk_mixing.shape[0]

    @cached_property
    def matrix(self) -> Tensor:
        """(n*c, n*c) the dense matrix of the whole linear propagation, acting on the state row by
        row."""
        operator = SheafOperator.on(self.graph, self.source_maps, self.target_maps).to_dense()
        mixed = operator @ torch.kron(
            torch.eye(self.graph.num_nodes, dtype=operator.dtype), self.stalk_mixing
        )
        return torch.kron(mixed, self.channel_mixing.T.contiguous())

    def step(self, state: Tensor) -> Tensor:
        """The paper's update ``tanh(P (I (x) W_1) H W_2) + beta``, (n, c) -> (n, c), by dense
        algebra."""
        return torch.tanh(self.matrix @ state.reshape(-1)).reshape(state.shape) + self.shift

    @cached_property
    def fixed_points(self) -> Tensor:
        """(k, n, c) the positive fixed points that are the same row everywhere: k = 1 up to gain
        1/2, 3 above."""
        half = 0.5 * channel_difference(self.gain)
        rows = [[self.shift, self.shift]]
        if half > 0:
            rows += [[self.shift + half, self.shift - half], [self.shift - half, self.shift + half]]
        row = torch.tensor(rows, dtype=self.channel_mixing.dtype)
        return (
            row.repeat(1, self.stalk_dim)[:, None, :]
            .expand(-1, self.graph.num_nodes, -1)
            .contiguous()
        )

    def model(self) -> SheafDEQ:
        """The same update as a :class:`SheafDEQ`: generators with zero weights and the bias vec(I),
        no drive."""
        model = SheafDEQ(
            self.graph.x.shape[1], 2, stalk_dim=self.stalk_dim, channels=2, shift=self.shift
        )
        model = model.to(self.channel_mixing.dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            for generator in (model.source_maps, model.target_maps):
                last = generator[2]
                assert isinstance(last, nn.Linear)
                last.bias.copy_(torch.eye(self.stalk_dim).reshape(-1))
            model.stalk_mixing.copy_(self.stalk_mixing)
            model.channel_mixing.copy_(self.channel_mixing)
        return model


def counterexample(
    gain: float = 1.0, shift: float = 1.2, stalk_dim: int = 1, graph: Graph | None = None
) -> Counterexample:
    """The member with W_2 = gain [[1, -1], [-1, 1]]; by default on two nodes joined by one edge.

    Any ``graph`` whose nodes all have the same number (at least one) of incoming edges will do; its
    features are kept and ignored. Everything is float64.
    """
    channel_difference(gain)  # validates the gain
    if not (math.isfinite(shift) and shift > 1):
        raise InputError(f"the shift must be finite and above 1, got {shift!r}")
    if stalk_dim < 1:
        raise InputError(f"stalk_dim must be at least 1, got {stalk_dim!r}")
    if graph is None:
        graph = Graph.build(torch.zeros(2, 1), torch.tensor([[0, 1], [1, 0]]))
    graph = graph.to(torch.float64)
    counts = graph.pointer[1:] - graph.pointer[:-1]
    if graph.num_nodes == 0 or int(counts.min()) < 1 or int(counts.min()) != int(counts.max()):
        raise InputError(
            "the counterexample needs a regular graph: every node the same number (>= 1) of edges"
        )
    maps = (
        torch.eye(stalk_dim, dtype=torch.float64)
        .div(math.sqrt(stalk_dim))
        .expand(graph.num_edges, -1, -1)
    )
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    return Counterexample(
        graph,
        float(gain),
        float(shift),
        maps,
        maps,
        torch.eye(stalk_dim, dtype=torch.float64),
        gain * signs,
    )
