"""What Theorem 23 gives for one cascade on one graph, in numbers: boxes, couplings, joint rate and
weights, proved step counts.

Given the level below, level l contracts Thompson's metric with r = m(beta). Let X_l be the largest
entries of level l in its invariant box K^l, D_l its Thompson diameter, and Lambda_l a Lipschitz
constant of  x -> T^l(x, z)  for x in K^{l-1}, z in K^l.

    joint rate     rho in (r, 1) in the Thompson metric with weights  w_1 = 1, w_l = max(1, Lambda_l
                   / (rho - r)) w_{l-1}
    steps          if level l - 1 stays within  e <= tol (1 - r) / (2 Lambda_l),  level l is within
                   tol after
                   1 + ceil(log(2 D_l / tol) / log(1/r))  more steps   (Theorem 23, "How many
                       steps")

Lambda_l is bounded link by link, for |d log x| <= 1 (norms are Euclidean, Frobenius or spectral;
every quantity is a bound over K):

    LayerNorm      |dz_v|   <= max|gamma| N_v,          N_v = sqrt(c) max(1, mean(X_v) / sqrt(eps))
    generator      |dA_e|   <= |M| (|S gamma| N_src + |T gamma| N_tgt)   (M: source or target half)
    maps           |dF_e|   <= |dA_e| / softening,      |F_e| <= 1
    sheaf          |dP_e|   <= w_e (|dF_src| + |dF_tgt|),   |dD_v| <= (2 / deg_v) sum |dF_tgt|,
                   |P_e| <= w_e,   |D_v| <= 1
    drive          |dB_v|   <= max_i |A_i gamma| N_v + |dD_v| Y + |dY_v| + sum (|dP_e| Y + w_e
                   |dY_u|),   Y = |W_3||W_4| max|z|
    gate           |dphi_v| <= s |W_1| (|dD_v| R_v + sum |dP_e| R_u),   R = max column norm of X
                   |W_2|,   s = sup |phi_p| + |phi_g|
    level          Lambda   =  max_v (|dB_v| + |dphi_v|) / (beta - 1)

The first line holds because  dx^ = (I - 11'/c - x^x^'/c) dx / sqrt(var + eps),  the matrix has norm
at most one, |dx|^2 <= |x|^2 = c (mean^2 + var), and (mean^2 + var) / (var + eps) <= max(1, mean^2 /
eps). All sums have nonnegative terms, so float64 rounding is relative; :data:`SLACK` exceeds it by
far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.collatz_wielandt import spectral_norm_bound
from sheafdeq.certificates.problem import Problem
from sheafdeq.diagnostics.eigenvalue import largest_eigenvalue
from sheafdeq.edges import Edges
from sheafdeq.layers.cascade_level import CascadeLevel, Sheaf
from sheafdeq.models.sheaf_cascade import MAP_SOFTENING, SheafCascade
from sheafdeq.ops.gated_step import block_product_reference

__all__ = ["Joint", "joint_bounds", "level_rates"]

SLACK = 1e-9
"""Relative; the sums here have fewer than 10^6 terms, so their rounding is below 10^6 2^-52 =
2.3e-10."""


@dataclass(frozen=True)
class Joint:
    """Proved for one cascade on one graph, in exact arithmetic."""

    level_rate: float  # r
    rate: float  # rho
    couplings: tuple[float, ...]  # Lambda_2 .. Lambda_L
    diameters: tuple[float, ...]  # D_1 .. D_L

    @property
    def digits(self) -> tuple[float, ...]:
        """log10 of the weights w_1 .. w_L, rounded up (the weights themselves may exceed the range
        of float64)."""
        total, result = 0.0, [0.0]
        for coupling in self.couplings:
            digits = (
                math.log10(coupling) - math.log10(self.rate - self.level_rate) if coupling else 0.0
            )
            total += max(0.0, digits + 1e-9) if coupling else 0.0
            result.append(total)
        return tuple(result)

    def steps(self, tolerance: float) -> tuple[int, ...]:
        """Joint steps from any positive start after which levels 1 .. l stay within ``tolerance``
        of the equilibrium (Thompson)."""
        if not tolerance > 0:
            raise ValueError(f"the tolerance must be positive, got {tolerance!r}")
        # logarithms: tolerances of low levels leave the range of float64
        wanted = [math.log(tolerance)]
        for coupling in reversed(self.couplings):
            needed = (
                wanted[0] + math.log((1 - self.level_rate) / 2) - math.log(coupling)
                if coupling
                else math.inf
            )
            wanted.insert(0, min(math.log(tolerance), needed))
        total, result = 0, []
        for log_tolerance, diameter in zip(wanted, self.diameters, strict=True):
            contractions = (
                (math.log(2 * diameter) - log_tolerance) / -math.log(self.level_rate) * (1 + 1e-9)
            )
            total += 1 + max(0, math.ceil(contractions))
            result.append(total)
        return tuple(result)

    def facts(self, tolerance: float = 1e-6) -> dict[str, Any]:
        """For a certificate's ``proved``."""
        levels = len(self.diameters)
        facts: dict[str, Any] = {
            "levels": levels,
            "rate of each level given the one below": self.level_rate,
            "boxes": f"level l is in its box after l joint steps, {levels} in all; with views of "
            "age below B, after l (2B - 1) slots",
            f"steps of each level to {tolerance:g}, the level below at rest": max(
                1 + max(0, math.ceil(math.log(d / tolerance) / -math.log(self.level_rate)))
                for d in self.diameters
            ),
        }
        if levels > 1:
            facts |= {
                "joint rate": self.rate,
                "log10 of the joint metric's weights, by level": [
                    round(digit, 1) for digit in self.digits
                ],
                "coupling bounds Lambda, by level": list(self.couplings),
                f"joint steps to {tolerance:g} from every positive start": self.steps(tolerance)[
                    -1
                ],
            }
            if self.digits[-1] > 6:
                facts["note"] = (
                    f"the weights span {self.digits[-1]:.0f} orders of magnitude, so the joint "
                    "rate bounds no practical "
                    "transient; the number of steps does, and what is measured is far smaller"
                )
        return facts


