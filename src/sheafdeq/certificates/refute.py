"""Search for a second equilibrium, and prove what is found (``docs/theory.md``, Proposition 30).

Starts: log-normal states of scales 1e-3 to 1e3, and random corners of the invariant box where there
is one. Each is iterated
(Picard, then damped Picard, then Anderson) and, on small problems, polished by Newton.

*Refuted* is said only of two fixed points that are proved to exist: each by a contraction ball
(Theorem 28) or by a Krawczyk test, with rounding enclosed, and the two regions disjoint. Small
residuals are no proof: near a bifurcation a residual of 1e-10 belongs to states 1e-3 away from the
only fixed point. Where no proof is at hand (a model without enclosures, or too many entries for
dense algebra) two states become *candidates* if their residuals are tiny and Newton's next step, an
estimate of how far the true fixed point is, is far shorter than their distance. A run that cycles
is an observation, and neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from sheafdeq.certificates.ball import weighted_residual
from sheafdeq.certificates.blocks import BlockMatrix
from sheafdeq.certificates.certificate import Metric, Witness
from sheafdeq.certificates.interval import EPSILON, scaled_up
from sheafdeq.certificates.jacobian import jacobian, log_jacobian
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.distances import THOMPSON, Distance
from sheafdeq.errors import InputError
from sheafdeq.recurrence import LocalRecurrence
from sheafdeq.solvers import Anderson, Picard

__all__ = [
    "DENSE_LIMIT",
    "JACOBIAN_LIMIT",
    "Settled",
    "newton",
    "newton_step",
    "prove_fixed_point",
    "random_starts",
    "search",
    "settle",
]

DENSE_LIMIT = 1200
"""Largest number of state entries for which dense linear algebra (Newton, Krawczyk) is used."""
RESIDUAL_LIMIT = 1e-9
"""A witness must have a residual below this."""
SEPARATION = 1e4
"""... and its distance to the other fixed point must exceed the residuals by this factor."""
CLEARLY_APART = 1e-3
"""Candidates that are not proved must be at least this far apart,"""
NEWTON_SHARE = 1e-2
"""... and Newton's next step from each must be at most this share of their distance."""
JACOBIAN_LIMIT = 2**31
"""Bytes the node and edge blocks of one Jacobian may take; beyond, nothing is computed from it."""


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


def random_starts(
    shape: tuple[int, int], count: int, seed: int, box: tuple[Tensor, Tensor] | None
) -> list[tuple[str, Tensor]]:
    """``count`` named positive starts: scales 1e-3, 1e3, 1, 1e-2, 1e2, ... and corners of ``box``,
    in turn."""
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
            # The same row at every node: communities of equal nodes agree only along such
            # directions.
            if len(starts) < count:
                starts.append(("equal corner", torch.where(side[:1].expand(shape), *box)))
    return starts


