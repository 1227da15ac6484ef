import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sheafdeq.data.graph import Graph
from sheafdeq.distances import DISTANCES, RELATIVE_SUP, SUP, THOMPSON
from sheafdeq.errors import ConvergenceError, InputError
from sheafdeq.solvers import Anderson, Partition, Picard, Status, Stopping
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, example_graphs, two_node_graph

DOUBLE = torch.float64
SOLVERS = [
    Picard(steps=400, stop_early=True, tolerance=1e-11),
    Anderson(steps=200, tolerance=1e-11),
]


def linear(matrix, offset):
    return lambda z: z @ matrix.T + offset


def test_picard_runs_exactly_the_steps_asked_for():
    seen = []
    solution = Picard(steps=7).solve(
        lambda z: z / 2, torch.ones(3, 2), observe=lambda k, z: seen.append((k, float(z[0, 0])))
    )
    # the end is judged, too
    assert (solution.steps, solution.evaluations, len(solution.residuals)) == (7, 8, 7)
    assert seen == [(k, 0.5**k) for k in range(8)]
    assert solution.status is Status.MAX_STEPS


def test_zero_steps_return_the_start_unjudged():
    start = torch.ones(2, 2)
    solution = Picard(steps=0).solve(lambda z: z / 2, start)
    assert torch.equal(solution.value, start)
    assert solution.status is Status.MAX_STEPS
    assert math.isnan(solution.residual)


@pytest.mark.parametrize("solver", SOLVERS, ids=["picard", "anderson"])
def test_solvers_reach_the_exact_fixed_point(solver):
    model = LinearAverage(3, 2, rate=0.8).double()
    for graph in example_graphs(3):
        solution = model.run(graph, solver=solver).solution
        assert solution.converged
        assert torch.allclose(solution.value, model.exact(graph), atol=1e-9)


def test_anderson_needs_fewer_evaluations_than_picard_on_a_slow_map():
    model = LinearAverage(3, 2, rate=0.98).double()
    graph = example_graphs(3)[0]
    picard = model.run(graph, solver=Picard(steps=5000, stop_early=True, tolerance=1e-9)).solution
    anderson = model.run(graph, solver=Anderson(steps=5000, tolerance=1e-9)).solution
    assert picard.converged
    assert anderson.converged
    assert anderson.evaluations < picard.evaluations / 3


@pytest.mark.parametrize("solver", SOLVERS, ids=["picard", "anderson"])
def test_a_batch_gives_each_graph_what_it_gets_alone(solver):
    """Graphs converge after different numbers of steps; none may be changed by the company it
    keeps."""
    model = LinearAverage(3, 2, rate=0.7).double()
    graphs = example_graphs(3)
    together = model.run(Graph.union(graphs), solver=solver).solution
    alone = [model.run(graph, solver=solver).solution for graph in graphs]
    assert together.graph_steps.tolist() == [s.steps for s in alone]
    assert len({s.steps for s in alone}) > 1
    assert torch.allclose(together.value, torch.cat([s.value for s in alone]), atol=1e-13)


@given(
    st.floats(0.05, 1.6),
    st.floats(1e-9, 1e-2),
    st.integers(1, 60),
    st.sampled_from(sorted(DISTANCES)),
    st.booleans(),
    st.booleans(),
)
def test_nothing_above_tolerance_is_called_converged(
    factor, tolerance, steps, distance, early, anderson
):
    """The residual at the returned state itself, measured again here, decides."""

    def function(z):
        return 1.0 + factor * torch.sin(z)

    kind = Anderson if anderson else Picard
    solver = kind(steps=steps, tolerance=tolerance, stop_early=early, distance=DISTANCES[distance])
    start = torch.tensor([[0.5, 2.0], [1.5, 0.1]], dtype=DOUBLE)
    solution = solver.solve(function, start)
    residual = float(DISTANCES[distance](function(solution.value), solution.value).max())
    if solution.converged:
        assert residual <= tolerance
    else:
        with pytest.raises(ConvergenceError) as caught:
            solution.raise_if_failed()
        assert caught.value.solution is solution
    assert len(solution.residuals) <= solution.evaluations <= len(solution.residuals) + 1


def test_divergence_is_named():
    solution = Picard(steps=2000, stop_early=True, distance=SUP).solve(
        lambda z: 3 * z + 1, torch.ones(2, 1, dtype=DOUBLE)
    )
    assert solution.status is Status.DIVERGED
    assert solution.steps < 100


def test_cycles_are_named_stagnated_and_damping_settles_them():
    def flip(z):
        return 2.0 - z

    start = torch.full((2, 1), 0.5, dtype=DOUBLE)
    cycling = Picard(steps=1000, stop_early=True).solve(flip, start)
    assert cycling.status is Status.STAGNATED
    assert cycling.steps < 300
    damped = Picard(steps=1000, stop_early=True, damping=0.3).solve(flip, start)
    assert damped.converged
    assert torch.allclose(damped.value, torch.ones(2, 1, dtype=DOUBLE), atol=1e-5)