@torch.no_grad()
def joint_bounds(model: SheafCascade, context: Any, rate: float | None = None) -> Joint | None:
    """Bounds for one graph; ``rate`` is rho (default half way from r to 1).

    None for a gate whose slope is not known, and where the bounds exceed the range of float64: the
    rate of every level holds all the same (it does not depend on the weights), but there is no
    number of steps.
    """
    if model.gate.slope is None:
        return None
    level_rate = model.level_rate
    rho = 0.5 * (1.0 + level_rate) if rate is None else float(rate)
    if not level_rate < rho < 1:
        raise ValueError(f"the joint rate must lie between {level_rate:.6g} and 1, got {rate!r}")
    upper = (context.first_drive + model.shift + 1) * (1 + SLACK)  # (n, c) X_1
    couplings, diameters = [], [_diameter(upper, model.shift)]
    for level in range(1, model.levels):
        module = model._level(level)
        group = 0 if model.tied else level
        c = model.width
        sizes = _Sizes(module, context.edges, model.stalk_dim)
        drive = sizes.drive(context.node_drive[:, group * c : (group + 1) * c])
        above = (drive + model.shift + 1) * (1 + SLACK)
        couplings.append(_coupling(model, sizes, upper, above))
        diameters.append(_diameter(above, model.shift))
        upper = above
    if not all(math.isfinite(number) for number in (*couplings, *diameters)):
        return None
    return Joint(level_rate, rho, tuple(couplings), tuple(diameters))


def _diameter(upper: Tensor, shift: float) -> float:
    """log(X / (beta - 1)), the Thompson diameter of a box."""
    if not upper.numel():
        return 0.0
    ratio = float(upper.max()) / (shift - 1.0)
    return math.log(ratio) * (1 + SLACK) + SLACK if math.isfinite(ratio) else math.inf


class _Sizes:
    """Norms of one level's weights, and the bounds that need nothing else."""

    def __init__(self, module: CascadeLevel, edges: Edges, stalk_dim: int) -> None:
        self.module, self.edges, self.stalk_dim = module, edges, stalk_dim
        width = module.norm.weight.shape[0]
        self.scale = float(module.norm.weight.abs().max())
        # |z_v| <= max|gamma| sqrt(c) + |bias|, whatever the state.
        self.rows = self.scale * math.sqrt(width) + float(
            torch.linalg.vector_norm(module.norm.bias)
        )
        self.message = _norm(module.message_stalk) * _norm(module.message_channel)
        self.arriving = self.sum_of(edges.weight)  # (n,) sum of w_e

    def sum_of(self, values: Tensor) -> Tensor:
        """(e,) -> (n,) sums over the edges into every node."""
        return values.new_zeros(self.edges.num_targets).index_add(0, self.edges.target, values)

    def drive(self, features: Tensor) -> Tensor:
        """(n, c) upper bounds of B over all states of the level below."""
        own = (
            torch.linalg.vector_norm(self.module.own.weight, dim=1) * self.rows
            + self.module.own.bias.abs()
        )
        spread = self.message * self.rows * (1.0 + self.arriving)
        result: Tensor = (own + features + spread[:, None]).clamp(min=0) + SLACK * (
            own + features.abs() + spread[:, None]
        )
        return result


