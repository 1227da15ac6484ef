"""Perron roots of nonnegative matrices, bounded from both sides (``docs/theory.md``, Theorem 27).

For A >= 0 and any w > 0,   min_i (A w)_i / w_i <= rho(A) <= max_i (A w)_i / w_i.

Power iteration only proposes w; the bounds are evaluated afterwards and rounded outward, so a poor
proposal costs tightness, never truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.interval import EPSILON, TINY, scaled_up
from sheafdeq.diagnostics.eigenvalue import largest_eigenvalue

__all__ = [
    "PerronBounds",
    "block_norms",
    "collatz_wielandt",
    "damped_weights",
    "spectral_norm_bound",
    "spectral_radius_estimate",
]


@dataclass(frozen=True, eq=False)
class PerronBounds:
    """lower <= rho(A) <= upper, and the weights that attain the upper bound."""

    lower: float
    upper: float
    weights: Tensor  # (n, c), positive


def quotients(matrix: BlockMatrix, weights: Tensor) -> Tensor:
    """(n, c) upper bounds of (A w)_i / w_i."""
    return scaled_up(matrix.apply(weights), matrix.terms) / weights * (1 + 4 * EPSILON)


def collatz_wielandt(
    matrix: BlockMatrix, *, iterations: int = 300, tolerance: float = 1e-3
) -> PerronBounds:
    """Bounds of the Perron root of a nonnegative block matrix.

    Proposals: power iteration on A + s I (the shift breaks cycles of bipartite graphs) with a small
    floor (the graph may be
    disconnected). Stops when the two bounds agree to ``tolerance`` or the upper one stops
    improving.
    """
    if matrix.own.numel() == 0:
        return PerronBounds(0.0, 0.0, matrix.own.new_ones(matrix.own.shape[:2]))
    weights = matrix.own.new_ones(matrix.own.shape[:2])
    if not bool(torch.isfinite(matrix.apply(weights)).all()):
        return PerronBounds(0.0, float("inf"), weights)
    best, best_weights, lower, stale = float("inf"), weights, 0.0, 0
    for _ in range(iterations):
        image = matrix.apply(weights)
        upper = float((scaled_up(image, matrix.terms) / weights * (1 + 4 * EPSILON)).max())
        stale = 0 if upper < best * (1 - 1e-4) else stale + 1
        if upper < best:
            best, best_weights = upper, weights
        # A vector with zeros gives a lower bound too, over the entries where it is positive: parts
        # of small weight are left out.
        support = weights >= 1e-3 * weights.max()
        partial = matrix.apply(torch.where(support, weights, torch.zeros_like(weights)))
        shrunk = (
            partial[support]
            * (1 - (matrix.terms + 4) * EPSILON)
            / weights[support]
            * (1 - 4 * EPSILON)
        )
        lower = max(lower, float(shrunk.min()))
        if best <= lower * (1 + tolerance) or stale >= 40 or float(image.max()) < 1e-200:
            break
        proposal = image + 0.25 * float(image.max()) / float(weights.max()) * weights
        weights = proposal / proposal.max() + 1e-9
    return PerronBounds(lower, best, best_weights / best_weights.min())


def damped_weights(matrix: BlockMatrix, rate: float, *, iterations: int = 400) -> Tensor:
    """w = (I - A/s)^{-1} 1 with s = ``rate`` above the Perron root: then (A w)_i <= s w_i and w >=
    1.

    Less extreme than the Perron vector, so the ball {|u_i| <= R w_i} is rounder. A proposal;
    nothing is proved here.
    """
    weights = torch.ones_like(matrix.own[..., 0])
    for _ in range(iterations):
        following = 1.0 + matrix.apply(weights) / rate
        if float(((following - weights) / following).abs().max()) < 1e-6:
            break
        weights = following
    return weights / weights.min()


def spectral_norm_bound(blocks: Tensor, *, at_once: int = 2048) -> Tensor:
    """(k, c, c) -> (k,) upper bounds of the spectral norms.

    With G = M^T M, V from an eigendecomposition of G in floating point (any invertible V would do)
    and x = V y, x^T G x / x^T x <= gershgorin_max(V^T G V) / gershgorin_min(V^T V): an a posteriori
    bound, rounding included. Each block is first divided by a power of two near its largest entry
    (exact but for underflow, which is added back), so that no square overflows; a block with an
    entry that is not finite has no bound but infinity.
    """
    k, c = blocks.shape[0], blocks.shape[-1]
    bounds = blocks.new_zeros(k)
    slack = (4 * c + 32) * EPSILON
    for start in range(0, k, at_once):
        part = blocks[start : start + at_once]
        largest = part.abs().amax((1, 2))
        finite = torch.isfinite(largest)
        unit = torch.where(
            finite & (largest > 0),
            torch.exp2(largest.log2().floor().clamp(min=-1000.0, max=1000.0)),
            1.0,
        )
        part = torch.where(finite[:, None, None], part / unit[:, None, None], 0.0)
        gram = part.transpose(1, 2) @ part
        basis = torch.linalg.eigh(gram).eigenvectors
        rotated = basis.transpose(1, 2) @ gram @ basis
        size = basis.abs().transpose(1, 2) @ (part.abs().transpose(1, 2) @ part.abs()) @ basis.abs()
        top = (
            rotated.diagonal(dim1=1, dim2=2) + _off_diagonal(rotated) + slack * size.sum(2)
        ).amax(1)
        identity = basis.transpose(1, 2) @ basis
        bottom = (identity.diagonal(dim1=1, dim2=2) - _off_diagonal(identity) - slack * c).amin(1)
        bound = ((top.clamp(min=0) / bottom).sqrt() * (1 + 8 * EPSILON) + c * TINY) * unit
        bounds[start : start + at_once] = torch.where(finite, bound, torch.inf)
    return bounds


def _off_diagonal(matrices: Tensor) -> Tensor:
    return matrices.abs().sum(2) - matrices.diagonal(dim1=1, dim2=2).abs()


def block_norms(matrix: BlockMatrix, norm: str, weights: Tensor | None = None) -> BlockMatrix:
    """Norms of all node blocks as a matrix with 1 x 1 blocks; its Perron root bounds the rate of
    node-wise updates (27c).

    ``norm``: ``"inf"`` (largest row sum) or ``"two"`` (spectral). ``weights`` (n, c) rescale the
    entries of every node first.
    """
    if weights is not None:
        matrix = matrix.scale(weights.reciprocal(), weights)
    if norm == "two":
        own, edge = spectral_norm_bound(matrix.own), spectral_norm_bound(matrix.edge)
    else:
        own, edge = (
            scaled_up(b.abs().sum(2), matrix.width).amax(1) for b in (matrix.own, matrix.edge)
        )
    return BlockMatrix(matrix.edges, own.view(-1, 1, 1), edge.view(-1, 1, 1))


def spectral_radius_estimate(matrix: BlockMatrix) -> float:
    """An ESTIMATE of the largest |eigenvalue| of J: it never enters a certificate."""
    if not bool(torch.isfinite(matrix.own).all() and torch.isfinite(matrix.edge).all()):
        return float("nan")
    found = largest_eigenvalue(matrix.apply, matrix.own.shape[:2], tolerance=1e-4, max_restarts=300)
    return found.radius
