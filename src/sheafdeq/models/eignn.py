"""EIGNN: a linear equilibrium of infinite depth, solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.adjoints import Adjoint
from sheafdeq.adjoints.attachment import attach
from sheafdeq.data.graph import Graph
from sheafdeq.distances import SUP
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.layers.adjacency_spectrum import AdjacencySpectrum, spectrum_of
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.convolution_model import ConvolutionModel
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.layers.feature_encoder import EncodedWidth
from sheafdeq.recurrence import edge_field, node_field
from sheafdeq.solvers import Partition, Solution, Solver, Status
from sheafdeq.solvers.solution import AdjointReport

__all__ = ["EIGNN", "EignnContext"]

EPSILON_F = 1e-12
CLOSED_FORM_DISTANCE = "graph-relative-sup"
"""||f(H) - H||_inf / ||H||_inf over each whole graph: what a solution in closed form is judged
by."""


@dataclass(frozen=True, eq=False)
class EignnContext:
    """What stays constant during one solve."""

    edges: Edges
    mixing: Tensor  # (c, c) M(F)
    drive: Tensor = node_field()  # (n, c) B(X)
    own_weight: Tensor = node_field()  # (n,)
    edge_weight: Tensor = edge_field()  # (e,)
    readout_mask: Tensor | None = node_field(default=None)  # (n, c) dropout


class EIGNN(ConvolutionModel):
    r"""A linear fixed point with a positive semidefinite mixing matrix of norm below one.

    .. math::
        H^\star = \hat A H^\star M + B(X), \qquad
        M = \frac{\gamma F^\top F}{\|F^\top F\|_F + \varepsilon}, \qquad \hat Y = r(H^\star)

    With :math:`\hat A = Q \Lambda Q^\top` of each graph (computed once,
    :mod:`~sheafdeq.layers.adjacency_spectrum`) and
    :math:`M = P \Sigma P^\top` (every call), :math:`H^\star = Q [(Q^\top B P)_{ij} / (1 - \Lambda_i
    \Sigma_j)] P^\top`.
    :math:`|\Lambda| \le 1` and :math:`0 \le \Sigma \le \gamma < 1`, so the denominator is at least
    1 - gamma.

    Gradient: the adjoint :math:`U = \hat A U M + \partial L / \partial H^\star` is the same
    equation and is solved by the same
    decomposition; then dB = U and dM = (A H)^T U. This is the exact derivative. It equals autograd
    through ``eigh(M)``, which the paper uses, wherever that exists (a test); autograd divides by
    differences of eigenvalues and fails when two of them meet, which weight decay provokes.

    Liu et al., "EIGNN: Efficient Infinite-Depth Graph Neural Networks", NeurIPS 2021. The paper's
    form is followed: no self-loops, gamma fixed at 0.9. Deviations of the released code
    (liu-jc/EIGNN): self-loops, gamma 0.8, rows normalised and dropout 0.5 before a bias-free
    readout, the raw features (no B) or a bias-free linear B, and one decomposition of the whole
    data set. Options ``self_loops``, ``gamma`` and ``normalise`` give the first three. 2,643
    parameters at f = 3, c = 48, o = 3.

    The iteration is there too: asking for ``steps``, a ``solver``, an ``adjoint``, an
    ``initial_state`` or an observer iterates the map, so diagnostics and the asynchronous runtime
    work as for every other model. Directed graphs are iterated too (rows of D^{-1} A sum to at most
    one whatever the directions, so the iteration still contracts with rate gamma).

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        gamma: in (0, 1).
        self_loops: use the self-looped adjacency.
        normalise: scale rows of the equilibrium to unit length before the readout.
        max_nodes: largest single graph that is decomposed.
        steps: step limit when iterating.
        solver: used when iterating.
        gradient: used when iterating.
        options: ``encoder``, ``input_dropout`` and ``dropout``
            (:class:`~sheafdeq.layers.convolution_model.ConvolutionModel`).

    Shapes: x (n, f) -> (n, o). Edge features are ignored.
    """

    exportable = False

    def __init__(
        self,
        *sizes: int,
        gamma: float = 0.9,
        self_loops: bool = False,
        normalise: bool = False,
        max_nodes: int = 10_000,
        steps: int = 500,
        solver: str | Solver | None = None,
        gradient: str | Adjoint = "implicit",
        **options: Unpack[EncodedWidth],
    ) -> None:
        super().__init__(
            *sizes,
            steps=steps,
            tolerance=1e-6,
            normalise=normalise,
            solver=solver,
            gradient=gradient,
            **options,
        )
        checked_positive(max_nodes=max_nodes)
        if not 0.0 < float(gamma) < 1.0:
            raise InputError(f"gamma must be in (0, 1), got {gamma!r}")
        self.gamma, self.max_nodes = float(gamma), max_nodes
        self.self_loops = bool(self_loops)
        self.factor = nn.Parameter(torch.empty(self.width, self.width))  # F
        self.reset_parameters()

    def prepare(self, graph: Graph) -> EignnContext:
        """The drive, M(F) and the normalised adjacency."""
        gram = self.factor.T @ self.factor
        mixing = self.gamma * gram / (torch.linalg.matrix_norm(gram) + EPSILON_F)
        weights = gcn_weights(graph.edges, self_loops=self.self_loops)
        drive = self.inputs.first(self.drive, graph)
        return EignnContext(
            graph.edges,
            mixing,
            drive,
            weights.own,
            weights.edge,
            dropout_mask(drive, self.dropout, self.training),
        )

    def initial_state(self, context: EignnContext) -> Tensor:
        """The drive."""
        return context.drive

    def update(self, own: Tensor, table: Tensor, edges: Edges, context: EignnContext) -> Tensor:
        """A H M + B."""
        own_weight = context.own_weight if self.self_loops else None
        return (
            propagate(context.edge_weight, own_weight, own, table, edges) @ context.mixing
            + context.drive
        )

    def solve(self, context: EignnContext, graph: Graph, **options: Any) -> Solution:
        """The closed form; with any solver option, the iteration."""
        if any(value is not None for value in options.values()):
            return super().solve(context, graph, **options)
        spectrum = spectrum_of(graph, self_loops=self.self_loops, max_nodes=self.max_nodes)
        if spectrum is None:
            return super().solve(context, graph)
        with torch.no_grad():
            mixing = torch.linalg.eigh(context.mixing.detach())
            value = _solve_spectral(spectrum, mixing, context.drive.detach())
        image = self.step(value, context)
        solution = self._judged(value, image.detach(), graph)
        if image.requires_grad:
            report = AdjointReport()
            solution.adjoint = report

            def solve_adjoint(cotangent: Tensor) -> Tensor:
                # A and M are symmetric, so the adjoint equation U = A U M + G is the equation
                # itself with another drive.
                adjoint = _solve_spectral(spectrum, mixing, cotangent)
                with torch.no_grad():
                    again = self.step(adjoint, replace(context, drive=cotangent))
                report.solution = self._judged(adjoint, again, graph)
                return adjoint

            solution.value = attach(value, image, solve_adjoint)
        return solution

    @staticmethod
    def _judged(value: Tensor, image: Tensor, graph: Graph) -> Solution:
        """What the closed form achieved, measured by one evaluation of the map; the tolerance is
        what the precision allows.

        A direct solve spreads rounding over a whole graph, so the residual is compared with the
        graph's largest entry.
        """
        defect = SUP(image, value)
        partition = Partition(graph.graph_of_node, graph.num_graphs)
        scale = partition.max(SUP(value, torch.zeros_like(value)))
        residual = partition.max(defect)
        residual = torch.where(scale > 0, residual / scale, residual)
        tolerance = 1e3 * torch.finfo(value.dtype).eps
        status = tuple(
            Status.CONVERGED
            if r <= tolerance
            else (Status.STAGNATED if r < torch.inf else Status.NON_FINITE)
            for r in residual.tolist()
        )
        return Solution(
            value=value,
            status=Status.worst(status),
            steps=0,
            evaluations=1,
            residuals=[float(residual.max()) if len(residual) else 0.0],
            distance=CLOSED_FORM_DISTANCE,
            tolerance=tolerance,
            graph_status=status,
            graph_residual=residual,
            graph_steps=torch.zeros(graph.num_graphs, dtype=torch.int64),
        )


def _solve_spectral(spectrum: AdjacencySpectrum, mixing: Any, drive: Tensor) -> Tensor:
    """H = A H M + drive, graph by graph in the eigenbases."""
    values, vectors = mixing
    rotated = drive @ vectors
    result = torch.zeros_like(drive)
    for group in spectrum.groups:
        block = rotated[group.nodes]  # (g, m, c)
        coefficients = group.vectors.transpose(1, 2) @ block
        coefficients = coefficients / (1 - group.values.unsqueeze(2) * values)
        result[group.nodes] = group.vectors @ coefficients
    value: Tensor = result @ vectors.T
    return value
