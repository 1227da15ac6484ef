"""Attacks on what a solution says of itself: exact residuals and exact gradients are known here."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs import random_graph
from sheafdeq.adjoints import Implicit, Truncated, Unrolled
from sheafdeq.data.graph import Graph
from sheafdeq.distances import RELATIVE_ENTRY, RELATIVE_SUP, THOMPSON, resolution
from sheafdeq.errors import BackwardWarning
from sheafdeq.models import APPNP, EIGNN, IGNN, GraphAttnDEQ, SheafCascade, SheafDEQ, StrongSheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.solvers import ONE_GRAPH, Anderson, Partition, Picard, Solution, Status
from sheafdeq.testing import LinearAverage, example_graphs

DOUBLE = torch.float64


def in_double(model, graph):
    """The same weights and features, every number exact, computed in float64."""
    return copy.deepcopy(model).double(), graph.to(DOUBLE)


# ---------------------------------------------------------------------- item 5: the state that is
# returned


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("solver", ["anderson", "picard", "fixed"])
@pytest.mark.parametrize(
    "adjoint", [Unrolled(), Implicit(), Truncated(3)], ids=["unrolled", "implicit", "truncated"]
)
def test_status_and_residual_belong_to_the_returned_state(adjoint, solver, seed):
    torch.manual_seed(seed)
    model = SheafDEQ(3, 2, 2, 3).double()
    graph = random_graph(12, 30, seed=seed, channels=3, undirected=True)
    tolerance = 10.0 ** -(3 + seed)
    chosen = {
        "anderson": Anderson(steps=300, tolerance=tolerance),
        "picard": Picard(steps=300, tolerance=tolerance, stop_early=True),
        "fixed": Picard(steps=5 + 4 * seed, tolerance=tolerance),
    }[solver]
    solution = model.run(graph, solver=chosen, adjoint=adjoint).solution
    with torch.no_grad():
        value = solution.value.detach()
        residual = float(THOMPSON(model.step(value, model.prepare(graph)), value).max())
    assert solution.residual == pytest.approx(residual, rel=1e-9, abs=1e-13)
    assert solution.converged == (solution.residual <= solution.tolerance)
    assert solution.distance == "thompson"


def test_a_solve_says_the_same_with_and_without_gradients():
    torch.manual_seed(0)
    model = SheafDEQ(
        3, 2, 2, 3, gradient="implicit", solver=Anderson(steps=200, tolerance=1e-9)
    ).double()
    graph = random_graph(12, 30, seed=0, channels=3, undirected=True)
    recorded = model.run(graph)
    with torch.no_grad():
        silent = model.run(graph)
    assert torch.equal(recorded.logits.detach(), silent.logits)
    assert recorded.solution.residual == silent.solution.residual


# ---------------------------------------------------------------------- item 6: implicit gradients


def slow_and_fast(rates, cotangents, adjoint, partition=ONE_GRAPH):
    """Gradients of z_i = rate_i z_i + theta_i in theta (exact: cotangent_i / (1 - rate_i)), and the
    backward solution."""
    rates = torch.as_tensor(rates, dtype=DOUBLE).unsqueeze(1)
    theta = torch.ones_like(rates).requires_grad_()
    start = theta.detach() / (1 - rates)
    solution = adjoint.solve(
        lambda z: rates * z + theta, start, Picard(steps=1), partition=partition
    )
    cotangent = torch.as_tensor(cotangents, dtype=DOUBLE).unsqueeze(1)
    solution.value.backward(cotangent)
    return theta.grad, cotangent / (1 - rates), solution


@pytest.mark.filterwarnings("ignore::sheafdeq.errors.BackwardWarning")
@given(
    st.floats(-9, -0.5),
    st.floats(-9, 0),
    st.floats(0, 0.9),
    st.sampled_from([Picard, Anderson]),
    st.sampled_from([1e-4, 1e-6, 1e-9]),
)
def test_a_slow_direction_with_a_small_cotangent_is_not_called_converged(
    gap, small, fast, method, tolerance
):
    """A residual of 1e-7 in a direction of rate 1 - 1e-8 is an error of 10."""
    gradient, exact, solution = slow_and_fast(
        [1 - 10.0**gap, fast, 0.0],
        [10.0**small, 1.0, 0.3],
        Implicit(method(300, tolerance=tolerance, stop_early=True)),
    )
    backward = solution.backward
    error = float((gradient - exact).abs().max() / exact.abs().max())
    if backward.converged:
        assert error <= 3 * max(tolerance, backward.tolerance)


def test_the_attack_itself():
    with pytest.warns(BackwardWarning):
        gradient, exact, solution = slow_and_fast([1 - 1e-8, 0.5], [1e-7, 1.0], Implicit())
    # 500 steps cannot solve it
    assert float((gradient - exact).abs().max() / exact.abs().max()) > 0.5
    assert not solution.backward.converged


@pytest.mark.filterwarnings("ignore::sheafdeq.errors.BackwardWarning")
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-7, 1e-9])
def test_the_slowest_entry_is_found_wherever_it_is(gap, order):
    """Anderson makes all residuals small at once, so only the rate tells how wrong the slowest
    entry is."""
    rates = torch.tensor([1 - gap, 1 - 3e-3, 0.9], dtype=DOUBLE)[order]
    adjoint = Implicit(Anderson(60, tolerance=1e-5))
    gradient, exact, solution = slow_and_fast(rates, [1.0, 0.7, 0.5], adjoint)
    if solution.backward.converged:
        error = float((gradient - exact).abs().max() / exact.abs().max())
        assert error <= 3 * max(1e-5, solution.backward.tolerance)


@pytest.mark.parametrize("small", [1e-3, 1e-6, 1e-12, 1e-200])
def test_a_graph_in_a_batch_gets_the_gradient_it_would_get_alone(small):
    rates, adjoint = [0.9, 0.99, 0.5, 0.98], Implicit(Picard(5000, tolerance=1e-6, stop_early=True))
    together, exact, _ = slow_and_fast(
        rates, [1.0, 1.0, small, small], adjoint, Partition(torch.tensor([0, 0, 1, 1]), 2)
    )
    alone, _, solution = slow_and_fast(rates[2:], [small, small], adjoint)
    assert solution.backward.converged
    assert torch.allclose(together[2:], alone, rtol=1e-12, atol=0)
    assert torch.allclose(together, exact, rtol=3e-6, atol=0)


def test_zero_and_non_finite_cotangents_are_reported():
    gradient, _, solution = slow_and_fast([0.5, 0.5], [0.0, 0.0], Implicit())
    assert solution.backward.converged
    assert not gradient.any()
    with pytest.warns(BackwardWarning, match="non-finite"):
        _, _, solution = slow_and_fast([0.5, 0.5], [math.inf, 1.0], Implicit())
    assert solution.backward.status is Status.NON_FINITE


@pytest.mark.parametrize("method", [Picard, Anderson])
def test_linear_models_against_their_closed_form(method):
    for rate in (0.3, 0.9, 0.999):
        model = LinearAverage(3, 2, rate=rate).double()
        graph = Graph.union(example_graphs(3))
        solver = Picard(steps=40_000, tolerance=1e-13, stop_early=True)
        adjoint = Implicit(method(40_000, tolerance=1e-8, stop_early=True))
        output = model.run(graph, solver=solver, adjoint=adjoint)
        scale = torch.logspace(0, -9, graph.num_graphs, dtype=DOUBLE)[graph.graph_ids].unsqueeze(1)
        (output.logits * scale).sum().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        assert output.solution.backward.converged
        model.zero_grad()
        (model.readout(model.exact(graph)) * scale).sum().backward()
        for mine, parameter in zip(ours, model.parameters(), strict=True):
            assert torch.allclose(mine, parameter.grad, rtol=1e-6, atol=1e-9)


def test_the_cascade_reports_its_backward_solves():
    torch.manual_seed(1)
    model = SheafCascade(
        3,
        2,
        2,
        4,
        levels=3,
        gradient="implicit",
        solver=Picard(steps=900, tolerance=1e-10, stop_early=True),
    ).double()
    graph = Graph.union([random_graph(12, 30, seed=s, channels=3, undirected=True) for s in (0, 1)])
    output = model.run(graph)
    assert output.solution.backward is None
    output.logits.sum().backward()
    backward = output.solution.backward
    assert backward.converged
    assert backward.steps > 3
    assert len(backward.graph_status) == 2
    implicit = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    model.run(graph, adjoint=Unrolled()).logits.sum().backward()
    unrolled = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float((implicit - unrolled).norm() / unrolled.norm()) < 1e-6


# ---------------------------------------------------------------------- item 7: what the distance
# sees


def test_every_start_of_a_guaranteed_model_ends_in_the_same_state_beside_a_huge_entry():
    """One drive entry of 1e10 hid all others of its node; the default distance sees them."""
    torch.manual_seed(3)
    model = StrongSheafDEQ(3, 2, 2, 3, steps=2000).double()
    with torch.no_grad():
        model.drive.bias[0] = 1e10
    graph = random_graph(12, 30, seed=3, channels=3, undirected=True)
    solver = Picard(steps=2000, tolerance=1e-9, stop_early=True)
    ends = []
    for scale in (1e-3, 1.0, 1e3):
        torch.manual_seed(int(scale * 1000))
        start = scale * torch.rand(graph.num_nodes, model.width, dtype=DOUBLE) + 1e-9
        solution = model.run(graph, initial_state=start, solver=solver).solution.raise_if_failed()
        ends.append(solution.value.detach())
    for end in ends[1:]:
        assert float(THOMPSON(end, ends[0]).max()) <= 2 * 1e-9 / (1 - model.guaranteed_rate())


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=5),
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=5),
)
def test_relative_entry_is_never_below_relative_sup(old, change):
    size = min(len(old), len(change))
    old = torch.tensor([old[:size]], dtype=DOUBLE)
    new = old + torch.tensor([change[:size]], dtype=DOUBLE)
    assert float(RELATIVE_ENTRY(new, old)) >= float(RELATIVE_SUP(new, old)) * (1 - 1e-9)


def test_relative_entry_sees_small_entries_beside_large_ones_and_small_rows():
    old = torch.tensor([[1e10, 1.0, 0.0], [1e-8, 1e-9, 0.0]], dtype=DOUBLE)
    new = old + torch.tensor([[0.0, 0.0, 1e-3], [0.0, 1e-9, 0.0]], dtype=DOUBLE)
    assert RELATIVE_ENTRY(new, old).tolist() == pytest.approx([1e-3, 0.1], rel=1e-3)
    assert float(RELATIVE_SUP(new, old)[0]) < 1e-12
    assert not RELATIVE_ENTRY(torch.zeros(2, 3), torch.zeros(2, 3)).any()


def test_thompson_resolves_large_entries_in_float32():
    old = torch.full((1, 2), 1e30)
    new = old * (1 + 2e-7)
    exact = THOMPSON(new.double(), old.double())
    assert float(THOMPSON(new, old)) == pytest.approx(float(exact), rel=1e-5)
    assert THOMPSON(torch.tensor([[1.0]]), torch.tensor([[100.0]])).item() == pytest.approx(
        math.log(100)
    )
    assert math.isinf(THOMPSON(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])).item())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SheafDEQ(3, 2, 2, 3), "thompson"),
        (lambda: StrongSheafDEQ(3, 2, 2, 3), "thompson"),
        (lambda: SheafCascade(3, 2, 2, 3, levels=2), "thompson"),
        (lambda: StrongAttnDEQ(3, 2, 2, 3), "thompson"),
        (lambda: GraphAttnDEQ(3, 2, 2, 3), "thompson"),
        (lambda: APPNP(3, 2, 6, shift=1.3), "thompson"),
        (lambda: APPNP(3, 2, 6), "relative-entry"),
        (lambda: IGNN(3, 2, 6), "sup"),
        (lambda: EIGNN(3, 2, 6), "graph-relative-sup"),
    ],
)
def test_the_distance_that_is_named_is_the_one_that_was_used(make, name):
    torch.manual_seed(0)
    model, graph = make().double().eval(), random_graph(12, 30, seed=0, channels=3, undirected=True)
    with torch.no_grad():
        solution = model.run(graph).solution
        value, image = solution.value, model.step(solution.value, model.prepare(graph))
    assert solution.distance == name
    named = {
        "thompson": lambda: THOMPSON(image, value).max(),
        "relative-entry": lambda: RELATIVE_ENTRY(image, value).max(),
        "sup": lambda: (image - value).abs().max(),
        "graph-relative-sup": lambda: (image - value).abs().max() / value.abs().max(),
    }[name]()
    assert solution.residual == pytest.approx(float(named), rel=1e-6, abs=1e-15)


FLOAT32_MODELS = {
    "cascade": lambda: SheafCascade(3, 2, 3, 8, levels=4, level_steps=40),
    "strong-sheaf": lambda: StrongSheafDEQ(3, 2, 3, 8, steps=300),
    "strong-attention": lambda: StrongAttnDEQ(3, 2, 2, 8, steps=300),
    "sheafdeq": lambda: SheafDEQ(3, 2, 3, 8, steps=300),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gain", [1.0, 5.0])
@pytest.mark.parametrize("kind", sorted(FLOAT32_MODELS))
def test_float32_claims_hold_in_float64(kind, gain, seed):
    """What is converged in float32 is so exactly, up to what the solution says the precision
    hides."""
    torch.manual_seed(seed)
    model, graph = (
        FLOAT32_MODELS[kind]().eval(),
        random_graph(12, 30, seed=seed, channels=3, undirected=True, dtype=torch.float32),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain if parameter.dim() > 1 else 1.0)
        solution = model.run(graph).solution
        exact_model, exact_graph = in_double(model, graph)
        value = solution.value.double()
        residual = float(
            THOMPSON(exact_model.step(value, exact_model.prepare(exact_graph)), value).max()
        )
    assert solution.tolerance >= resolution(torch.float32)
    assert solution.asked == 1e-6
    if solution.converged:
        assert residual <= solution.tolerance + solution.resolution
        assert "was asked for" in str(solution)


def test_rounding_that_is_amplified_is_not_called_converged():
    """f computes 1 by cancelling 1e6 against 1e6: float32 cannot tell a residual of 1e-6 there."""

    def cancelling(z):
        return (z * 1e6 - (z.double() * 1e6).round().float()) * 0.5 + 1.0

    start = torch.ones(4, 3)
    solution = Picard(steps=400, tolerance=1e-6, stop_early=True).solve(cancelling, start)
    assert not solution.converged


# ---------------------------------------------------------------------- item 11: one residual, the
# one that was judged


@given(st.integers(0, 200), st.integers(1, 60))
def test_a_summary_cannot_contradict_itself(seed, steps):
    torch.manual_seed(seed)
    model = SheafCascade(3, 2, 2, 3, levels=3, level_steps=steps).eval()
    graph = Graph.union(
        [
            random_graph(6, 8, seed=seed + k, channels=3, undirected=True, dtype=torch.float32)
            for k in range(3)
        ]
    )
    with torch.no_grad():
        solution = model.run(graph).solution
    for status, residual in zip(
        solution.graph_status, solution.graph_residual.tolist(), strict=True
    ):
        assert (status is Status.CONVERGED) == (residual <= solution.tolerance)
    assert solution.residual == float(solution.graph_residual.max())
    assert solution.converged == (solution.residual <= solution.tolerance)


def test_merging_keeps_the_worst_of_every_graph():
    def part(status, residual):
        return Solution(
            torch.zeros(2, 1),
            Status.worst(status),
            3,
            4,
            [1.0, residual[0]],
            "sup",
            1e-6,
            graph_status=status,
            graph_residual=torch.tensor(residual),
            graph_steps=torch.tensor([3, 3]),
        )

    merged = Solution.merged(
        [
            part((Status.MAX_STEPS, Status.CONVERGED), [1e-3, 1e-7]),
            part((Status.CONVERGED,) * 2, [1e-8, 1e-8]),
        ]
    )
    assert merged.graph_status == (Status.MAX_STEPS, Status.CONVERGED)
    assert merged.residual == pytest.approx(1e-3)
    assert merged.status_counts() == {"maximum-steps": 1, "converged": 1}


def directed_graph(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.cat(
        [
            torch.randint(10, (2, 40), generator=generator),
            torch.tensor([[0] * 9, list(range(1, 10))]),
        ],
        dim=1,
    )
    return Graph.build(torch.randn(10, 3, dtype=dtype, generator=generator), edges)


def test_ignn_resumes_bitwise_on_directed_graphs_whatever_is_scored_between():
    """The radius belongs to the graph of the update: neither a test graph nor an interruption
    enters it."""
    train, test = directed_graph(0), directed_graph(1)

    def update(model, optimiser):
        optimiser.zero_grad()
        model.run(train).logits.square().sum().backward()
        optimiser.step()
        model.project()

    torch.manual_seed(0)
    straight = IGNN(3, 2, 6)
    scored = copy.deepcopy(straight)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (straight, scored)]
    for epoch in range(6):
        update(straight, optimisers[0])
        with torch.no_grad():
            scored.run(test)
        if epoch == 3:  # an interruption: only parameters are kept
            fresh = IGNN(3, 2, 6)
            fresh.load_state_dict(scored.state_dict())
            scored = fresh
            optimisers[1] = torch.optim.SGD(scored.parameters(), lr=0.5)
        update(scored, optimisers[1])
        for mine, theirs in zip(straight.parameters(), scored.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert straight.spectral_radius > 1.0