@torch.no_grad()
def settle(
    step: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    steps: int,
    distance: Distance = THOMPSON,
    name: str = "default",
) -> Settled:
    """Iterate to the limit of the precision: Picard, then damped Picard, then Anderson, each with a
    third of the steps."""
    state, used = start, 0
    best = Settled(start, float("inf"), 0, name)
    share = max(steps // 3, 1)
    common: dict[str, Any] = {"tolerance": 1e-13, "stop_early": True, "distance": distance}
    for solver in (
        Picard(steps=share, **common),
        Picard(steps=share, damping=0.5, **common),
        Anderson(steps=share, **common),
    ):
        solution = solver.solve(step, state)
        used += solution.steps
        value = solution.value
        if not bool(torch.isfinite(value).all()) or (
            distance is THOMPSON and not bool((value > 0).all())
        ):
            continue
        residual = float(distance(step(value), value).max()) if value.numel() else 0.0
        if residual < best.residual:
            best = Settled(value, residual, used, name)
        state = best.state
        if residual <= 1e-12:
            break
    return best


def newton(
    recurrence: LocalRecurrence, context: Any, settled: Settled, *, distance: Distance
) -> Settled:
    """Twelve steps of Newton's method from a settled state; keeps the better of the two (dense, for
    small problems)."""
    state, best = settled.state, settled
    size = state.numel()
    eye = torch.eye(size, dtype=state.dtype)
    for _ in range(12):
        image = recurrence.step(state, context).detach()
        matrix = jacobian(recurrence, state, context).to_dense()
        if not bool(torch.isfinite(matrix).all() and torch.isfinite(image).all()):
            break
        try:
            update = torch.linalg.lstsq(
                eye - matrix, (image - state).reshape(-1, 1)
            ).solution.view_as(state)
        except LinAlgError:
            break
        state = state + update
        if not bool(torch.isfinite(state).all()) or (
            distance is THOMPSON and not bool((state > 0).all())
        ):
            break
        residual = float(distance(recurrence.step(state, context).detach(), state).max())
        if residual < best.residual:
            best = Settled(state, residual, best.steps + 1, best.start)
        if residual <= 1e-14:
            break
    return best


def newton_step(
    recurrence: Any, context: Any, state: Tensor, *, distance: Distance = THOMPSON
) -> float | None:
    """Largest entry of Newton's next step from ``state``, in log coordinates for Thompson's metric:
    an ESTIMATE of the error.

    By dense algebra, or by GMRES on the node blocks. Infinite where the linear system is singular;
    None where it is too large to be stored or was not solved.
    """
    with torch.no_grad():
        image = recurrence.step(state, context)
    log = distance is THOMPSON
    defect = image.log() - state.log() if log else image - state
    if not bool(torch.isfinite(defect).all()):
        return None
    if hasattr(recurrence, "local_step") and getattr(context, "edges", None) is not None:
        if 8 * (len(state) + len(context.edges.source)) * state.shape[1] ** 2 > JACOBIAN_LIMIT:
            return None
        blocks = (
            log_jacobian(recurrence, state, context, image)
            if log
            else jacobian(recurrence, state, context)
        )
        if state.numel() > DENSE_LIMIT:
            return _size_by_gmres(blocks, defect)
        matrix = blocks.to_dense()
    elif state.numel() > DENSE_LIMIT:
        return None
    else:
        matrix = _dense_jacobian(recurrence, state, context)
        matrix = matrix * state.reshape(1, -1) / image.reshape(-1, 1) if log else matrix
    return _size_by_solving(matrix, defect)


def _dense_jacobian(recurrence: Any, state: Tensor, context: Any) -> Tensor:
    """(n c, n c) by reverse passes, for maps without node blocks."""
    point = state.detach().clone().requires_grad_()
    with torch.enable_grad():
        image = recurrence.step(point, context).reshape(-1)
        rows = [
            torch.autograd.grad(
                entry, point, retain_graph=True, allow_unused=True, materialize_grads=True
            )[0]
            for entry in image
        ]
    return torch.stack(rows).reshape(state.numel(), state.numel()).detach()


def _size_by_solving(matrix: Tensor, defect: Tensor) -> float | None:
    """Largest entry of (I - J)^{-1} d, dense."""
    if not bool(torch.isfinite(matrix).all()):
        return None
    try:
        size = float(
            torch.linalg.solve(
                torch.eye(len(matrix), dtype=matrix.dtype) - matrix, defect.reshape(-1)
            )
            .abs()
            .max()
        )
    except LinAlgError:
        return float("inf")
    return size if size == size else float("inf")


def _size_by_gmres(matrix: BlockMatrix, defect: Tensor) -> float | None:
    """Largest entry of (I - J)^{-1} d, to a hundredth."""
    if not bool(torch.isfinite(matrix.own).all() and torch.isfinite(matrix.edge).all()):
        return None

    def apply(x: np.ndarray) -> np.ndarray:
        vector = torch.from_numpy(np.ascontiguousarray(x)).view_as(defect)
        return (vector - matrix.apply(vector)).reshape(-1).numpy()

    unit = float(defect.abs().max()) or 1.0
    operator = LinearOperator((defect.numel(), defect.numel()), matvec=apply, dtype=np.float64)
    solution, failed = gmres(
        operator, (defect / unit).reshape(-1).numpy(), rtol=1e-2, restart=60, maxiter=4
    )
    return None if failed else float(np.abs(solution).max()) * unit


def prove_fixed_point(enclosure: SheafEnclosure, state: Tensor) -> tuple[float, str] | None:
    """A plain Thompson radius around ``state`` within which exactly one fixed point is proved to
    exist, and by what; or None."""
    try:
        return _prove_fixed_point(enclosure, state)
    except (
        ArithmeticError,
        InputError,
        LinAlgError,
    ):  # a box that cannot be represented proves nothing
        return None


def _prove_fixed_point(enclosure: SheafEnclosure, state: Tensor) -> tuple[float, str] | None:
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
    """Krawczyk's test for G(u) = u - log T(e^u) on |u - centre| <= R:  |C G(centre)| + |I - C G'| R
    < R proves one zero there.

    C is any matrix (here the inverse of the derivative at the centre in floating point); I - C G'
    is bounded by
    |I - C (I - M)| 1 + |C| (sup |J - M| 1), with M the midpoint of the enclosure of J.
    """
    ones = torch.ones_like(centre)
    size = centre.numel()
    eye = torch.eye(size, dtype=centre.dtype)
    at_centre = enclosure.over(centre, ones, keep_slopes=True)
    assert at_centre.slopes is not None
    try:
        inverse = torch.linalg.inv(
            eye - at_centre.slopes.scale(at_centre.gain.midpoint, ones).to_dense()
        )
    except LinAlgError:
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
    wobble = (
        enclosed.gain.upper * enclosed.spread
        + enclosed.gain.radius * size_of_slopes
        + 8 * EPSILON * rows * size_of_slopes
    )
    product = inverse @ (eye - matrix)
    rounding = (size + 8) * EPSILON * (inverse.abs() @ (eye + matrix.abs())).sum(1)
    contraction = (eye - product).abs().sum(1) + rounding + inverse.abs() @ wobble.view(-1)
    contraction = scaled_up(contraction, 4 * size)
    # No jump inside (the reach is then infinite): existence rests on continuity.
    proved = bool(torch.isfinite(enclosed.reach).all()) and bool(
        (scaled_up(offset + contraction * radius, 4) < radius).all()
    )
    return radius if proved else None


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
    """Iterate every start; returns a witness against uniqueness, and what each start did.

    The search ends with the first pair that is proved. Without a proof it goes on, and the
    candidates furthest apart are returned.
    """
    known = [reached] if reached.converged else []
    log: list[dict[str, Any]] = []
    measure = Metric("thompson" if distance is THOMPSON else "sup")
    candidates: Witness | None = None
    judge = _Judge(recurrence, context, enclosure, distance)

    def step(state: Tensor) -> Tensor:
        return recurrence.step(state, context)

    for name, start in starts:
        end = settle(step, start, steps=steps, distance=distance, name=name)
        if (
            start.numel() <= DENSE_LIMIT
            and hasattr(recurrence, "local_step")
            and 1e-13 < end.residual < 1e-2
        ):
            end = newton(recurrence, context, end, distance=distance)
        away = measure(end.state, reached.state)
        log.append({"start": name, "residual": end.residual, "distance": away, "steps": end.steps})
        if not end.converged:
            continue
        for other in known:
            gap = measure(end.state, other.state)
            if not gap > max(SEPARATION * (end.residual + other.residual), 1e-6):
                continue
            witness = judge.witness(other, end, gap)
            if witness is not None and witness.proved:
                return witness, log
            if witness is not None and (
                candidates is None or witness.distance > candidates.distance
            ):
                candidates = witness
        known.append(end)
    return candidates, log


class _Judge:
    """What two settled states are: two fixed points, two candidates, or nothing. Work on a state is
    done once."""

    def __init__(
        self, recurrence: Any, context: Any, enclosure: SheafEnclosure | None, distance: Distance
    ) -> None:
        self.recurrence, self.context, self.enclosure, self.distance = (
            recurrence,
            context,
            enclosure,
            distance,
        )
        self.proofs: dict[int, tuple[float, str] | None] = {}
        self.steps: dict[int, float | None] = {}

    def witness(self, first: Settled, second: Settled, gap: float) -> Witness | None:
        """``gap`` is the distance of the two."""
        residuals = (first.residual, second.residual)
        proofs = [self._proof(s) for s in (first, second)]
        if proofs[0] is not None and proofs[1] is not None:
            # rounding of the radii and of the logarithms
            if (proofs[0][0] + proofs[1][0]) * (1 + 1e-9) + 1e-12 < gap * (1 - 1e-9):
                method = " and ".join(sorted({proofs[0][1], proofs[1][1]}))
                return Witness(first.state, second.state, residuals, gap, True, method)
            return None  # the two proofs may speak of one fixed point
        if gap < CLEARLY_APART:
            return None
        steps = [self._step(s) for s in (first, second)]
        if steps[0] is None or steps[1] is None:
            method = "residuals at the limit of float64; Newton's next step could not be computed"
            return Witness(first.state, second.state, residuals, gap, False, method)
        if steps[0] + steps[1] > NEWTON_SHARE * gap:
            return None  # both may belong to one fixed point, far from either
        method = (
            f"residuals at the limit of float64; Newton's next steps are {steps[0]:.1g} and "
            f"{steps[1]:.1g} long"
        )
        return Witness(
            first.state, second.state, residuals, gap, False, method, (steps[0], steps[1])
        )

    def _proof(self, settled: Settled) -> tuple[float, str] | None:
        if self.enclosure is None:
            return None
        if id(settled) not in self.proofs:
            self.proofs[id(settled)] = prove_fixed_point(self.enclosure, settled.state)
        return self.proofs[id(settled)]

    def _step(self, settled: Settled) -> float | None:
        if id(settled) not in self.steps:
            self.steps[id(settled)] = newton_step(
                self.recurrence, self.context, settled.state, distance=self.distance
            )
        return self.steps[id(settled)]
