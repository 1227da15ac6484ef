"""The audit of statuses and gradients: its own closed forms, and the wrong solvers and adjoints it
must catch."""

from dataclasses import dataclass, replace

import pytest
import torch

from sheafdeq.adjoints import Implicit, Unrolled
from sheafdeq.certificates.solve_audit import audit_solves
from sheafdeq.certificates.solve_problems import KINDS, draw_solve
from sheafdeq.solvers import Picard, Status


def test_the_closed_forms_are_those_of_the_maps():
    """Gradient against a dense solve with autograd's Jacobian; residual against the float64
    step."""
    seen = set()
    for number in range(60):
        problem = draw_solve(number)
        for rows in problem.graphs:
            if rows.rate > 0.999:
                continue
            seen.add(rows.kind)
            z, n = rows.start, rows.start.numel()
            matrix, by_drive = torch.autograd.functional.jacobian(rows.step, (z, rows.drive))
            matrix, by_drive = matrix.reshape(n, n), by_drive.reshape(n, n)
            u = torch.linalg.solve(torch.eye(n).double() - matrix.T, rows.cotangent.reshape(-1))
            assert torch.allclose(
                rows.adjoint(z).reshape(-1),
                by_drive.T @ u,
                rtol=1e-9,
                atol=1e-9 * float(u.abs().max()),
            )
            image = rows.step(z, rows.drive)
            exact, slack = rows.residual(z, "sup", 2.0**-52)
            assert abs(exact - float((image - z).abs().max())) <= slack
            if rows.kind == "logarithmic":
                assert rows.residual(z, "thompson", 2.0**-52)[0] == pytest.approx(
                    float((image.log() - z.log()).abs().max()), rel=1e-9
                )
    assert seen == set(KINDS)


def test_no_false_status_or_gradient():
    report = audit_solves(40)
    assert report.violations == []
    assert report.statuses["forward converged"] > 25
    assert report.statuses["backward converged"] > 25
    assert report.statuses["forward maximum-steps"] > 10


@pytest.mark.slow
def test_no_false_status_or_gradient_in_many_draws():
    assert audit_solves(600, first=1000).violations == []


# ---------------------------------------------------------------------- wrong on purpose


@dataclass(frozen=True)
class Optimist:
    """Says converged, always."""

    inner: Picard

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def solve(self, function, initial, **options):
        solution = self.inner.solve(function, initial, **options)
        return replace(
            solution,
            status=Status.CONVERGED,
            graph_status=(Status.CONVERGED,) * len(solution.graph_status),
        )


@dataclass(frozen=True)
class Pessimist(Optimist):
    """Never says converged."""

    def solve(self, function, initial, **options):
        solution = self.inner.solve(function, initial, **options)
        return replace(
            solution,
            status=Status.MAX_STEPS,
            graph_status=(Status.MAX_STEPS,) * len(solution.graph_status),
        )


@dataclass(frozen=True)
class Swapper(Optimist):
    """Judges one state and returns another: extrapolated, as an accelerated method may."""

    def solve(self, function, initial, **options):
        solution = self.inner.solve(function, initial, **options)
        return replace(
            solution, value=solution.value + 40 * (function(solution.value) - solution.value)
        )


@dataclass(frozen=True)
class BatchScale(Implicit):
    """Judges the backward residual against the largest cotangent of the whole batch."""

    def solve(self, function, initial, solver, **options):
        solution = super().solve(function, initial, solver, **options)
        equilibrium = solution.value.detach()
        with torch.enable_grad():
            point = equilibrium.clone().requires_grad_()
            image = function(point)
            attached = function(equilibrium)

        def backward(cotangent):
            u = cotangent
            for _ in range(self.solver.steps):
                following = cotangent + torch.autograd.grad(image, point, u, retain_graph=True)[0]
                if float((following - u).abs().max()) <= self.solver.tolerance * float(
                    cotangent.abs().max()
                ):
                    break
                u = following
            count = len(solution.graph_status)
            solution.adjoint.solution = replace(
                solution,
                status=Status.CONVERGED,
                graph_status=(Status.CONVERGED,) * count,
                adjoint=None,
            )
            return u

        attached.register_hook(backward)
        solution.value = attached
        return solution


def batch_scale(adjoint):
    return BatchScale(adjoint.solver) if isinstance(adjoint, Implicit) else adjoint


@pytest.mark.parametrize("wrong", [Optimist, Pessimist, Swapper])
def test_wrong_solvers_are_caught(wrong):
    assert len(audit_solves(16, solver=wrong).violations) >= 4


def test_a_gradient_judged_by_the_scale_of_the_batch_is_caught():
    caught = audit_solves(16, adjoint=batch_scale).violations
    assert len(caught) >= 4
    assert any("off by" in violation.observed for violation in caught)


def test_an_unrolled_gradient_that_forgets_steps_is_caught():
    @dataclass(frozen=True)
    class Forgetful(Unrolled):
        def solve(self, function, initial, solver, **options):
            with torch.no_grad():
                early = solver.with_steps(max(solver.steps - 2, 1)).solve(
                    function, initial, **options
                )
            return solver.with_steps(2).solve(function, early.value, **options)

    numbers = [n for n in range(200) if isinstance(draw_solve(n).adjoint, Unrolled)][:12]
    caught = [audit_solves(1, first=n, adjoint=lambda a: Forgetful()).violations for n in numbers]
    assert sum(map(bool, caught)) >= 2


def test_a_slow_entry_behind_a_large_fast_one():
    """Rates 1 - 1e-9, 0.96 and 0.999 in one graph: the largest entry tells the wrong one."""
    report = audit_solves(1, first=749)
    assert report.violations == []
    assert report.tightest_gradient < 0.1
