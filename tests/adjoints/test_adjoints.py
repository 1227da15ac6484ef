import gc
import weakref

import pytest
import torch

from sheafdeq.adjoints import Implicit, Truncated, Unrolled
from sheafdeq.data.graph import Graph
from sheafdeq.errors import BackwardWarning, InputError
from sheafdeq.models import SheafDEQ
from sheafdeq.solvers import Anderson, Picard, Status
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, example_graphs, two_node_graph

DOUBLE = torch.float64
TIGHT = Picard(steps=2000, stop_early=True, tolerance=1e-12)


def implicit_to(tolerance, method=Picard):
    return Implicit(method(500, tolerance=tolerance, stop_early=True))


@pytest.mark.parametrize("solver", ["newton-krylov", "picard", None, object()])
def test_a_backward_solver_is_an_object(solver):
    with pytest.raises(InputError, match="backward solver"):
        Implicit(solver)
    with pytest.raises(TypeError, match="method"):
        Implicit(method="newton-krylov")


def test_a_backward_solver_without_tolerance_or_with_a_distance_is_refused():
    with pytest.raises(InputError, match="tolerance"):
        Implicit(Picard(10, tolerance=None))
    with pytest.raises(InputError, match="estimated error"):
        Implicit(Picard(10, distance="sup"))


def contracting_model(**options):
    """Small mixing and calm maps make the step a contraction: both gradients are those of the same
    equilibrium."""
    torch.manual_seed(3)
    model = SheafDEQ(3, 2, 2, 3, **options).double()
    with torch.no_grad():
        model.channel_mixing.mul_(0.3)
        for generator in (model.source_maps, model.target_maps):
            # maps that lean on their bias change slowly with the state
            generator[2].weight.mul_(0.2)
            generator[2].bias.normal_()
    return model


def gradients(model, graph, **options):
    model.zero_grad(set_to_none=True)
    output = model.run(graph, **options)
    weight = torch.linspace(-1, 1, output.logits.numel(), dtype=DOUBLE).view_as(output.logits)
    (weight * output.logits).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), output


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("method", [Picard, Anderson])
def test_implicit_agrees_with_a_long_unroll(edge_dim, method):
    model = contracting_model(edge_dim=edge_dim)
    graph = Graph.union(example_graphs(3, edge_dim))
    unrolled, _ = gradients(model, graph, solver=Picard(steps=300, trace=False), adjoint=Unrolled())
    implicit, output = gradients(model, graph, solver=TIGHT, adjoint=implicit_to(1e-12, method))
    assert output.solution.converged
    assert output.solution.backward.converged
    assert float((implicit - unrolled).norm() / unrolled.norm()) < 1e-6


def test_implicit_matches_the_closed_form_of_a_linear_model():
    model = LinearAverage(3, 2, rate=0.6).double()
    graph = example_graphs(3)[0]
    implicit, _ = gradients(model, graph, solver=TIGHT, adjoint=implicit_to(1e-13))
    model.zero_grad()
    logits = model.readout(model.exact(graph))
    weight = torch.linspace(-1, 1, logits.numel(), dtype=DOUBLE).view_as(logits)
    (weight * logits).sum().backward()
    exact = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(implicit, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("adjoint", [Unrolled(), implicit_to(1e-13)], ids=["unrolled", "implicit"])
def test_gradcheck_on_every_parameter(adjoint, pre_norm, edge_dim):
    model = contracting_model(pre_norm=pre_norm, edge_dim=edge_dim)
    graph = example_graphs(3, edge_dim)[1]
    solver = TIGHT if isinstance(adjoint, Implicit) else Picard(steps=4)
    names = [name for name, _ in model.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for _, p in model.named_parameters())

    def logits(*tensors):
        def call(*args):
            return model.run(graph, solver=solver, adjoint=adjoint).logits

        return torch.func.functional_call(
            _Wrapped(model, call),
            {f"model.{n}": t for n, t in zip(names, tensors, strict=True)},
            (),
        )

    assert torch.autograd.gradcheck(logits, values, atol=1e-6, rtol=1e-4, fast_mode=True)


class _Wrapped(torch.nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self):
        return self.call()


def test_gradcheck_in_the_features():
    model = contracting_model()
    graph = example_graphs(3)[1]

    def logits(x):
        return model.run(graph.with_features(x), solver=TIGHT, adjoint=implicit_to(1e-13)).logits

    assert torch.autograd.gradcheck(
        logits, (graph.x.clone().requires_grad_(),), atol=1e-6, rtol=1e-4
    )


def test_failure_of_the_backward_solve_reaches_the_caller():
    """At the counterexample's middle fixed point the adjoint iteration expands: its status says so,
    loudly."""
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE))
    with torch.no_grad():
        # a functional that sees the unstable direction
        model.readout.weight.copy_(torch.tensor([[1.0, 0.0]]))
    start = torch.full((2, 2), 1.2, dtype=DOUBLE)
    output = model.run(two_node_graph(), initial_state=start, solver=TIGHT, adjoint=Implicit())
    assert output.solution.converged
    with pytest.warns(BackwardWarning, match="not solved"):
        output.logits.sum().backward()
    assert output.solution.backward.status in (
        Status.DIVERGED,
        Status.STAGNATED,
        Status.MAX_STEPS,
        Status.NON_FINITE,
    )