def _coupling(model: SheafCascade, sizes: _Sizes, below: Tensor, above: Tensor) -> float:
    """Lambda of one level: ``below`` and ``above`` (n, c) are the largest states of the level below
    and of the level."""
    module, edges, d = sizes.module, sizes.edges, sizes.stalk_dim
    n, c = below.shape
    if n == 0:
        return 0.0
    gamma = module.norm.weight
    normal = math.sqrt(c) * (below.mean(1) / math.sqrt(module.norm.eps)).clamp(min=1.0)  # (n,) N_v
    source, target = edges.source, edges.target
    hidden = (
        _norm(module.source.weight * gamma) * normal[source]
        + _norm(module.target.weight * gamma) * normal[target]
    )
    source_half, target_half = module.maps.weight[: d * d], module.maps.weight[d * d :]
    source_maps = _norm(source_half) / MAP_SOFTENING * hidden  # (e,) |dF_src|
    target_maps = _norm(target_half) / MAP_SOFTENING * hidden
    blocks = edges.weight * (source_maps + target_maps)  # |dP_e|
    diagonal = 2.0 * sizes.sum_of(target_maps) / edges.degree  # |dD_v|
    moved = sizes.sum_of(blocks)
    messages = sizes.message * sizes.scale * normal  # |dY_v|
    own = float(torch.linalg.vector_norm(module.own.weight * gamma, dim=1).max()) * normal
    drive = own + (diagonal + moved) * (sizes.message * sizes.rows) + messages
    drive = drive + sizes.sum_of(edges.weight * messages[source])
    states = above.view(n, d, model.channels) @ module.channel_mixing.abs()
    reach = torch.linalg.vector_norm(states, dim=1).amax(1)  # (n,) R_v
    assert model.gate.slope is not None
    gate = (
        model.gate.slope
        * _norm(module.stalk_mixing)
        * (diagonal * reach + sizes.sum_of(blocks * reach[source]))
    )
    return float((drive + gate).max()) / (model.shift - 1.0) * (1 + SLACK)


def _norm(matrix: Tensor) -> float:
    """A proved upper bound of the spectral norm of any matrix."""
    side = max(matrix.shape)
    square = matrix.new_zeros(1, side, side)
    square[0, : matrix.shape[0], : matrix.shape[1]] = matrix
    return float(spectral_norm_bound(square)[0]) * (1 + SLACK)


# ---------------------------------------------------------------------- measured at the equilibrium


@torch.no_grad()
def level_rates(problem: Problem, state: Tensor, directions: int = 4) -> dict[str, Any]:
    """Rates of every level at ``state`` (n, L c), in log coordinates.

    With the level below held, the propagation has fixed coefficients, and row i of |J| sums to
    (|phi_a| y+ + |phi_b| y-) / T_i: no Jacobian is formed. The joint J is block triangular, so its
    spectral radius is the largest of the levels'. Couplings are what random signs of size 1e-4 on
    the level below do to a level, so they are lower bounds.
    """
    model, context = problem.model, problem.context
    assert isinstance(model, SheafCascade)
    edges, c = context.edges, model.width
    generator = torch.Generator().manual_seed(problem.seed)
    rates, couplings, radius = [], [], 0.0
    for level in range(model.levels):
        below = state[:, (level - 1) * c : level * c].contiguous() if level else None
        own = state[:, level * c : (level + 1) * c].contiguous()
        sheaf = model.sheaf(level, below, context)
        row, operator = _log_operator(model, model._level(level), sheaf, own, edges)
        rates.append(float(row.max()) if row.numel() else 0.0)
        found = largest_eigenvalue(operator, own.shape, tolerance=1e-4, max_restarts=300)
        radius = max(radius, found.radius)
        if below is not None:
            image = model.level_map(level, sheaf, context)(own)
            moved = []
            for _ in range(directions):
                signs = torch.randint(0, 2, below.shape, generator=generator) * 2.0 - 1.0
                other = model.sheaf(level, below * (1e-4 * signs).exp(), context)
                moved.append(
                    float((model.level_map(level, other, context)(own) / image).log().abs().max())
                    / 1e-4
                )
            couplings.append(max(moved))
    return {
        "largest row sum of |J| of a level, by level": rates,
        "couplings to the level below, by level (at least)": couplings,
        "Perron root of |J|, upper": max(rates),  # of the joint map too: |J| is block triangular
        "spectral radius of J (estimate)": radius,
    }


def _log_operator(
    model: SheafCascade, module: CascadeLevel, sheaf: Sheaf, state: Tensor, edges: Edges
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(n, c) row sums of |J| and the product v -> J v of one level at ``state``, its sheaf held, in
    log coordinates."""
    d, q = model.stalk_dim, model.channels
    entries = (sheaf.blocks @ module.stalk_mixing, sheaf.diagonal @ module.stalk_mixing)
    sizes = (entries[0].abs(), entries[1].abs())
    mixing, mixing_sizes = module.channel_mixing, module.channel_mixing.abs()

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.view(-1, d, q)
        p = block_product_reference(*entries, h @ mixing, edges)
        g = block_product_reference(*sizes, h @ mixing_sizes, edges)
        return p.reshape(x.shape), g.reshape(x.shape)

    with torch.enable_grad():
        p, g = (part.detach().requires_grad_() for part in both(state))
        value = model.gate.apply(p, g)
        by_p, by_g = torch.autograd.grad(value.sum(), (p, g))
    image = sheaf.drive + model.shift + value.detach()
    p, g = p.detach(), g.detach()
    rows = ((by_g + by_p).abs() * 0.5 * (g + p) + (by_g - by_p).abs() * 0.5 * (g - p)) / image

    def operator(v: Tensor) -> Tensor:
        dp, dg = both(state * v)
        return (by_p * dp + by_g * dg) / image

    return rows, operator
