"""Fixed-point problems whose residuals and gradients are known exactly.

A draw is a batch of one to four graphs. Every row of a graph follows one of these maps, with
numbers of its own:

    affine       z <- a z + b   a from -1 to 1 - 1e-9, or beyond: expanding, cycling
    rotation     (x, y) <- s R(t) (x, y) + b      complex eigenvalues
    triangular   (x, y) <- [[a, k], [0, a]] (x, y) + b   not normal: a power of it grows before it
                 shrinks; |a| <= 0.9
    logarithmic  z <- exp(a log z + b)            affine in log coordinates, positive
    tanh         z <- c tanh(z) + b

Residuals are evaluated in rational arithmetic where the map is rational, in float64 beside float32,
and the gradient of <g, z> with respect to b has a closed form at any state. Drives and cotangents
of the graphs differ by up to twelve orders of magnitude.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from sheafdeq.adjoints import Adjoint, Implicit, Unrolled
from sheafdeq.distances import RELATIVE_SUP, SUP, THOMPSON, Distance
from sheafdeq.errors import BackwardWarning
from sheafdeq.solvers import Anderson, Partition, Picard, Solution, Solver

__all__ = ["KINDS", "KnownRows", "SolveProblem", "draw_solve"]

KINDS = ("affine", "rotation", "triangular", "logarithmic", "tanh")


@dataclass(frozen=True, eq=False)
class KnownRows:
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

    graphs: tuple[KnownRows, ...]
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
        options: dict[str, Any] = {"partition": Partition(self.graph_of_node, len(self.graphs))}
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
        limit = 2000 if easy else pick([50, 500])
        kind = pick([Picard, Anderson])
        adjoint = Implicit(kind(limit, tolerance=backward, stop_early=True))
    return SolveProblem(tuple(graphs), dtype, solver, adjoint)


def _draw_rows(
    kind: str, n: int, easy: bool, dtype: torch.dtype, generator: torch.Generator
) -> KnownRows:
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
    return KnownRows(
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
