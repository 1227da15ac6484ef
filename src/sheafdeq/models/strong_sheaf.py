"""StrongSheafDEQ: one sheaf equilibrium whose state-dependent maps stay within a proven budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Readout
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.edge_features import edge_feature_width, edge_features
from sheafdeq.layers.gates import ROUNDING_SLACK
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.restriction import frobenius_normalise
from sheafdeq.layers.rows import scaled_rows
from sheafdeq.layers.sizes import StalkModel, StalkSizes
from sheafdeq.layers.strong import StrongModel, StrongOptions
from sheafdeq.ops.gated_step import edge_parts, gated_map, mixed_parts, two_parts
from sheafdeq.ops.sheaf_blocks import generate_parts, parts_from_hidden
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["StrongSheafContext", "StrongSheafDEQ"]


@dataclass(frozen=True, eq=False)
class StrongSheafContext:
    """What stays constant during one solve: all that the inputs decide."""

    edges: Edges
    drive: Tensor = node_field()  # (n, c) B(X) >= 0
    map_sizes: Tensor = edge_field()  # (e, 2, d, d) M >= 0 of the source and target map
    # (e, h) the inputs' share of the logit generator's hidden layer
    logit_hidden: Tensor = edge_field()
    budgeted: Tensor | None = None  # (2 d d, h) second generator layer, rows scaled into the budget


class StrongStalkOptions(StalkSizes, StrongOptions, total=False):
    """What :class:`StrongSheafDEQ` shares with other models."""


class StrongSheafDEQ(StalkModel, StrongModel):
    r"""Signed, matrix-valued, edge- and state-dependent propagation with one equilibrium for
    **every** weight.

    .. math::
        H^\star = \beta + B(X) + \varphi(y^+, y^-), \qquad y^\pm = \tfrac12 (g \pm p), \qquad
        p = P_{F(H^\star)} W_1 H^\star W_2, \quad F = M \circ \tanh(\ell / 2)

    M >= 0 (the size of every map entry) is any function of the inputs; the logits :math:`\ell`
    decide how much of it, with which sign, is used, and depend on inputs and state. g is the same
    propagation with M, |W_1| and |W_2| (and + on the diagonal), so y+- have nonnegative
    coefficients; they are computed as sums of nonnegative terms, never as differences. Each logit
    is k_0-Lipschitz in Thompson's metric: the state enters it through rows normalised to sum one,
    :math:`\ell = A_2 \mathrm{ReLU}(A_1 \bar h + \text{inputs})`, and every row of A_2 whose
    Lipschitz bound

    .. math::
        k_o = \sum_\eta |A_{2,o\eta}| \sum_{\mathrm{rows}}
        \tfrac12 (\max A_{1,\eta,\mathrm{row}} - \min A_{1,\eta,\mathrm{row}})

    exceeds k_0 is scaled down to it. The update then contracts Thompson's metric with (1 + k_0)
    m(beta) = ``rate`` < 1 (``docs/theory.md``, Lemma 20, Theorem 22), synchronously and with
    bounded delays (Corollary 26).

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``stalk_dim`` d, ``channels`` q; c = d*q.
        hidden: hidden width h of the logit generator.
        options: ``shift``, ``gate``, ``rate``, ``gain`` (of W_2), ``edge_dim``, ``steps``,
            ``solver`` and ``gradient``, as for every :class:`~sheafdeq.layers.strong.StrongModel`.

    Shapes: x (n, f), edge_index (2, e), edge_attr (e, edge_dim), output (n, o).
    """

    def __init__(
        self, *sizes: int, hidden: int = 32, **options: Unpack[StrongStalkOptions]
    ) -> None:
        super().__init__(*sizes, **options)
        checked_positive(hidden=hidden)
        d, q, c = self.stalk_dim, self.channels, self.width
        width = edge_feature_width(self.in_channels, self.edge_dim)
        self.drive = nn.Linear(self.in_channels, c)
        self.sizes = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2 * d**2))
        self.logit_inputs = nn.Linear(width, hidden)
        self.logit_source = Dense(c, hidden, bias=False)  # A_1, source half
        self.logit_target = Dense(c, hidden, bias=False)  # A_1, target half
        self.logits = nn.Linear(hidden, 2 * d**2)  # A_2
        self.stalk_mixing = nn.Parameter(torch.empty(d, d))
        self.channel_mixing = nn.Parameter(torch.empty(q, q))
        self.readout = Readout(c, self.out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix (W_2 times ``gain``), zero for every bias."""
        xavier(self.parameters())
        with torch.no_grad():
            self.channel_mixing.mul_(self.gain)

    # ------------------------------------------------------------------ the contract

    def prepare(self, graph: Graph) -> StrongSheafContext:
        """Drive, map sizes and the inputs' share of the logits."""
        edges, d = graph.edges, self.stalk_dim
        inputs = edge_features(graph)
        sizes = nn.functional.softplus(self.sizes(inputs)).view(-1, d, d)
        sizes = frobenius_normalise(sizes).view(-1, 2, d, d)
        return StrongSheafContext(
            edges,
            self.drive(graph.x).relu(),
            sizes,
            self.logit_inputs(inputs),
            self.budgeted_logits(),
        )

    def initial_state(self, context: StrongSheafContext) -> Tensor:
        """The shift everywhere."""
        return torch.full_like(context.drive, self.shift)

    def step(self, state: Tensor, context: StrongSheafContext) -> Tensor:
        """T(H) on a whole graph."""
        rows = self._normalised(state)
        plus, minus = generate_parts(
            self.logit_source(rows),
            self.logit_target(rows),
            context.logit_hidden,
            self._second_layer(context),
            self.logits.bias,
            context.map_sizes,
            context.edges,
            sign=-1,
        )
        update = gated_map(
            *plus,
            self.channel_mixing,
            context.drive + self.shift,
            self.gate,
            context.edges,
            stalk_mixing=self.stalk_mixing,
            minus=minus,
        )
        return update(state)

    def local_step(self, own: Tensor, received: Tensor, context: StrongSheafContext) -> Tensor:
        """The same update with edge k reading the source state ``received[k]``."""
        edges = context.edges
        hidden = context.logit_hidden + self.logit_source(self._normalised(received))
        hidden = hidden + self.logit_target(self._normalised(own)).index_select(0, edges.target)
        weight = self._second_layer(context)
        plus, minus = parts_from_hidden(
            hidden, weight, self.logits.bias, context.map_sizes, edges, sign=-1
        )
        stalks, channels = two_parts(self.stalk_mixing), two_parts(self.channel_mixing)

        def values(rows: Tensor) -> tuple[Tensor, Tensor]:
            h = rows.reshape(-1, self.stalk_dim, self.channels)
            return mixed_parts(stalks, h @ channels[0], h @ channels[1])

        parts = edge_parts(plus, minus, values(own), values(received), edges)
        return self.shift + context.drive + self.gate.of_parts(*parts).reshape(own.shape)

    # ------------------------------------------------------------------ the sheaf

    def budgeted_logits(self) -> Tensor:
        """(2 d d, h) A_2 with every row scaled into the budget (Lemma 20(c))."""
        d, q = self.stalk_dim, self.channels
        spread = self.logits.weight.new_zeros(self.logits.in_features)
        for layer in (self.logit_source, self.logit_target):
            # one row of A_1 for each hidden unit and each stalk coordinate
            rows = layer.weight.view(-1, d, q)
            spread = spread + 0.5 * (rows.amax(-1) - rows.amin(-1)).sum(-1)
        lipschitz = self.logits.weight.abs() @ spread  # (2 d d,)
        allowed = self.budget * (1.0 - ROUNDING_SLACK)
        scale = (allowed / lipschitz.clamp(min=torch.finfo(lipschitz.dtype).tiny)).clamp(max=1.0)
        return self.logits.weight * scale[:, None]

    def _second_layer(self, context: StrongSheafContext) -> Tensor:
        return context.budgeted if context.budgeted is not None else self.budgeted_logits()

    def _normalised(self, state: Tensor) -> Tensor:
        """Each of the d rows of length q divided by its sum (p = 1: the most adaptivity for the
        budget)."""
        rows = scaled_rows(state.view(-1, self.stalk_dim, self.channels))
        return (rows / rows.sum(-1, keepdim=True)).view(state.shape)

    def __repr__(self) -> str:
        return (
            f"StrongSheafDEQ({self.in_channels}, {self.out_channels}, stalk_dim={self.stalk_dim}, "
            f"channels={self.channels}, "
            f"shift={self.shift:g}, gate={self.gate.name!r}, rate={self.rate:g}, "
            f"steps={self.steps})"
        )
