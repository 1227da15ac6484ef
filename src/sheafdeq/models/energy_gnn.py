"""EnergyGNN: node states that minimise a learned, strongly convex energy of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafdeq.adjoints.attachment import attach
from sheafdeq.adjoints.implicit import warn_unsolved
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel, Readout
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.energy_field import EnergyContext, EnergyField
from sheafdeq.layers.initialise import xavier
from sheafdeq.layers.sizes import SizedModel
from sheafdeq.solvers import LBFGS, ConjugateGradients, Partition, Solution
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["PICNN", "EnergyGNN"]

Activation = Callable[[Tensor], Tensor]
RAW_START = -4.0  # softplus(-4) = 0.018: small weights, so that the first minimiser is of order one


class PICNN(nn.Module):
    r"""A partially input-convex network with one hidden layer: convex and non-decreasing in y,
    arbitrary in x.

    .. math:: z = \phi(A^+ y + B x + b), \qquad
              \mathrm{out} = C^+ \bigl(z \circ \mathrm{ReLU}(G x + g)\bigr) + S^+ y + c

    Weights marked + are softplus of free parameters, so they are positive; phi is convex and
    non-decreasing. After Amos, Xu and Kolter, "Input Convex Neural Networks", ICML 2017, with the
    gate on the hidden layer only and computed from x directly.
    """

    def __init__(self, convex: int, free: int, hidden: int, out: int) -> None:
        super().__init__()
        self.free_hidden = nn.Linear(free, hidden)  # B, b
        self.free_gate = nn.Linear(free, hidden)  # G, g
        self.raw_hidden = nn.Parameter(torch.empty(hidden, convex))  # A
        self.raw_out = nn.Parameter(torch.empty(out, hidden))  # C
        self.raw_skip = nn.Parameter(torch.empty(out, convex))  # S
        self.bias = nn.Parameter(torch.empty(out))  # c
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform; weights that must be positive start small, gates open."""
        xavier(self.parameters())
        with torch.no_grad():
            for raw in (self.raw_hidden, self.raw_out, self.raw_skip):
                raw.add_(RAW_START)
            self.free_gate.bias.fill_(1.0)  # an open gate at the start

    def positive(self) -> tuple[Tensor, Tensor, Tensor]:
        """A+, C+, S+."""
        return (
            functional.softplus(self.raw_hidden),
            functional.softplus(self.raw_out),
            functional.softplus(self.raw_skip),
        )


