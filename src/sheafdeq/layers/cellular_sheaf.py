"""Cellular sheaves with given maps: coboundary, Laplacian, sections, diffusion, and soft consensus.

A sheaf on an undirected graph has one map F_{v <| e}: R^d -> R^d for every incidence of a node v
with an edge e. Edges are given once, as pairs (tail, head); the orientation only fixes signs of the
coboundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers.operator import SheafOperator
from sheafdeq.solvers import Picard, Solution

__all__ = ["CellularSheaf"]


@dataclass(frozen=True, eq=False)
class CellularSheaf:
    """``edges`` (2, m) undirected edges, each once; ``tail_maps`` and ``head_maps`` (m, d, d) their
    two incidence maps."""

    num_nodes: int
    edges: Tensor
    tail_maps: Tensor
    head_maps: Tensor

    def __post_init__(self) -> None:
        if self.edges.dim() != 2 or self.edges.shape[0] != 2:
            raise InputError(f"edges must have shape (2, m), got {tuple(self.edges.shape)}")
        m = self.edges.shape[1]
        for name, maps in (("tail_maps", self.tail_maps), ("head_maps", self.head_maps)):
            if maps.dim() != 3 or maps.shape[0] != m or maps.shape[1] != maps.shape[2]:
                raise InputError(f"{name} must have shape ({m}, d, d), got {tuple(maps.shape)}")
        if m and (int(self.edges.min()) < 0 or int(self.edges.max()) >= self.num_nodes):
            raise InputError(f"edges name nodes outside 0..{self.num_nodes - 1}")
        if bool((self.edges[0] == self.edges[1]).any()):
            raise InputError(
                "a cellular sheaf has no self-loops: both incidences of an edge "
                "would be the same node"
            )

    @property
    def stalk_dim(self) -> int:
        """The stalk dimension d."""
        return self.tail_maps.shape[1]

    @cached_property
    def graph(self) -> Graph:
        """Both stored directions of every edge (features are empty)."""
        index = torch.cat([self.edges, self.edges.flip(0)], dim=1)
        return Graph.build(
            torch.zeros(self.num_nodes, 0, dtype=self.tail_maps.dtype, device=self.edges.device),
            index,
        )

    @cached_property
    def operator(self) -> SheafOperator:
        """The scalar-degree-normalised propagation P = I - Delta, on stored edges."""
        order = self.graph.edge_order
        assert order is not None
        source = torch.cat([self.tail_maps, self.head_maps])[order]
        target = torch.cat([self.head_maps, self.tail_maps])[order]
        return SheafOperator.on(self.graph, source, target)

    @cached_property
    def coboundary(self) -> Tensor:
        """(m*d, n*d) dense delta: (delta h)_e = F_head h_head - F_tail h_tail."""
        m, d, n = self.edges.shape[1], self.stalk_dim, self.num_nodes
        blocks = self.tail_maps.new_zeros(m, n, d, d)
        rows = torch.arange(m, device=self.edges.device)
        blocks[rows, self.edges[0]] -= self.tail_maps
        blocks[rows, self.edges[1]] += self.head_maps
        return blocks.permute(0, 2, 1, 3).reshape(m * d, n * d)

    @property
    def laplacian(self) -> Tensor:
        """(n*d, n*d) dense L = delta^T delta: symmetric, positive semidefinite."""
        return self.coboundary.T @ self.coboundary

    @property
    def normalised_laplacian(self) -> Tensor:
        """(n*d, n*d) dense Delta = D^{-1/2} L D^{-1/2} with the scalar degrees (clamped to one)."""
        root = self.graph.degree.rsqrt().repeat_interleave(self.stalk_dim)
        return root[:, None] * self.laplacian * root[None, :]

    def global_sections(self, tolerance: float = 1e-9) -> Tensor:
        """(n*d, k) orthonormal basis of H^0 = ker L: assignments that agree in every edge stalk
        (hard consensus)."""
        values, vectors = torch.linalg.eigh(self.laplacian)
        result: Tensor = vectors[
            :, values <= tolerance * max(1.0, float(values.max()) if len(values) else 1.0)
        ]
        return result

    def harmonic_projection(self, values: Tensor, tolerance: float = 1e-9) -> Tensor:
        """(n*d, q) orthogonal projection onto ker Delta: where normalised sheaf diffusion ends."""
        eigenvalues, vectors = torch.linalg.eigh(self.normalised_laplacian)
        kernel = vectors[
            :,
            eigenvalues
            <= tolerance * max(1.0, float(eigenvalues.max()) if len(eigenvalues) else 1.0),
        ]
        result: Tensor = kernel @ (kernel.T @ values)
        return result

    def diffuse(self, values: Tensor, *, time: float) -> Tensor:
        """(n*d, q) exp(-time * Delta) values: continuous sheaf diffusion."""
        if time < 0:
            raise InputError(f"diffusion runs forward: time must be at least 0, got {time!r}")
        result: Tensor = torch.linalg.matrix_exp(-time * self.normalised_laplacian) @ values
        return result

    def diffuse_steps(
        self, values: Tensor, *, step_size: float, solver: Picard | None = None
    ) -> Solution:
        """Discrete diffusion H <- (I - step_size * Delta) H; converges iff step_size *
        lambda_max(Delta) < 2.

        ``values`` (n, d, q). Nothing is assumed: the returned solution says whether it settled.
        """
        solver = solver or Picard(steps=10_000, tolerance=1e-10, stop_early=True)
        n, d, q = values.shape

        def step(state: Tensor) -> Tensor:
            h = state.view(n, d, q)
            return (h - step_size * (h - self.operator.apply(h))).reshape(n, d * q)

        return solver.solve(step, values.reshape(n, d * q))

    def pagerank_steps(
        self, signal: Tensor, teleport: float, solver: Picard | None = None
    ) -> Solution:
        """h <- (1 - teleport) P h + teleport * signal, the personalised-PageRank recurrence on the
        sheaf.

        ``signal`` (n, d, q). P can have eigenvalues down to -1 and below for large maps, so
        convergence is reported, not assumed.
        """
        _checked_teleport(teleport)
        solver = solver or Picard(steps=10_000, tolerance=1e-10, stop_early=True)
        n, d, q = signal.shape

        def step(state: Tensor) -> Tensor:
            return (
                (1 - teleport) * self.operator.apply(state.view(n, d, q)) + teleport * signal
            ).reshape(n, d * q)

        return solver.solve(step, signal.reshape(n, d * q))

    def resolvent(self, signal: Tensor, teleport: float) -> Tensor:
        """(n, d, q) the limit [I + ((1 - teleport)/teleport) Delta]^{-1} signal: soft consensus, a
        low-pass filter.

        As teleport -> 0 it tends to the projection onto ker Delta (hard consensus); as teleport ->
        1, to the signal itself.
        """
        _checked_teleport(teleport)
        n, d, q = signal.shape
        delta = self.normalised_laplacian
        system = (
            torch.eye(n * d, dtype=delta.dtype, device=delta.device)
            + (1 - teleport) / teleport * delta
        )
        result: Tensor = torch.linalg.solve(system, signal.reshape(n * d, q)).view(n, d, q)
        return result


def _checked_teleport(teleport: float) -> None:
    if not 0 < teleport < 1:
        raise InputError(f"teleport must lie strictly between 0 and 1, got {teleport!r}")
