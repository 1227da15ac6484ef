"""Try to catch a status or a gradient lying.

The problems are those of :mod:`.solve_problems`; the residual of the returned state is evaluated
again. What must hold:

* *converged* is said of a graph only if the exact residual of the state that was returned is within
  the stated tolerance plus the stated resolution of the precision (and what rounding of the map
  itself can hide);
* a backward solve that *converged* leaves each graph's gradient within ``GRADIENT_SLACK`` of its
  tolerance (or of what rounding leaves, eps / (1 - rate)), relative to that graph's own gradient,
  in a batch as alone; above the rate ``SLOW``, which no few products can measure, within one per
  cent;
* the unrolled gradient is that of the steps that were taken;
* an easy problem (rate at most one half, enough steps) is solved, forward and backward (but for
  Anderson on positive maps, whose mixing may leave the positive states; it says so).

``solver`` and ``adjoint`` put others in place of the drawn ones: the audit must reject wrong ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sheafdeq.adjoints import Adjoint, Implicit, Unrolled
from sheafdeq.certificates.solve_problems import KnownRows, SolveProblem, draw_solve
from sheafdeq.solvers import Anderson, Solution, Solver, Status

__all__ = ["SolveReport", "SolveViolation", "audit_solves"]

GRADIENT_SLACK = 20.0
"""The error of a converged gradient may be this many times its tolerance: what is judged is an
estimate in one norm."""
SLOW = 0.999
"""A rate beyond this cannot be measured in the few products a backward solve spends on it; then
only gross errors count."""
GROSS = 1e-2
"""... which are those above one per cent."""


@dataclass(frozen=True)
class SolveViolation:
    """A status or a gradient and what contradicts it."""

    draw: int
    graph: str
    claim: str
    observed: str


@dataclass
class SolveReport:
    """Counts of statuses, the tightest observations, and every violation."""

    draws: int = 0
    graphs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    tightest_residual: float = 0.0  # exact residual / what was promised, of converged graphs
    # error / what is allowed, of graphs whose backward solve converged
    tightest_gradient: float = 0.0
    violations: list[SolveViolation] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.statuses.items()))
        return (
            f"{self.draws} draws, {self.graphs} graphs: {len(self.violations)} false statuses or "
            f"gradients; {counts}; largest exact "
            f"residual {self.tightest_residual:.3f} of the promise, largest gradient error "
            f"{self.tightest_gradient:.3f} of what is allowed"
        )


def audit_solves(
    draws: int,
    *,
    seed: int = 0,
    first: int = 0,
    solver: Callable[[Solver], Solver] | None = None,
    adjoint: Callable[[Adjoint], Adjoint] | None = None,
    progress: Callable[[int, SolveReport], None] | None = None,
) -> SolveReport:
    """Solve ``draws`` problems, numbered from ``first``; ``solver`` and ``adjoint`` replace the
    drawn ones (to break them)."""
    report = SolveReport()
    for number in range(first, first + draws):
        problem = draw_solve(number, seed)
        chosen = problem.solver if solver is None else solver(problem.solver)
        rule = problem.adjoint if adjoint is None else adjoint(problem.adjoint)
        report.draws += 1
        report.graphs += len(problem.graphs)
        solution, gradient = problem.run(chosen, rule)
        for g, found in _contradictions(problem, solution, gradient, report, chosen, rule):
            rows = problem.graphs[g]
            graph = (
                f"graph {g} ({rows.kind}, {str(problem.dtype).removeprefix('torch.')}, rate "
                f"{rows.rate:.9g})"
            )
            report.violations.append(SolveViolation(number, graph, *found))
        if progress is not None:
            progress(number, report)
    return report


def _contradictions(
    problem: SolveProblem,
    solution: Solution,
    gradient: Tensor,
    report: SolveReport,
    solver: Solver,
    adjoint: Adjoint,
) -> list[tuple[int, tuple[str, str]]]:
    """(graph, (claim, observed)) for everything that is not so."""
    found: list[tuple[int, tuple[str, str]]] = []
    eps = float(torch.finfo(problem.dtype).eps)
    backward = solution.backward
    gradients = problem.parts(gradient)
    for g, (rows, z) in enumerate(
        zip(problem.graphs, problem.parts(solution.value.detach()), strict=True)
    ):
        status = solution.graph_status[g]
        report.statuses[f"forward {status}"] += 1
        if status is Status.CONVERGED:
            assert solution.tolerance is not None
            exact, slack = rows.residual(z, solution.distance, eps)
            promise = solution.tolerance + getattr(solution, "resolution", 0.0)
            report.tightest_residual = max(report.tightest_residual, (exact - slack) / promise)
            if not exact <= promise * (1 + 1e-6) + slack:
                found.append(
                    (
                        g,
                        (
                            f"{solution.distance} residual within {promise:.3g}",
                            f"exactly {exact:.3g} at the returned state",
                        ),
                    )
                )
        elif rows.easy and not (
            rows.kind == "logarithmic" and isinstance(solver, Anderson)
        ):  # mixing may leave the positive states
            found.append((g, (str(status), "a problem of rate one half with 2000 steps")))
        if isinstance(adjoint, Unrolled):
            found += [(g, item) for item in _unrolled(rows, gradients[g], solver, eps)]
        elif backward is not None:
            found += [
                (g, item)
                for item in _implicit(rows, z, gradients[g], backward, g, adjoint, eps, report)
            ]
    if backward is not None and len(problem.graphs) > 1:
        found += _alone(problem, solution, gradients, solver, adjoint, eps)
    return found


def _allowed(rows: KnownRows, adjoint: Adjoint, eps: float) -> float:
    """The relative error a converged gradient may have: its tolerance, or what rounding leaves at
    this rate."""
    rate = min(rows.rate, 1.0)
    rounding = min(1e-3, 64 * eps / max(1.0 - rate, 64 * eps))
    asked = adjoint.solver.tolerance if isinstance(adjoint, Implicit) else None
    allowed = GRADIENT_SLACK * max(asked or 0.0, rounding)
    return max(allowed, GROSS) if rate > SLOW else allowed


def _implicit(
    rows: KnownRows,
    z: Tensor,
    gradient: Tensor,
    backward: Solution,
    g: int,
    adjoint: Adjoint,
    eps: float,
    report: SolveReport,
) -> list[tuple[str, str]]:
    status = backward.graph_status[g]
    report.statuses[f"backward {status}"] += 1
    inside = torch.isfinite(z) & ((z > 0) | (rows.kind != "logarithmic"))
    if rows.rate >= 1.0 or not bool(inside.all()):
        # no equilibrium is reached, and the implicit gradient is that of a linear system all the
        # same
        return []
    exact = rows.adjoint(z)
    size = float(exact.abs().max())
    error = float((gradient.double() - exact).abs().max()) / size if size > 0 else 0.0
    if status is not Status.CONVERGED:
        return (
            [(f"backward {status}", "a problem of rate one half with 2000 steps")]
            if rows.easy
            else []
        )
    allowed = _allowed(rows, adjoint, eps)
    report.tightest_gradient = max(report.tightest_gradient, error / allowed)
    if not error <= allowed:
        return [
            (
                f"backward converged, so within {allowed:.3g}",
                f"the gradient is off by {error:.3g} of its size",
            )
        ]
    return []


def _unrolled(
    rows: KnownRows, gradient: Tensor, solver: Solver, eps: float
) -> list[tuple[str, str]]:
    """For affine rows and plain Picard: g (1 - a^K) / (1 - a)."""
    if (
        rows.kind != "affine"
        or getattr(solver, "damping", 1.0) not in (0.0, 1.0)
        or rows.rate >= 1.0
    ):
        return []
    powers = sum(rows.a**k for k in range(solver.steps))
    exact = rows.cotangent * powers
    error = float((gradient.double() - exact).abs().max()) / max(float(exact.abs().max()), 1e-300)
    return (
        [("the exact gradient of the steps", f"off by {error:.3g}")]
        if error > 64 * solver.steps * eps
        else []
    )


def _alone(
    problem: SolveProblem,
    solution: Solution,
    gradients: list[Tensor],
    solver: Solver,
    adjoint: Adjoint,
    eps: float,
) -> list[tuple[int, tuple[str, str]]]:
    """A graph whose backward solve converged in the batch and alone must have got one gradient."""
    assert solution.backward is not None
    found: list[tuple[int, tuple[str, str]]] = []
    for g, rows in enumerate(problem.graphs):
        if not solution.backward.graph_status[g].ok or rows.rate >= 1.0:
            continue
        single = SolveProblem((rows,), problem.dtype, solver, adjoint)
        alone, gradient = single.run(solver, adjoint)
        if (
            alone.backward is None
            or not alone.backward.converged
            or not (alone.converged and solution.graph_status[g].ok)
        ):
            continue
        size = max(float(gradient.abs().max()), 1e-300)
        gap = float((gradient.double() - gradients[g].double()).abs().max()) / size
        # Where the map is not affine the two linearise at states that differ by their residuals.
        allowed = 2 * _allowed(rows, adjoint, eps)
        if rows.kind in ("logarithmic", "tanh"):
            allowed += (
                4
                * ((solution.tolerance or 0.0) + getattr(solution, "resolution", 0.0))
                / max(1 - rows.rate, eps) ** 2
            )
        if not gap <= allowed:
            found.append(
                (g, ("the gradient it gets alone", f"off by {gap:.3g} of its size in the batch"))
            )
    return found