class EnergyGNN(SizedModel, EquilibriumModel):
    r"""The state is the unique minimiser of

    .. math::
        E(H) = \sum_i u(m_i, H_i; x_i) + \tfrac{\beta}{2} \|H_i\|^2, \qquad
        m_i = \sum_{j \to i} m(H_i, H_j; x_i, x_j, a_{ij}) + m_{\mathrm{self}}(H_i; x_i)

    with u, m and m_self partially input-convex (:class:`PICNN`), u non-decreasing in m. E is
    beta-strongly convex for every weight.

    **Forward**: L-BFGS, every graph of a batch on its own, to a gradient of at most ``tolerance``;
    the end is reported graph by
    graph (:class:`~sheafdeq.solvers.LBFGS`). **Gradient**: with v from Hessian v = dL/dH
    by conjugate gradients on Hessian-vector products, dL/dtheta = -v^T d(grad E)/dtheta; the end of
    that solve is ``solution.backward``. **Map**: ``step`` is :math:`H - \eta \nabla E(H)` with
    1/eta an upper bound of the Hessian's norm on each graph, a contraction with the same fixed
    point, so that diagnostics have a map to examine. (All weights are positive, so the Hessian is
    entrywise non-negative and at most the matrix with phi' = 1 and phi'' = 1/4 everywhere; its
    largest row sum bounds the norm.) There is no ``local_step``: the gradient at a node needs its
    neighbours' m_j, that is, states two hops away.

    Solodova et al., "Graph Neural Networks Gone Hogwild", ICLR 2025 (no code was released); hidden
    width 4, message width 2, update width 1 and beta = 0.04 as the paper reports them. Deviations:

    * phi is softplus. The paper's ReLU makes E piecewise linear plus quadratic: minimisers can sit
      on kinks, where no gradient is small; the paper's L-BFGS did not converge on two benchmarks.
      ``activation="relu"`` is there to compare; it reports failure.
    * Backtracking replaces the strong Wolfe search, and 200 iterations are allowed instead of 50.
    * The state width is not printed; c = 48 is impossible with 340 parameters (the message network
      alone would have more than 384). Several readings give exactly 340 at f = 3, o = 3: this
      network with 7 state entries and a linear readout is one of them.

    Args:
        in_channels: f.
        out_channels: o.
        state_width: s.
        hidden: hidden width of the three networks.
        message_width: width of m.
        beta: strong convexity.
        edge_dim: width of the edge features, None without; they enter the free inputs of m.
        activation: ``"softplus"`` or ``"relu"``.
        steps: limit of the minimisation.
        tolerance: residual at which it ends.

    Shapes: x (n, f), edge_attr (e, edge_dim) -> (n, o).
    """

    edge_input = "optional"
    exportable = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        state_width: int = 7,
        *,
        hidden: int = 4,
        message_width: int = 2,
        beta: float = 0.04,
        edge_dim: int | None = None,
        activation: str = "softplus",
        steps: int = 200,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__(in_channels, out_channels, steps=steps, gradient="implicit")
        checked_positive(state_width=state_width, hidden=hidden, message_width=message_width)
        if not 0.0 < float(beta) < math.inf:
            raise InputError(f"beta must be positive, got {beta!r}")
        if activation not in ("softplus", "relu"):
            raise InputError(f"activation must be 'softplus' or 'relu', got {activation!r}")
        if not float(tolerance) > 0.0:
            raise InputError(f"tolerance must be positive, got {tolerance!r}")
        self.edge_dim = edge_dim or None
        self.state_width, self.beta, self.tolerance = state_width, float(beta), float(tolerance)
        self.activation = activation
        self.message = PICNN(
            2 * state_width, 2 * in_channels + (edge_dim or 0), hidden, message_width
        )
        self.own = PICNN(state_width, in_channels, hidden, message_width)
        self.update = PICNN(message_width + state_width, in_channels, hidden, 1)
        self.readout = Readout(state_width, out_channels)
        xavier(self.readout.parameters())

    def reset_parameters(self) -> None:
        """The networks by their own rule, the readout Xavier uniform."""
        super().reset_parameters()
        xavier(self.readout.parameters())

    # ------------------------------------------------------------------ the energy

    def prepare(self, graph: Graph) -> EnergyContext:
        """Everything the features decide, and a step length that is safe on each graph."""
        x, f, e = graph.x, self.in_channels, graph.edge_attr
        parts = []
        for layer in (self.message.free_hidden, self.message.free_gate):
            of_target = functional.linear(x, layer.weight[:, :f], layer.bias).index_select(
                0, graph.target
            )
            value = of_target + (x @ layer.weight[:, f : 2 * f].T).index_select(0, graph.source)
            if self.edge_dim is not None and e is not None:
                value = value + e @ layer.weight[:, 2 * f :].T
            parts.append(value)
        start = x.new_zeros(graph.num_nodes, self.state_width)
        context = EnergyContext(
            edges=graph.edges,
            partition=Partition(graph.graph_of_node, graph.num_graphs),
            message=self.message.positive(),
            own=self.own.positive(),
            update=self.update.positive(),
            message_bias=self.message.bias,
            own_bias=self.own.bias,
            count=graph.pointer.diff().to(x.dtype).unsqueeze(1),
            start=start,
            step_size=start[:, :1],
            own_hidden=self.own.free_hidden(x),
            own_gate=self.own.free_gate(x).relu(),
            update_hidden=self.update.free_hidden(x),
            update_gate=self.update.free_gate(x).relu(),
            edge_hidden=parts[0],
            edge_gate=parts[1].relu(),
        )
        return replace(context, step_size=self._safe_step(context))

    def node_energies(
        self, state: Tensor, context: EnergyContext, activation: Activation | None = None
    ) -> Tensor:
        """(n,) the share of every node in E (u's constant bias left out: it moves no minimiser)."""
        act = activation or (functional.softplus if self.activation == "softplus" else torch.relu)
        s, edges = self.state_width, context.edges
        weight, out, skip = context.message
        z = (state @ weight[:, :s].T).index_select(0, edges.target) + (
            state @ weight[:, s:].T
        ).index_select(0, edges.source)
        z = act(z + context.edge_hidden) * context.edge_gate
        hidden = z.new_zeros(len(state), z.shape[1]).index_add(0, edges.target, z)
        # The skip and the bias are linear, so they are summed over edges at node level.
        heard = (state @ skip[:, s:].T).index_select(0, edges.source)
        message = hidden @ out.T + context.count * (state @ skip[:, :s].T + context.message_bias)
        message = message.index_add(0, edges.target, heard)
        weight, out, skip = context.own
        z = act(state @ weight.T + context.own_hidden) * context.own_gate
        message = message + z @ out.T + state @ skip.T + context.own_bias
        weight, out, skip = context.update
        inputs = torch.cat([message, state], dim=1)
        z = act(inputs @ weight.T + context.update_hidden) * context.update_gate
        return (z @ out.T + inputs @ skip.T).squeeze(1) + self.beta / 2 * state.square().sum(1)

    def gradient_field(self, state: Tensor, context: EnergyContext) -> Tensor:
        """(n, s) the gradient of E; differentiable when grad mode is on."""
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            point = state if state.requires_grad and recorded else state.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(
                self.node_energies(point, context).sum(), point, create_graph=recorded
            )
        return gradient

    @torch.no_grad()
    def _field(self, context: EnergyContext) -> EnergyField:
        """E with its derivatives written out, for the two inner solves."""
        return EnergyField(_detached(context), self.beta, self.activation)

    @torch.no_grad()
    def _safe_step(self, context: EnergyContext) -> Tensor:
        """1 / (largest row sum of a matrix that bounds the Hessian), one value for each graph,
        spread over its nodes."""
        changes: dict[str, Any] = {
            entry.name: torch.zeros_like(getattr(context, entry.name))
            for entry in fields(context)
            if entry.name.endswith(("_hidden", "_bias"))
        }
        linear = _detached(replace(context, **changes))

        # phi' = 1 and phi'' = 1/4 at zero, where all pre-activations are
        def bounding(z: Tensor) -> Tensor:
            return z + z.square() / 8

        with torch.enable_grad():
            point = torch.zeros_like(context.start).requires_grad_()
            energy = self.node_energies(point, linear, bounding).sum()
            (gradient,) = torch.autograd.grad(energy, point, create_graph=True)
            (row_sums,) = torch.autograd.grad(gradient.sum(), point)
        bound = context.partition.max(row_sums.amax(1)) if len(row_sums) else row_sums.new_ones(1)
        return (1 / context.partition.column(bound.clamp(min=self.beta))).expand(
            len(context.start), 1
        )

    # ------------------------------------------------------------------ the contract

    def initial_state(self, context: EnergyContext) -> Tensor:
        """Zero."""
        return context.start

    def step(self, state: Tensor, context: EnergyContext) -> Tensor:
        """H - eta grad E(H)."""
        return state - context.step_size * self.gradient_field(state, context)

    def solve(self, context: EnergyContext, graph: Graph, **options: Any) -> Solution:
        """Minimise from ``initial_state`` in at most ``steps`` iterations.

        With a ``solver``, an ``adjoint`` or an observer the map is iterated instead.
        """
        if any(options.get(name) is not None for name in ("solver", "adjoint", "observe")):
            return super().solve(context, graph, **options)
        start, steps = options.get("initial_state"), options.get("steps")
        partition, field = context.partition, self._field(context)

        def energy(state: Tensor) -> tuple[Tensor, Tensor]:
            rows, gradient = field.evaluate(state)
            return partition.sum(rows), gradient

        initial = (self.initial_state(context) if start is None else start).detach()
        method = LBFGS(self.steps if steps is None else steps, self.tolerance)
        solution = method.minimise(energy, initial, partition=partition)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            self._attach(solution, context)
        return solution

    def _attach(self, solution: Solution, context: EnergyContext) -> None:
        value, report = solution.value, AdjointReport()
        solution.adjoint = report

        def solve_adjoint(cotangent: Tensor) -> Tensor:
            product = self._field(context).hessian(value.detach())
            tolerance = max(1e-6, 50 * torch.finfo(value.dtype).eps)
            backward = ConjugateGradients(500, tolerance).solve(
                product, cotangent, partition=context.partition
            )
            report.solution = backward
            warn_unsolved(backward)
            return backward.value

        solution.value = attach(value, value - self.gradient_field(value, context), solve_adjoint)


def _detached(context: EnergyContext) -> EnergyContext:
    """The same numbers without their history, so that inner derivatives do not reach the
    parameters."""

    def bare(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(part.detach() for part in value)
        return value.detach() if isinstance(value, Tensor) else value

    return replace(
        context, **{entry.name: bare(getattr(context, entry.name)) for entry in fields(context)}
    )
