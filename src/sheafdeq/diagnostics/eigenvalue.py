"""The largest eigenvalue of a linear map that is only ever multiplied: the package's one spectral
estimator.

It is an estimate, never a bound: diagnostics print it, certificates print it beside what they
prove.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs
from torch import Tensor

__all__ = ["Eigenvalue", "largest_eigenvalue"]

DENSE = 256
"""Maps up to this size are formed in full."""


@dataclass(frozen=True)
class Eigenvalue:
    """The eigenvalue of largest modulus, as far as it was found.

    ``method``: ``dense`` (all eigenvalues), ``arnoldi``, or ``power`` (growth of repeated products,
    when Arnoldi found nothing). ``converged`` False: the tolerance was not reached.
    """

    radius: float
    value: complex | None
    method: str
    converged: bool
    products: int


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor],
    shape: tuple[int, ...] | torch.Size,
    *,
    tolerance: float = 1e-3,
    max_restarts: int = 60,
    seed: int = 0,
) -> Eigenvalue:
    """Of a real linear map (or its transpose) of float64 tensors of ``shape``."""
    size = math.prod(shape)
    if size == 0:
        return Eigenvalue(0.0, 0j, "dense", True, 0)
    products = 0

    def multiplied(vector: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        image = apply(torch.from_numpy(np.ascontiguousarray(vector.ravel())).view(shape))
        return image.reshape(-1).numpy()

    if size <= DENSE:
        values = np.linalg.eigvals(np.stack([multiplied(row) for row in np.eye(size)]))
        value = complex(values[np.abs(values).argmax()])
        return Eigenvalue(abs(value), value, "dense", True, products)
    operator = LinearOperator((size, size), matvec=multiplied, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(size)
    converged = True
    try:
        values = eigs(
            operator,
            k=1,
            which="LM",
            tol=tolerance,
            maxiter=max_restarts,
            v0=start,
            return_eigenvectors=False,
        )
    except ArpackError as error:
        # No convergence, or a map so degenerate (zero, nilpotent) that the iteration cannot start.
        values, converged = getattr(error, "eigenvalues", np.empty(0)), False
    if len(values):
        value = complex(values[np.abs(values).argmax()])
        return Eigenvalue(abs(value), value, "arnoldi", converged, products)
    vector, growth = start / np.linalg.norm(start), 0.0
    for _ in range(50):
        vector = multiplied(vector)
        growth = float(np.linalg.norm(vector))
        if growth == 0:
            break
        vector = vector / growth
    return Eigenvalue(growth, None, "power", growth == 0, products)