def test_non_finite_graphs_stop_at_their_last_finite_state_and_leave_the_others_alone():
    def function(z):
        out = z / 2
        if float(z[0, 0]) < 0.2:
            out = out.clone()
            out[0] = math.nan
        return out

    ids = torch.tensor([0, 1])
    solution = Picard(steps=60, stop_early=True, tolerance=1e-9, distance=SUP).solve(
        function, torch.ones(2, 1, dtype=DOUBLE), partition=Partition(ids, 2)
    )
    assert solution.graph_status == (Status.NON_FINITE, Status.CONVERGED)
    assert solution.status is Status.NON_FINITE
    assert float(solution.value[0]) == 0.125
    assert float(solution.value[1]) < 1e-8


def test_overflow_in_fixed_horizon_is_not_hidden():
    solution = Picard(steps=2000).solve(lambda z: 10 * z, torch.ones(1, 1))
    assert solution.status is Status.NON_FINITE
    assert bool(torch.isfinite(solution.value).all())


def test_trace_off_measures_only_the_last_step():
    quiet = Picard(steps=9, trace=False).solve(lambda z: z / 2, torch.ones(1, 1))
    full = Picard(steps=9).solve(lambda z: z / 2, torch.ones(1, 1))
    assert quiet.residuals == full.residuals[-1:]
    assert torch.equal(quiet.value, full.value)


def test_anderson_survives_identical_and_vanishing_defects():
    constant = torch.tensor([[1.0, 2.0]], dtype=DOUBLE)
    solution = Anderson(steps=20).solve(lambda z: constant.clone(), torch.zeros(1, 2, dtype=DOUBLE))
    assert solution.converged
    assert torch.equal(solution.value, constant)


def test_two_limits_of_the_counterexample():
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE))
    solver = Picard(steps=500, stop_early=True, tolerance=1e-13)
    ends = []
    for start in ((2.0, 0.1), (0.1, 2.0)):
        state = torch.tensor([start, start], dtype=DOUBLE)
        solution = model.run(two_node_graph(), initial_state=state, solver=solver).solution
        assert solution.converged
        ends.append(solution.value)
    assert torch.allclose(
        ends[0], torch.tensor([[2.15750402, 0.24249598]] * 2, dtype=DOUBLE), atol=1e-8
    )
    assert torch.allclose(ends[1], ends[0].flip(1), atol=1e-8)


def test_distances_by_hand():
    new = torch.tensor([[1.0, 4.0], [2.0, 2.0]], dtype=DOUBLE)
    old = torch.tensor([[1.0, 2.0], [1.0, 4.0]], dtype=DOUBLE)
    assert SUP(new, old).tolist() == [2.0, 2.0]
    assert RELATIVE_SUP(new, old).tolist() == pytest.approx([1.0, 0.5])
    assert THOMPSON(new, old).tolist() == pytest.approx([math.log(2), math.log(2)])
    assert THOMPSON(-new, old).tolist() == [math.inf, math.inf]
    assert DISTANCES["euclidean"](new, old).tolist() == pytest.approx([2.0, 5**0.5])


def test_every_status_has_cause_and_remedy():
    for status in Status:
        assert status.cause
        assert status.remedy
        assert str(status) == status.label
    assert Status.worst([Status.CONVERGED, Status.DIVERGED, Status.MAX_STEPS]) is Status.DIVERGED
    assert Status.worst([]) is Status.CONVERGED


@pytest.mark.parametrize("kind", [Picard, Anderson])
def test_a_solver_holds_its_whole_stopping_rule(kind):
    rule = Stopping(7, 1e-3, stop_early=True, divergence_factor=3.0, probe=False, trace=False)
    assert kind(stopping=rule).stopping == rule
    assert kind(7, tolerance=1e-3, stop_early=True, divergence_factor=3.0).stopping == Stopping(
        7, 1e-3, stop_early=True, divergence_factor=3.0
    )
    longer = kind(stopping=rule).with_steps(9)
    assert (longer.steps, longer.stopping.divergence_factor, longer.stopping.probe) == (
        9,
        3.0,
        False,
    )
    with pytest.raises(InputError, match="not both"):
        kind(stopping=rule, tolerance=1e-3)
    with pytest.raises(TypeError, match="tolerence"):
        kind(tolerence=1e-3)


def test_the_divergence_factor_of_a_solver_counts():
    start = torch.ones(1, 1, dtype=DOUBLE)
    for factor, steps in ((10.0, 5), (1e8, 28)):
        solver = Picard(100, stop_early=True, distance=SUP, divergence_factor=factor)
        solution = solver.solve(lambda z: 2 * z, start)
        assert solution.status is Status.DIVERGED
        assert solution.steps <= steps
