"""Search for a second equilibrium, and prove what is found (``docs/theory.md``, Proposition 30).

Starts: log-normal states of scales 1e-3 to 1e3, and random corners of the invariant box where there is one. Each is iterated
(Picard, then damped Picard, then Anderson) and, on small problems, polished by Newton. Two states count as different fixed points
only if each residual is tiny and their distance is far above what the residuals could explain. Where enclosures exist, existence
is then proved by a contraction ball around each, or by a Krawczyk test. A run that cycles is an observation, not a refutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.ball import weighted_residual
from sheafdeq.certificates.certificate import Metric, Witness
from sheafdeq.certificates.interval import EPSILON, scaled_up
from sheafdeq.certificates.jacobian import jacobian
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.distances import THOMPSON, Distance
from sheafdeq.recurrence import LocalRecurrence
from sheafdeq.solvers import Anderson, Picard

__all__ = ["DENSE_LIMIT", "Settled", "newton", "prove_fixed_point", "random_starts", "search", "settle"]

DENSE_LIMIT = 1200
"""Largest number of state entries for which dense linear algebra (Newton, Krawczyk) is used."""
RESIDUAL_LIMIT = 1e-9
"""A witness must have a residual below this."""
SEPARATION = 1e4
"""... and its distance to the other fixed point must exceed the residuals by this factor."""


@dataclass(frozen=True, eq=False)
class Settled:
    """Where an iteration ended."""

    state: Tensor
    residual: float
    steps: int
    start: str

    @property
    def converged(self) -> bool:
        """Whether the residual is small enough for a witness."""
        return self.residual <= RESIDUAL_LIMIT


def random_starts(shape: tuple[int, int], count: int, seed: int, box: tuple[Tensor, Tensor] | None) -> list[tuple[str, Tensor]]:
    """``count`` named positive starts: scales 1e-3, 1e3, 1, 1e-2, 1e2, ... and corners of ``box``, in turn."""
    generator = torch.Generator().manual_seed(seed)
    scales = [1e-3, 1e3, 1.0, 1e-2, 1e2, 1e-1, 1e1]
    starts: list[tuple[str, Tensor]] = []
    drawn = 0
    while len(starts) < count:
        scale = scales[drawn % len(scales)]
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        starts.append((f"scale {scale:g}", scale * noise.exp()))
        drawn += 1
        if box is not None and len(starts) < count:
            side = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.5
            starts.append(("corner", torch.where(side, *box)))
            # The same row at every node: communities of equal nodes agree only along such directions.
            if len(starts) < count:
                starts.append(("equal corner", torch.where(side[:1].expand(shape), *box)))
    return starts


@torch.no_grad()
def settle(
    step: Callable[[Tensor], Tensor], start: Tensor, *, steps: int, distance: Distance = THOMPSON, name: str = "default"
) -> Settled:
    """Iterate to the limit of the precision: Picard, then damped Picard, then Anderson, each with a third of the steps."""
    state, used = start, 0
    best = Settled(start, float("inf"), 0, name)
    share = max(steps // 3, 1)
    common: dict[str, Any] = {"tolerance": 1e-13, "stop_early": True, "distance": distance}
    for solver in (Picard(steps=share, **common), Picard(steps=share, damping=0.5, **common), Anderson(steps=share, **common)):
        solution = solver.solve(step, state)
        used += solution.steps
        value = solution.value
        if not bool(torch.isfinite(value).all()) or (distance is THOMPSON and not bool((value > 0).all())):
            continue
        residual = float(distance(step(value), value).max()) if value.numel() else 0.0
        if residual < best.residual:
            best = Settled(value, residual, used, name)
        state = best.state
        if residual <= 1e-12:
            break
    return best


def newton(
    recurrence: LocalRecurrence, context: Any, settled: Settled, *, steps: int = 12, distance: Distance = THOMPSON
) -> Settled:
    """Newton's method from a settled state; keeps the better of the two (dense, for small problems)."""
    state, best = settled.state, settled
    size = state.numel()
    eye = torch.eye(size, dtype=state.dtype)
    for _ in range(steps):
        image = recurrence.step(state, context).detach()
        matrix = jacobian(recurrence, state, context).to_dense()
        update = torch.linalg.lstsq(eye - matrix, (image - state).reshape(-1, 1)).solution.view_as(state)
        state = state + update
        if not bool(torch.isfinite(state).all()) or (distance is THOMPSON and not bool((state > 0).all())):
            break
        residual = float(distance(recurrence.step(state, context).detach(), state).max())
        if residual < best.residual:
            best = Settled(state, residual, best.steps + 1, best.start)
        if residual <= 1e-14:
            break
    return best


