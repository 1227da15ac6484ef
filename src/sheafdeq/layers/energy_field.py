"""The energy of :class:`~sheafdeq.models.energy_gnn.EnergyGNN` with its derivatives written out,
for the inner solves.

A minimisation asks for hundreds of gradients and its implicit gradient for a hundred Hessian-vector
products. Automatic differentiation records and frees a graph for each; here one pass over the edges
gives the value and the gradient, and one more a product with the Hessian (the edge derivatives are
kept). The model's own formula stays the one that training differentiates; the tests hold the two
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges
from sheafdeq.recurrence import edge_field, node_field
from sheafdeq.solvers import Partition

__all__ = ["EnergyContext", "EnergyField", "HessianProduct"]


@dataclass(frozen=True, eq=False)
class EnergyContext:
    """What stays constant during one solve: everything the free inputs decide."""

    edges: Edges
    partition: Partition
    message: tuple[Tensor, Tensor, Tensor]  # A+, C+, S+
    own: tuple[Tensor, Tensor, Tensor]
    update: tuple[Tensor, Tensor, Tensor]
    message_bias: Tensor  # (2,) of the edge and of the self message
    own_bias: Tensor
    count: Tensor = node_field()  # (n, 1) incoming edges
    start: Tensor = node_field()  # (n, s) zeros
    step_size: Tensor = node_field()  # (n, 1)
    own_hidden: Tensor = node_field()  # (n, h)
    own_gate: Tensor = node_field()  # (n, h)
    update_hidden: Tensor = node_field()  # (n, h)
    update_gate: Tensor = node_field()  # (n, h)
    edge_hidden: Tensor = edge_field()  # (e, h)
    edge_gate: Tensor = edge_field()  # (e, h)


@dataclass(frozen=True)
class _Curve:
    """A convex activation: phi and phi', and phi'' given phi'."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    bend: Callable[[Tensor], Tensor]


CURVES = {
    "softplus": _Curve(functional.softplus, torch.sigmoid, lambda slope: slope * (1 - slope)),
    "relu": _Curve(torch.relu, lambda z: (z > 0).to(z.dtype), torch.zeros_like),
}


