"""Try to catch a status or a gradient lying: fixed-point problems whose residuals and gradients are
known exactly.

A draw is a batch of one to four graphs. Every row of a graph follows one of these maps, with
numbers of its own:

    affine       z <- a z + b   a from -1 to 1 - 1e-9, or beyond: expanding, cycling
    rotation     (x, y) <- s R(t) (x, y) + b      complex eigenvalues
    triangular   (x, y) <- [[a, k], [0, a]] (x, y) + b   not normal: a power of it grows before it
                 shrinks; |a| <= 0.9
    logarithmic  z <- exp(a log z + b)            affine in log coordinates, positive
    tanh         z <- c tanh(z) + b

The residual of the returned state is evaluated again, in rational arithmetic where the map is
rational, in float64 beside float32, and the gradient of <g, z> with respect to b has a closed form
at any state. Drives and cotangents of the graphs differ by up to twelve orders of magnitude. What
must hold:

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

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints import Adjoint, Implicit, Unrolled
from sheafdeq.distances import RELATIVE_SUP, SUP, THOMPSON, Distance
from sheafdeq.errors import BackwardWarning
from sheafdeq.solvers import Anderson, Picard, Solution, Solver, Status

__all__ = ["KINDS", "SolveProblem", "SolveReport", "SolveViolation", "audit_solves", "draw_solve"]

GRADIENT_SLACK = 20.0
"""The error of a converged gradient may be this many times its tolerance: what is judged is an
estimate in one norm."""
SLOW = 0.999
"""A rate beyond this cannot be measured in the few products a backward solve spends on it; then
only gross errors count."""
GROSS = 1e-2
"""... which are those above one per cent."""
KINDS = ("affine", "rotation", "triangular", "logarithmic", "tanh")


# ---------------------------------------------------------------------- problems


@dataclass(frozen=True, eq=False)
class Rows:
    """One graph: n rows of two entries that follow one kind of map. All tensors (n, 2), float64
    numbers exact in ``dtype``."""

    kind: str
    a: Tensor  # slope; for rotations s cos t and s sin t; for tanh c
    coupling: Tensor  # k of triangular rows
    drive: Tensor  # b
    cotangent: Tensor  # g
    start: Tensor
    easy: bool

    def step(self, z: Tensor, drive: Tensor) -> Tensor:
        """The map in the precision of ``z``."""
        a, k = self.a.to(z.dtype), self.coupling.to(z.dtype)
        if self.kind == "affine":
            return a * z + drive
        if self.kind == "rotation":
            turned = torch.stack(
                [a[:, 0] * z[:, 0] - a[:, 1] * z[:, 1], a[:, 1] * z[:, 0] + a[:, 0] * z[:, 1]],
                dim=1,
            )
            return turned + drive
        if self.kind == "triangular":
            return (
                torch.stack([a[:, 0] * z[:, 0] + k[:, 0] * z[:, 1], a[:, 0] * z[:, 1]], dim=1)
                + drive
            )
        if self.kind == "logarithmic":
            return (a * z.log() + drive).exp()
        return a * z.tanh() + drive

    def residual(self, z: Tensor, distance: str, eps: float) -> tuple[float, float]:
        """(exact residual of the state in the named distance, what rounding of one step can add to
        it)."""
        worst, slack = 0.0, 0.0
        for row, (image, size) in zip(z.double().tolist(), self._images(z), strict=True):
            if not all(map(math.isfinite, row)):
                return math.inf, 0.0
            defects = [abs(float(new - Fraction(old))) for new, old in zip(image, row, strict=True)]
            rounding = [8 * eps * (s + abs(old)) for s, old in zip(size, row, strict=True)]
            scales = _scales(distance, row)
            if distance == "thompson":
                defects = [
                    abs(math.log(float(new)) - math.log(old)) if new > 0 and old > 0 else math.inf
                    for new, old in zip(image, row, strict=True)
                ]
                defects = [d if d > 1e-3 else abs(float((new - Fraction(old)) / Fraction(old)))
                           for d, new, old in zip(defects, image, row, strict=True)]  # fmt: skip
                rounding = [r / old for r, old in zip(rounding, row, strict=True)]
            worst = max(worst, *(d / s for d, s in zip(defects, scales, strict=True)))
            slack = max(slack, *(r / s for r, s in zip(rounding, scales, strict=True)))
        return worst, slack

    def _images(self, z: Tensor) -> list[tuple[list[Fraction], list[float]]]:
        """f(z) row by row (exact where the map is rational) and the size of the terms it is summed
        from."""
        result = []
        for row, a, k, b in zip(
            z.double().tolist(),
            self.a.tolist(),
            self.coupling.tolist(),
            self.drive.tolist(),
            strict=True,
        ):
            if not all(map(math.isfinite, row)):
                result.append(([Fraction(0)] * 2, [0.0] * 2))
                continue
            if self.kind in ("affine", "rotation", "triangular"):
                matrix = {
                    "affine": ((a[0], 0.0), (0.0, a[1])),
                    "rotation": ((a[0], -a[1]), (a[1], a[0])),
                    "triangular": ((a[0], k[0]), (0.0, a[0])),
                }[self.kind]
                terms = [
                    [(Fraction(m) * Fraction(x)) for m, x in zip(line, row, strict=True)]
                    for line in matrix
                ]
                image = [sum(line, Fraction(b[i])) for i, line in enumerate(terms)]
                size = [float(sum(map(abs, line))) + abs(b[i]) for i, line in enumerate(terms)]
            elif self.kind == "logarithmic":
                logs = [math.log(x) if x > 0 else -math.inf for x in row]
                exponents = [a[i] * logs[i] + b[i] for i in range(2)]
                image = [Fraction(math.exp(min(max(e, -700.0), 700.0))) for e in exponents]
                size = [
                    math.exp(min(e, 700.0)) * (1 + abs(a[i] * logs[i]) + abs(b[i]))
                    for i, e in enumerate(exponents)
                ]
            else:
                image = [Fraction(a[i] * math.tanh(row[i]) + b[i]) for i in range(2)]
                size = [abs(a[i]) + abs(b[i]) for i in range(2)]
            result.append((image, size))
        return result

    def adjoint(self, z: Tensor) -> Tensor:
        """(n, 2) d <g, z*> / d b by the implicit function theorem at the state z, in float64."""
        g, a, k, z = self.cotangent, self.a, self.coupling, z.double()
        if self.kind == "affine":
            return g / (1 - a)
        if self.kind == "rotation":  # (I - M^T) u = g with M = s R: division by 1 - conj(s e^{it})
            u = torch.complex(g[:, 0], g[:, 1]) / (1 - torch.complex(a[:, 0], -a[:, 1]))
            return torch.stack([u.real, u.imag], dim=1)
        if self.kind == "triangular":  # M^T is lower triangular
            first = g[:, 0] / (1 - a[:, 0])
            return torch.stack([first, (g[:, 1] + k[:, 0] * first) / (1 - a[:, 0])], dim=1)
        if self.kind == "logarithmic":  # df/dz = a f / z, df/db = f
            image = (a * z.log() + self.drive).exp()
            return image * g / (1 - a * image / z)
        return g / (1 - a * (1 - z.tanh().square()))

    @property
    def rate(self) -> float:
        """The slowest rate of the map (at the origin, for tanh: an upper bound)."""
        if self.kind == "rotation":
            return float(torch.linalg.vector_norm(self.a, dim=1).max())
        return float(self.a.abs().max())


@dataclass(frozen=True, eq=False)
class SolveProblem:
    """A batch of graphs, and how it is to be solved."""

    graphs: tuple[Rows, ...]
    dtype: torch.dtype
    solver: Solver
    adjoint: Adjoint

    @property
    def graph_of_node(self) -> Tensor:
        """(n,) the graph of every row."""
        return torch.cat([torch.full((len(rows.drive),), g) for g, rows in enumerate(self.graphs)])

    def parts(self, values: Tensor) -> list[Tensor]:
        """Rows of a tensor, graph by graph."""
        return list(values.split([len(rows.drive) for rows in self.graphs]))

    def step(self, z: Tensor, drive: Tensor) -> Tensor:
        """All graphs side by side."""
        return torch.cat(
            [
                rows.step(*pair)
                for rows, *pair in zip(self.graphs, self.parts(z), self.parts(drive), strict=True)
            ]
        )

    def run(self, solver: Solver, adjoint: Adjoint) -> tuple[Solution, Tensor]:
        """The solution and the gradient of <g, z> with respect to the drive."""
        drive = torch.cat([rows.drive for rows in self.graphs]).to(self.dtype).requires_grad_()
        start = torch.cat([rows.start for rows in self.graphs]).to(self.dtype)
        cotangent = torch.cat([rows.cotangent for rows in self.graphs]).to(self.dtype)
        options: dict[str, Any] = {
            "graph_of_node": self.graph_of_node,
            "num_graphs": len(self.graphs),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackwardWarning)  # the status is what is judged
            solution = adjoint.solve(lambda z: self.step(z, drive), start, solver, **options)
            (gradient,) = torch.autograd.grad((solution.value * cotangent).sum(), drive)
        return solution, gradient.detach()


def draw_solve(number: int, seed: int = 0) -> SolveProblem:
    """The problem of one draw."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform() -> float:
        return float(torch.rand(1, generator=generator, dtype=torch.float64))

    def pick(options: Any) -> Any:
        return options[int(uniform() * len(options))]

    dtype = torch.float64 if uniform() < 0.6 else torch.float32
    positive = uniform() < 0.25
    easy = uniform() < 0.4
    graphs = []
    for _ in range(1 + int(4 * uniform())):
        kind = "logarithmic" if positive else pick([k for k in KINDS if k != "logarithmic"])
        graphs.append(_draw_rows(kind, 1 + int(3 * uniform()), easy, dtype, generator))
    distances: list[Distance] = [SUP, RELATIVE_SUP] + ([THOMPSON, THOMPSON] if positive else [])
    tolerance = 10.0 ** (-4 - 2 * uniform() if dtype == torch.float32 else -4 - 7 * uniform())
    steps = 2000 if easy else pick([5, 20, 100, 600])
    common: dict[str, Any] = {
        "steps": steps,
        "tolerance": tolerance,
        "stop_early": easy or uniform() < 0.7,
        "distance": pick(distances),
    }
    solver = pick([Picard(**common), Picard(damping=0.5, **common), Anderson(**common)])
    if not easy and uniform() < 0.15:
        adjoint: Adjoint = Unrolled()
        solver = Picard(**{**common, "stop_early": False, "steps": min(steps, 20)})
    else:
        backward = 10.0 ** (-3 - 2 * uniform() if dtype == torch.float32 else -4 - 5 * uniform())
        adjoint = Implicit(
            tolerance=backward,
            max_steps=2000 if easy else pick([50, 500]),
            method=pick(["picard", "anderson"]),
        )
    return SolveProblem(tuple(graphs), dtype, solver, adjoint)