def prove_fixed_point(enclosure: SheafEnclosure, state: Tensor) -> tuple[float, str] | None:
    """A plain Thompson radius around ``state`` within which exactly one fixed point is proved to exist, and by what; or None."""
    ones = torch.ones_like(state)
    centre = state.log()
    at_centre = enclosure.over(centre, ones)
    residual = weighted_residual(at_centre, centre)
    if at_centre.rate < 1.0:
        radius = max(4.0 * residual / (1.0 - at_centre.rate), 1e-12)
        rate = enclosure.over(centre, ones, radius).rate if radius < 1.0 else float("inf")
        if rate < 1.0 and residual <= (1.0 - rate) * radius:
            return radius, "contraction ball, Theorem 28"
    if state.numel() > DENSE_LIMIT:
        return None
    for factor in (4.0, 100.0):
        proved = _krawczyk(enclosure, centre, factor)
        if proved is not None:
            return proved, "Krawczyk test"
    return None


def _krawczyk(enclosure: SheafEnclosure, centre: Tensor, factor: float) -> float | None:
    """Krawczyk's test for G(u) = u - log T(e^u) on |u - centre| <= R:  |C G(centre)| + |I - C G'| R < R proves one zero there.

    C is any matrix (here the inverse of the derivative at the centre in floating point); I - C G' is bounded by
    |I - C (I - M)| 1 + |C| (sup |J - M| 1), with M the midpoint of the enclosure of J.
    """
    ones = torch.ones_like(centre)
    size = centre.numel()
    eye = torch.eye(size, dtype=centre.dtype)
    at_centre = enclosure.over(centre, ones, keep_slopes=True)
    assert at_centre.slopes is not None
    try:
        inverse = torch.linalg.inv(eye - at_centre.slopes.scale(at_centre.gain.midpoint, ones).to_dense())
    except torch.linalg.LinAlgError:
        return None
    defect = at_centre.image_at_centre.log().midpoint - centre
    spread = at_centre.image_at_centre.log().radius + 4 * EPSILON * (centre.abs() + 1)
    offset = scaled_up(inverse.abs() @ (defect.abs() + spread).view(-1), 4 * size)
    radius = factor * float(offset.max()) + 1e-13
    if not radius < 1.0:  # far from any fixed point; boxes that wide prove nothing
        return None
    enclosed = enclosure.over(centre, ones, radius, keep_slopes=True)
    assert enclosed.slopes is not None
    rows = enclosed.gain.midpoint
    matrix = enclosed.slopes.scale(rows, ones).to_dense()
    size_of_slopes = enclosed.slopes.magnitude().apply(ones)
    wobble = enclosed.gain.upper * enclosed.spread + enclosed.gain.radius * size_of_slopes + 8 * EPSILON * rows * size_of_slopes
    product = inverse @ (eye - matrix)
    rounding = (size + 8) * EPSILON * (inverse.abs() @ (eye + matrix.abs())).sum(1)
    contraction = (eye - product).abs().sum(1) + rounding + inverse.abs() @ wobble.view(-1)
    contraction = scaled_up(contraction, 4 * size)
    return radius if bool((offset + contraction * radius < radius).all()) else None


def search(
    recurrence: LocalRecurrence | Any,
    context: Any,
    reached: Settled,
    *,
    starts: Sequence[tuple[str, Tensor]],
    steps: int,
    enclosure: SheafEnclosure | None = None,
    distance: Distance = THOMPSON,
) -> tuple[Witness | None, list[dict[str, Any]]]:
    """Iterate every start; returns the first witness against uniqueness, and what each start did."""
    known = [reached] if reached.converged else []
    log: list[dict[str, Any]] = []
    measure = Metric("thompson" if distance is THOMPSON else "sup")

    def step(state: Tensor) -> Tensor:
        return recurrence.step(state, context)

    for name, start in starts:
        end = settle(step, start, steps=steps, distance=distance, name=name)
        if start.numel() <= DENSE_LIMIT and hasattr(recurrence, "local_step") and 1e-13 < end.residual < 1e-2:
            end = newton(recurrence, context, end, distance=distance)
        away = measure(end.state, reached.state)
        log.append({"start": name, "residual": end.residual, "distance": away, "steps": end.steps})
        if not end.converged:
            continue
        for other in known:
            gap = measure(end.state, other.state)
            if gap > max(SEPARATION * (end.residual + other.residual), 1e-6):
                witness = _witness(other, end, gap, enclosure)
                if witness is not None:
                    return witness, log
        known.append(end)
    return None, log


def _witness(first: Settled, second: Settled, gap: float, enclosure: SheafEnclosure | None) -> Witness | None:
    residuals = (first.residual, second.residual)
    if enclosure is not None:
        proofs = [prove_fixed_point(enclosure, s.state) for s in (first, second)]
        if proofs[0] is not None and proofs[1] is not None:
            if proofs[0][0] + proofs[1][0] < gap * (1 - 1e-9):
                method = " and ".join(sorted({proofs[0][1], proofs[1][1]}))
                return Witness(first.state, second.state, residuals, gap, True, method)
            return None  # the two proofs may speak of one fixed point
    if gap < 1e-3:
        return None  # without a proof, only a clear separation counts
    return Witness(first.state, second.state, residuals, gap, False, "both residuals are at the limit of float64")