class EnergyField:
    r"""E and its gradient on one graph, for a context that carries no history.

    With P = H A_t^T, Q = H A_s^T (the halves of the message network's first layer) and edge e from
    j to i,

    .. math::
        z_e = P_i + Q_j + b_e, \quad
        m_i = C \sum_e g_e \phi(z_e) + \deg_i (S_t H_i + c) + \sum_e S_s H_j +
            m_{\mathrm{self}}(H_i), \quad
        E = \sum_i u(m_i, H_i) + \tfrac{\beta}{2} \|H_i\|^2 .

    Shapes: state (n, s), edge quantities (e, h), messages (n, w).
    """

    def __init__(self, context: EnergyContext, beta: float, activation: str) -> None:
        self.context, self.edges, self.beta, self.curve = (
            context,
            context.edges,
            beta,
            CURVES[activation],
        )
        s = context.start.shape[1]
        (a, c, skip), (a_own, c_own, skip_own) = context.message, context.own
        self.out, self.out_own = c, c_own
        # Every linear map of the state in one matrix: P, Q, S_t, S_s, A_own, S_own.
        parts = (a[:, :s], a[:, s:], skip[:, :s], skip[:, s:], a_own, skip_own)
        self.linear = torch.cat(parts)
        self.sizes = [len(part) for part in parts]
        update, out, skip = context.update
        self.update, self.update_out, self.update_skip = update, out, skip
        self.width = len(c)  # of a message
        self.bias = context.count * context.message_bias + context.own_bias

    def evaluate(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) energies of the nodes, (n, s) the gradient of their sum."""
        rows, gradient, _ = self._evaluate(state)
        return rows, gradient

    def hessian(self, state: Tensor) -> HessianProduct:
        """The Hessian at a state, as a product."""
        return self._evaluate(state)[2]

    @torch.no_grad()
    def _evaluate(self, state: Tensor) -> tuple[Tensor, Tensor, HessianProduct]:
        context, curve = self.context, self.curve
        of_target, of_source, skip_target, skip_source, own, own_skip = (
            state @ self.linear.T
        ).split(self.sizes, dim=1)
        z = self.from_source(of_source).add_(self.from_target(of_target)).add_(context.edge_hidden)
        slope = curve.slope(z).mul_(context.edge_gate)
        hidden = self.to_target(curve.value(z).mul_(context.edge_gate))
        own_z = own + context.own_hidden
        own_slope = curve.slope(own_z)
        message = (
            torch.addmm(self.bias, hidden, self.out.T)
            + context.count * skip_target
            + self.heard(skip_source)
        )
        message += (curve.value(own_z) * context.own_gate) @ self.out_own.T + own_skip
        inputs = torch.cat([message, state], dim=1)
        update_z = torch.addmm(context.update_hidden, inputs, self.update.T)
        update_slope = curve.slope(update_z)
        rows = (
            curve.value(update_z) * context.update_gate
        ) @ self.update_out.T + inputs @ self.update_skip.T
        rows = rows.squeeze(1) + self.beta / 2 * state.square().sum(1)

        pull = torch.addmm(
            self.update_skip, update_slope * context.update_gate * self.update_out, self.update
        )
        to_message, to_state = pull.split([self.width, state.shape[1]], dim=1)
        to_hidden = to_message @ self.out
        # the sum over e of g_e phi'(z_e), also wanted by the Hessian
        slopes = self.to_target(slope)
        to_own = (to_message @ self.out_own) * context.own_gate
        gradient = self.pull_back(
            to_message,
            to_hidden * slopes,
            self.to_source(self.from_target(to_hidden).mul_(slope)),
            to_own * own_slope,
        )
        gradient += to_state + self.beta * state
        product = HessianProduct(self, z, slope, slopes, to_hidden, own_slope, to_own, update_slope)
        return rows, gradient, product

    def pull_back(
        self, to_message: Tensor, to_target: Tensor, to_source: Tensor, to_own: Tensor
    ) -> Tensor:
        """(n, s) the transpose of the linear part: what the pieces made of the state send back to
        it."""
        heard_back = self.to_source(self.from_target(to_message))
        return (
            torch.cat(
                [
                    to_target,
                    to_source,
                    self.context.count * to_message,
                    heard_back,
                    to_own,
                    to_message,
                ],
                1,
            )
            @ self.linear
        )

    # ------------------------------------------------------------------ nodes and edges

    def from_target(self, rows: Tensor) -> Tensor:
        """(n, k) -> (e, k)."""
        return rows.index_select(0, self.edges.target)

    def from_source(self, rows: Tensor) -> Tensor:
        """(n, k) -> (e, k)."""
        return rows.index_select(0, self.edges.source)

    def to_target(self, values: Tensor) -> Tensor:
        """(e, k) -> (n, k) sums over incoming edges."""
        return _bag(self.edges.one_by_one.source, values, self.edges.pointer)

    def to_source(self, values: Tensor) -> Tensor:
        """(e, k) -> (n, k) sums over outgoing edges."""
        return _bag(self.edges.by_source, values, self.edges.transposed.pointer)

    def heard(self, rows: Tensor) -> Tensor:
        """(n, k) -> (n, k) sums of the rows of the sources."""
        return _bag(self.edges.source, rows, self.edges.pointer)


class HessianProduct:
    """v -> Hessian v at one state (n, s); symmetric, at least beta."""

    def __init__(
        self,
        field: EnergyField,
        z: Tensor,
        slope: Tensor,
        slopes: Tensor,
        to_hidden: Tensor,
        own_slope: Tensor,
        to_own: Tensor,
        update_slope: Tensor,
    ) -> None:
        self.field, self.z, self.slope, self.slopes, self.to_hidden = (
            field,
            z,
            slope,
            slopes,
            to_hidden,
        )
        self.own_slope, self.to_own, self.update_slope = own_slope, to_own, update_slope
        # made by the first product: most evaluations never ask for one
        self.edge_bend: Tensor | None = None

    @torch.no_grad()
    def __call__(self, vector: Tensor) -> Tensor:
        """(n, s) -> (n, s)."""
        field, context = self.field, self.field.context
        bend = field.curve.bend
        if self.edge_bend is None:
            # phi'' needs phi' without the gate, which is zero where the gate is closed
            self.edge_bend = (
                bend(field.curve.slope(self.z))
                .mul_(context.edge_gate)
                .mul_(field.from_target(self.to_hidden))
            )
        of_target, of_source, skip_target, skip_source, own, own_skip = (
            vector @ field.linear.T
        ).split(field.sizes, dim=1)
        z = field.from_source(of_source).add_(field.from_target(of_target))
        message = (
            field.to_target(self.slope * z) @ field.out.T
            + context.count * skip_target
            + field.heard(skip_source)
        )
        message += (self.own_slope * context.own_gate * own) @ field.out_own.T + own_skip
        inputs = torch.cat([message, vector], dim=1)
        bent = (
            bend(self.update_slope)
            * context.update_gate
            * field.update_out
            * (inputs @ field.update.T)
        )
        to_message, to_state = (bent @ field.update).split([field.width, vector.shape[1]], dim=1)
        to_hidden = to_message @ field.out
        curved = self.edge_bend * z
        back = field.from_target(to_hidden).mul_(self.slope).add_(curved)
        to_own = (
            to_message @ field.out_own
        ) * context.own_gate * self.own_slope + self.to_own * bend(self.own_slope) * own
        product = field.pull_back(
            to_message,
            to_hidden * self.slopes + field.to_target(curved),
            field.to_source(back),
            to_own,
        )
        result: Tensor = product + to_state + field.beta * vector
        return result


def _bag(index: Tensor, table: Tensor, offsets: Tensor) -> Tensor:
    """(rows, k): the sums of table rows ``index[offsets[r]:offsets[r + 1]]``."""
    if len(index) == 0:
        return table.new_zeros(len(offsets) - 1, table.shape[1])
    return functional.embedding_bag(index, table.contiguous(), offsets[:-1], mode="sum")
