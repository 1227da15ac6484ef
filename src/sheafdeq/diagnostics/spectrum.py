"""The Jacobian's spectral radius at the point an iteration reached: an estimate, never a
certificate.

J = dT/dH at H is only ever multiplied: J^T v by reverse differentiation of one step. Its
eigenvalues are those of J. Arnoldi iteration finds the largest in modulus; small Jacobians are
formed in full. Below 1 at a fixed point means that *synchronous* iteration attracts nearby states;
asynchronous iteration needs more (the spectral radius of the entrywise absolute values, see
``docs/theory.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.diagnostics.eigenvalue import largest_eigenvalue
from sheafdeq.diagnostics.measure import json_number
from sheafdeq.distances import RELATIVE_SUP
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["Spectrum", "spectral_radius"]


@dataclass(frozen=True)
class Spectrum:
    """An estimate of the spectral radius.

    ``method``: ``dense`` (all eigenvalues), ``arnoldi``, or ``power`` (growth of repeated products,
    when Arnoldi found nothing). ``converged`` False: the tolerance was not reached. ``residual``:
    relative update at the state, which should be small: away from a fixed point the Jacobian says
    little about the limit.
    """

    radius: float
    eigenvalue: complex | None
    method: str
    converged: bool
    products: int
    residual: float

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        value = self.eigenvalue
        return {
            "radius": json_number(self.radius),
            "eigenvalue": None
            if value is None
            else [json_number(value.real), json_number(value.imag)],
            "method": self.method,
            "kind": "estimate",
            "converged": self.converged,
            "products": self.products,
            "residual": json_number(self.residual),
        }


def spectral_radius(
    model: EquilibriumModel,
    graph: AnyGraph,
    state: Tensor,
    *,
    context: Any = None,
    tolerance: float = 1e-3,
    max_restarts: int = 60,
    seed: int = 0,
) -> Spectrum:
    """Estimate the spectral radius of dT/dH at ``state`` (n, c)."""
    if not bool(torch.isfinite(state).all()):
        raise InputError("the state holds NaN or infinity: there is no Jacobian to examine")
    state = state.detach()
    before = model.training
    model.eval()
    try:
        with torch.enable_grad():
            context = model.prepare(Graph.of(graph)) if context is None else context
            point = state.clone().requires_grad_()
            image = model.step(point, context)
            residual = float(RELATIVE_SUP(image.detach(), state).max()) if state.numel() else 0.0
            return _examine(point, image, residual, tolerance, max_restarts, seed)
    finally:
        model.train(before)


def _examine(
    point: Tensor, image: Tensor, residual: float, tolerance: float, max_restarts: int, seed: int
) -> Spectrum:
    if point.numel() == 0 or not image.requires_grad:
        return Spectrum(0.0, 0j, "dense", True, 0, residual)

    def transposed(vector: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(
            image, point, vector.to(point), retain_graph=True, allow_unused=True
        )
        return torch.zeros_like(vector) if gradient is None else gradient.double()

    found = largest_eigenvalue(
        transposed, point.shape, tolerance=tolerance, max_restarts=max_restarts, seed=seed
    )
    return Spectrum(
        found.radius, found.value, found.method, found.converged, found.products, residual
    )