def test_stable_point_of_the_counterexample_solves_backward():
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE))
    start = torch.tensor([[2.0, 0.1]] * 2, dtype=DOUBLE)
    output = model.run(two_node_graph(), initial_state=start, solver=TIGHT, adjoint=Implicit())
    output.logits.sum().backward()
    assert output.solution.backward.converged


def test_truncated_value_is_that_of_the_full_run_and_all_steps_give_the_full_gradient():
    model = contracting_model()
    graph = example_graphs(3)[0]
    full, output = gradients(model, graph, solver=Picard(steps=12), adjoint=Unrolled())
    for last in (3, 12, 50):
        part, truncated = gradients(model, graph, solver=Picard(steps=12), adjoint=Truncated(last))
        assert torch.equal(truncated.logits, output.logits)
        assert truncated.solution.steps == 12
        assert len(truncated.solution.residuals) == 12
        assert torch.allclose(part, full) == (last >= 12)


def test_continuing_past_the_trained_horizon_is_one_argument():
    model = contracting_model(steps=5)
    graph = example_graphs(3)[0]
    with torch.no_grad():
        assert model.run(graph).solution.steps == 5
        assert model.run(graph, steps=100).solution.steps == 100


def _peak_saved_bytes(steps, adjoint):
    """Bytes held by tensors that autograd saved during the forward pass."""
    model = contracting_model()
    graph = example_graphs(3)[0]
    total = 0

    def pack(tensor):
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model.run(graph, solver=Picard(steps=steps), adjoint=adjoint)
    return total


def test_memory_of_implicit_does_not_grow_with_the_iterations():
    assert _peak_saved_bytes(200, Implicit()) == _peak_saved_bytes(5, Implicit())
    assert _peak_saved_bytes(200, Unrolled()) > 20 * _peak_saved_bytes(5, Unrolled())


def test_no_reference_cycle_keeps_a_solve_alive():
    model = contracting_model()
    graph = example_graphs(3)[0]
    gc.collect()
    gc.disable()
    try:
        _, output = gradients(model, graph, solver=TIGHT, adjoint=Implicit())
        alive = weakref.ref(output.solution.value)
        del output
        assert alive() is None
    finally:
        gc.enable()


def test_torchdeq_agrees():
    torchdeq = pytest.importorskip(
        "torchdeq", reason="install the 'oracle' extra to compare with torchdeq"
    )
    model = contracting_model()
    graph = example_graphs(3)[0]
    ours, _ = gradients(model, graph, solver=TIGHT, adjoint=implicit_to(1e-12))
    deq = torchdeq.get_deq(
        ift=True,
        f_solver="fixed_point_iter",
        b_solver="fixed_point_iter",
        f_max_iter=300,
        b_max_iter=300,
        f_tol=1e-13,
        b_tol=1e-13,
    )
    context = model.prepare(graph)
    n, c = graph.num_nodes, model.width
    # torchdeq treats axis 0 as independent samples; one sample of n*c coupled numbers is what a
    # graph is.
    out, _ = deq(
        lambda z: model.step(z.view(n, c), context).view(1, n * c),
        model.initial_state(context).view(1, -1),
    )
    logits = model.readout(out[-1].view(n, c))
    weight = torch.linspace(-1, 1, logits.numel(), dtype=DOUBLE).view_as(logits)
    model.zero_grad()
    (weight * logits).sum().backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-6