def _draw_rows(
    kind: str, n: int, easy: bool, dtype: torch.dtype, generator: torch.Generator
) -> Rows:
    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def rounded(values: Tensor) -> Tensor:
        return values.to(dtype).double()  # the same real numbers in both precisions

    size = 10.0 ** float(6 * uniform(1) - 3)
    if easy:
        a = 0.5 * (2 * uniform(n, 2) - 1)
    else:
        near = 1 - 10.0 ** (-(9 if dtype == torch.float64 else 4) * uniform(n, 2))
        sign = torch.where(uniform(n, 2) < 0.3, -1.0, 1.0)
        a = near * sign
        if float(uniform(1)) < 0.1:  # expanding, or a cycle
            a = torch.where(
                uniform(n, 2) < 0.5, 1.0 + 0.3 * uniform(n, 2), torch.full_like(a, -1.0)
            )
    if kind == "rotation":
        length, angle = a[:, 0].abs(), 0.2 + 2.7 * uniform(n)
        a = torch.stack([length * angle.cos(), length * angle.sin()], dim=1)
    # the error of a defective eigenvalue is residual / (1 - a)^2: no measured rate can tell it
    if kind == "triangular":
        a = a.clamp(-0.9, 0.9)
    if kind == "logarithmic":
        a = a.clamp(-0.99, 0.99)
        drive = 2 * (1 - a) * (2 * uniform(n, 2) - 1)
        start = (2 * uniform(n, 2) - 1).exp()
    elif kind == "tanh":
        a = a.clamp(-0.999, 0.999)
        drive, start = 2 * uniform(n, 2) - 1, 4 * uniform(n, 2) - 2
    else:
        drive, start = size * (2 * uniform(n, 2) - 1), size * (2 * uniform(n, 2) - 1)
    coupling = (1.0 if easy else 5.0) * (2 * uniform(n, 2) - 1)
    cotangent = 10.0 ** float(12 * uniform(1) - 6) * (2 * uniform(n, 2) - 1)
    return Rows(
        kind,
        rounded(a),
        rounded(coupling),
        rounded(drive),
        rounded(cotangent),
        rounded(start),
        easy,
    )


def _scales(distance: str, row: list[float]) -> list[float]:
    """What each entry's defect is divided by, in the named distance of a row."""
    largest = max(map(abs, row))
    if distance == "relative-sup":
        return [largest + 1e-12] * len(row)
    if distance == "relative-entry":
        return [max(abs(x), min(1.0, largest) + 1e-12) for x in row]
    return [1.0] * len(row)  # sup; and thompson, whose defects are relative already


# ---------------------------------------------------------------------- the audit


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


def _allowed(rows: Rows, adjoint: Adjoint, eps: float) -> float:
    """The relative error a converged gradient may have: its tolerance, or what rounding leaves at
    this rate."""
    rate = min(rows.rate, 1.0)
    rounding = min(1e-3, 64 * eps / max(1.0 - rate, 64 * eps))
    allowed = GRADIENT_SLACK * max(float(getattr(adjoint, "tolerance", 0.0)), rounding)
    return max(allowed, GROSS) if rate > SLOW else allowed


def _implicit(
    rows: Rows,
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


def _unrolled(rows: Rows, gradient: Tensor, solver: Solver, eps: float) -> list[tuple[str, str]]:
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
