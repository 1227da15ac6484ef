"""What each comparison model promises on its own."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sheafdeq.adjoints import Implicit, Unrolled
from sheafdeq.data.chains import sums
from sheafdeq.data.graph import Graph
from sheafdeq.errors import BackwardWarning, InputError
from sheafdeq.layers.adjacency_spectrum import spectrum_of
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import PICNN, EnergyGNN
from sheafdeq.models.graph_attn_deq import GraphAttnDEQ
from sheafdeq.models.ignn import IGNN, project_columns
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.models.neural_sheaf_diffusion import (
    NeuralSheafDiffusion,
    SheafLayer,
    householder,
    inverse_square_root,
)
from sheafdeq.registry import Shape, build_model
from sheafdeq.solvers import Picard, Status


def undirected(n: int = 10, seed: int = 0, features: int = 3, edge_dim: int | None = None) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(n, n, generator=generator) < 0.35, diagonal=1).nonzero().T
    edges = torch.cat([upper, upper.flip(0)], dim=1)
    attr = (
        torch.rand(edges.shape[1], edge_dim, generator=generator, dtype=torch.float64)
        if edge_dim
        else None
    )
    return Graph.build(
        torch.randn(n, features, generator=generator, dtype=torch.float64), edges, attr
    )


# ---------------------------------------------------------------------- APPNP


@torch.no_grad()
def test_appnp_closed_form_is_the_limit() -> None:
    graph = undirected()
    model = APPNP(3, 2, 4, steps=200).double().eval()
    context = model.prepare(graph)
    assert (model.solve(context, graph).value - model.closed_form(context)).abs().max() < 1e-6


def test_appnp_closed_form_refuses_what_it_cannot_do() -> None:
    graph = undirected()
    shifted = APPNP(3, 2, 4, shift=1.25).double()
    with pytest.raises(InputError, match="no closed form"):
        shifted.closed_form(shifted.prepare(graph))
    plain = APPNP(3, 2, 4).double()
    with pytest.raises(InputError, match="limited to 5 nodes"):
        plain.closed_form(plain.prepare(graph), max_nodes=5)


@torch.no_grad()
def test_shifted_appnp_stays_in_its_box() -> None:
    graph = undirected()
    model = APPNP(3, 2, 4, shift=1.65).double().eval()
    context = model.prepare(graph)
    state = model.step(100 * torch.randn(10, 4, dtype=torch.float64), context)
    assert ((state >= 0.65 - 1e-12) & (state <= 2.65 + 1e-12)).all()


def test_dropout_is_fixed_within_one_solve_where_the_step_must_be_one_map() -> None:
    graph = undirected()
    for model in (
        APPNP(3, 2, 4),
        LoopTransformer(3, 2, 2, 2, masks="solve"),
        LoopTransformer(3, 2, 2, 2, gradient="implicit"),
    ):
        model = model.double().train()
        context = model.prepare(graph)
        state = model.initial_state(context)
        assert torch.equal(model.step(state, context), model.step(state, context))
        assert not torch.equal(model.run(graph).logits, model.run(graph).logits)


def test_the_loop_transformer_draws_a_mask_for_every_loop() -> None:
    graph = undirected()
    model = LoopTransformer(3, 2, 2, 2).double().train()
    context = model.prepare(graph)
    state = model.initial_state(context)
    assert context.mask is None
    assert not torch.equal(model.step(state, context), model.step(state, context))
    model.eval()
    assert torch.equal(model.step(state, context), model.step(state, context))
    with pytest.raises(InputError, match="masks must be 'loop' or 'solve', got 'never'"):
        LoopTransformer(3, 2, 2, 2, masks="never")  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(rate=st.floats(0.0, 0.99), rows=st.integers(0, 70), seed=st.integers(0, 2**32 - 1))
def test_a_dropout_mask_keeps_the_mean_and_the_rate(rate: float, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    like = torch.empty(rows, 1001, dtype=torch.float64)
    assert dropout_mask(like, rate, False) is None
    mask = dropout_mask(like, rate, True)
    if rate == 0.0:
        assert mask is None
        return
    assert mask is not None
    assert mask.shape == (rows, 1001)
    dropped = round(rate * 65536) / 65536
    assert set(mask.unique().tolist()) <= {0.0, 1.0 / (1.0 - dropped)}
    if rows:
        deviation = (dropped * (1.0 - dropped) / mask.numel()) ** 0.5
        share = float((mask == 0).double().mean())
        assert abs(share - dropped) <= 6 * deviation + 1e-12
    torch.manual_seed(seed)
    again = dropout_mask(like, rate, True)
    assert again is not None
    assert torch.equal(mask, again)


# ---------------------------------------------------------------------- IGNN


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 2.0), st.integers(0, 1000))
def test_projection_is_the_nearest_point(rows: int, columns: int, radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    projected = project_columns(matrix, radius)
    assert (projected.abs().sum(0) <= radius + 1e-12).all()
    assert torch.allclose(project_columns(projected, radius), projected, atol=1e-12)
    # Variational inequality of the nearest point: <matrix - projected, other - projected> <= 0 for
    # every other point of the ball.
    other = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    other = other * (radius / other.abs().sum(0).clamp(min=1e-9)).clamp(max=1)
    assert (((matrix - projected) * (other - projected)).sum(0) <= 1e-12).all()


def test_ignn_contracts_after_every_projection() -> None:
    graph = undirected(12)
    torch.manual_seed(0)
    model = IGNN(3, 2, 5).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=5.0)
    root = (graph.pointer.diff() + 1).double().sqrt().unsqueeze(1)
    for _ in range(5):
        logits = model.run(graph).logits
        optimiser.zero_grad()
        (logits * torch.randn_like(logits)).sum().backward()
        optimiser.step()
        model.project()
        with torch.no_grad():
            context = model.prepare(graph)
            for scale in (0.1, 1.0, 10.0):
                a, b = scale * torch.randn(2, 12, 5, dtype=torch.float64)
                before = ((a - b).abs() / root).max()
                after = ((model.step(a, context) - model.step(b, context)).abs() / root).max()
                assert after <= (0.9 + 1e-12) * before


def test_ignn_without_projection_can_expand() -> None:
    """The check above is able to fail: the same model with an unprojected weight."""
    graph = undirected(12)
    model = IGNN(3, 2, 5).double()
    with torch.no_grad():
        model.recurrent.copy_(3 * torch.eye(5))
        context = model.prepare(graph)
        state = model.step(torch.ones(12, 5, dtype=torch.float64), context)
        assert (
            model.step(2 * state, context) - model.step(state, context)
        ).abs().max() > 2 * state.abs().max()


def test_ignn_implicit_gradient_equals_unrolled() -> None:
    graph = undirected(8)
    torch.manual_seed(1)
    model = IGNN(3, 2, 5, steps=500, tolerance=1e-13).double()
    gradients = []
    for adjoint in (Implicit(Picard(500, tolerance=1e-13, stop_early=True)), Unrolled()):
        model.zero_grad()
        logits = model.run(graph, adjoint=adjoint).logits
        logits.square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


# ---------------------------------------------------------------------- EIGNN


@pytest.mark.parametrize("self_loops", [False, True])
def test_eignn_closed_form_equals_iteration(self_loops: bool) -> None:
    graph = Graph.union(
        [
            undirected(9, 1),
            undirected(4, 2),
            undirected(9, 3),
            Graph.build(torch.ones(1, 3).double(), torch.zeros(2, 0).long()),
        ]
    )
    torch.manual_seed(0)
    model = EIGNN(3, 2, 5, self_loops=self_loops).double()
    with torch.no_grad():
        closed = model.run(graph)
        iterated = model.run(graph, solver=Picard(steps=500))
    assert closed.solution is not None
    assert closed.solution.converged
    assert closed.solution.steps == 0
    assert iterated.solution is not None
    assert (closed.solution.value - iterated.solution.value).abs().max() < 1e-6


def test_eignn_gradient_equals_autograd_through_eigh() -> None:
    graph = undirected(7)
    torch.manual_seed(0)
    model = EIGNN(3, 2, 4).double()
    cotangent = torch.randn(7, 2, dtype=torch.float64)
    (model.run(graph).logits * cotangent).sum().backward()
    ours = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    context = model.prepare(graph)
    spectrum = spectrum_of(graph)
    assert spectrum is not None
    group = spectrum.groups[0]
    values, vectors = torch.linalg.eigh(context.mixing)
    basis = group.vectors[0]
    state = (
        basis
        @ ((basis.T @ context.drive @ vectors) / (1 - group.values[0][:, None] * values))
        @ vectors.T
    )
    (model.readout(state, context) * cotangent).sum().backward()
    for a, p in zip(ours, model.parameters(), strict=True):
        assert torch.allclose(a, p.grad, rtol=1e-8, atol=1e-10)  # type: ignore[arg-type]


def test_eignn_gradient_survives_equal_eigenvalues() -> None:
    model = EIGNN(3, 2, 4).double()
    with torch.no_grad():
        model.factor.copy_(torch.eye(4))
    model.run(undirected(7)).logits.sum().backward()
    assert torch.isfinite(model.factor.grad).all()  # type: ignore[arg-type]


def test_equal_graphs_share_one_decomposition() -> None:
    graph = sums(chains=40, length=12).train.graph
    spectrum = spectrum_of(graph)
    assert spectrum is not None
    assert spectrum.decompositions == 1
    assert spectrum.groups[0].vectors.shape == (1, 12, 12)
    mixed = Graph.union([undirected(5, 1), undirected(5, 2), undirected(5, 1)])
    spectrum = spectrum_of(mixed)
    assert spectrum is not None
    assert spectrum.decompositions == 2
    assert spectrum_of(mixed) is spectrum


def test_eignn_guards_its_size_and_iterates_directed_graphs() -> None:
    graph = undirected(10)
    with pytest.raises(InputError, match="limited to 5 nodes a graph, got one of 10"):
        EIGNN(3, 2, 4, max_nodes=5).double().run(graph)
    directed = Graph.build(torch.randn(3, 3).double(), torch.tensor([[0, 1], [1, 2]]))
    assert spectrum_of(directed) is None
    solution = EIGNN(3, 2, 4).double().run(directed).solution
    assert solution is not None
    assert solution.converged
    assert solution.steps > 0


def test_eignn_keeps_the_decomposition_out_of_its_state() -> None:
    model = EIGNN(3, 2, 4).double()
    model.run(undirected(10))
    assert set(model.state_dict()) == {
        "factor",
        "drive.weight",
        "drive.bias",
        "linear_readout.weight",
        "linear_readout.bias",
    }


# ---------------------------------------------------------------------- EnergyGNN


def bold_energy(
    activation: str = "softplus", edge_dim: int | None = None, **options: float
) -> EnergyGNN:
    """Weights far from the gentle start, so that the energy is really curved."""
    torch.manual_seed(2)
    model = EnergyGNN(3, 2, 4, activation=activation, edge_dim=edge_dim, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for network in (model.message, model.own, model.update):
            assert isinstance(network, PICNN)
            for raw in (network.raw_hidden, network.raw_out, network.raw_skip):
                raw.copy_(torch.randn_like(raw) - 0.5)
            network.free_gate.bias.fill_(2.0)
            network.free_hidden.bias.fill_(3.0)
    return model


def test_energy_is_strongly_convex() -> None:
    graph = undirected(8, edge_dim=2)
    model = bold_energy(edge_dim=2)
    context = model.prepare(graph)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scale in (0.1, 1.0, 10.0):
            for _ in range(20):
                a, b = scale * torch.randn(2, 8, 4, generator=generator, dtype=torch.float64)
                t = float(torch.rand(1, generator=generator))
                middle = model.node_energies(t * a + (1 - t) * b, context).sum()
                chord = (
                    t * model.node_energies(a, context).sum()
                    + (1 - t) * model.node_energies(b, context).sum()
                )
                assert (
                    middle <= chord - 0.5 * model.beta * t * (1 - t) * (a - b).square().sum() + 1e-9
                )


def test_messages_are_monotone() -> None:
    graph = undirected(8)
    model = bold_energy()
    with torch.no_grad():
        model.beta = 0.0
        context = model.prepare(graph)
        state = torch.randn(8, 4, dtype=torch.float64)
        more = state + torch.rand(8, 4, dtype=torch.float64)
        assert (model.node_energies(more, context) >= model.node_energies(state, context)).all()


def dense_hessian(model: EnergyGNN, graph: Graph, state: torch.Tensor) -> torch.Tensor:
    context = model.prepare(graph)

    def energy(flat: torch.Tensor) -> torch.Tensor:
        return model.node_energies(flat.view_as(state), context).sum()

    return torch.autograd.functional.hessian(energy, state.flatten())  # type: ignore[return-value]


@pytest.mark.parametrize("activation", ["softplus", "relu"])
@pytest.mark.parametrize(
    "case", ["undirected", "directed", "edge features", "isolated nodes", "no edges"]
)
def test_written_out_derivatives_equal_automatic_ones(activation: str, case: str) -> None:
    generator = torch.Generator().manual_seed(5)
    edge_dim = 2 if case == "edge features" else None
    if case in ("undirected", "edge features"):
        graph = undirected(9, edge_dim=edge_dim)
    else:
        # nodes 5 to 8 neither speak nor hear
        few = torch.randint(0, 5, (2, 11), generator=generator)
        index = {
            "directed": torch.randint(0, 9, (2, 30), generator=generator),
            "isolated nodes": few,
        }.get(case, few[:, :0])
        graph = Graph.build(torch.randn(9, 3, generator=generator, dtype=torch.float64), index)
    model = bold_energy(activation, edge_dim)
    context = model.prepare(graph)
    state, vector = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64)
    field = model._field(context)
    rows, gradient = field.evaluate(state)
    # PyTorch takes softplus for linear above 20, where its slope is 2e-9 below one: the written-out
    # slope is the true one.
    torch.testing.assert_close(
        rows, model.node_energies(state, context).detach(), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        gradient, model.gradient_field(state, context).detach(), rtol=1e-8, atol=1e-12
    )
    expected = dense_hessian(model, graph, state).detach() @ vector.flatten()
    torch.testing.assert_close(
        field.hessian(state)(vector).flatten(), expected, rtol=1e-7, atol=1e-7
    )


def test_energy_minimiser_and_gradient_against_the_dense_hessian() -> None:
    graph = undirected(6)
    model = bold_energy(tolerance=1e-11, steps=2000)
    output = model.run(graph)
    solution = output.solution
    assert solution is not None
    assert solution.converged
    assert solution.steps > 5
    state = solution.value.detach()
    hessian = dense_hessian(model, graph, state).detach()
    assert torch.linalg.eigvalsh(hessian)[0] >= model.beta - 1e-12
    cotangent = torch.randn_like(state)
    parameter = model.message.raw_hidden
    (ours,) = torch.autograd.grad(solution.value, parameter, cotangent)
    assert solution.backward is not None
    assert solution.backward.converged
    adjoint = torch.linalg.solve(hessian, cotangent.flatten()).view_as(state)
    (reference,) = torch.autograd.grad(
        -(model.gradient_field(state.requires_grad_(), model.prepare(graph)) * adjoint).sum(),
        parameter,
    )
    assert torch.allclose(ours, reference, rtol=1e-5, atol=1e-8)


def test_energy_step_is_a_contraction_with_the_same_fixed_point() -> None:
    graph = Graph.union([undirected(6, 1), undirected(9, 2)])
    model = bold_energy(tolerance=1e-10, steps=2000)
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.solve(context, graph).value
        assert (model.step(state, context) - state).abs().max() < 1e-9
        for scale in (0.1, 1.0, 10.0):
            a, b = scale * torch.randn(2, 15, 4, dtype=torch.float64)
            assert (model.step(a, context) - model.step(b, context)).norm() < (a - b).norm()
        for part, rows in ((undirected(6, 1), slice(0, 6)), (undirected(9, 2), slice(6, 15))):
            largest = torch.linalg.eigvalsh(dense_hessian(model, part, state[rows]))[-1]
            assert largest <= 1 / context.step_size[rows].min() + 1e-9


def test_energy_step_does_not_trust_its_biases() -> None:
    """The bound is for every pre-activation: a very negative message bias must not lengthen the
    step."""
    graph = undirected(9, 2)
    model = bold_energy()
    usual = model.prepare(graph).step_size
    with torch.no_grad():
        model.message.bias.fill_(-40.0)
        model.own.bias.fill_(-40.0)
    context = model.prepare(graph)
    assert torch.equal(context.step_size, usual)
    # where the update network is past its kink again
    far = torch.full((9, 4), 30.0, dtype=torch.float64)
    for state in (torch.zeros_like(far), far):
        assert (
            torch.linalg.eigvalsh(dense_hessian(model, graph, state))[-1]
            <= 1 / context.step_size.min()
        )


def test_energy_reports_when_it_stops_early() -> None:
    graph = Graph.union(
        [undirected(8), Graph.build(torch.ones(1, 3).double(), torch.zeros(2, 0).long())]
    )
    model = bold_energy()
    with torch.no_grad():
        solution = model.run(graph, steps=1).solution
    assert solution is not None
    assert solution.status is Status.MAX_STEPS
    assert solution.residual > model.tolerance
    with torch.no_grad():
        assert model.run(graph).solution.converged  # type: ignore[union-attr]


def test_relu_energy_reports_its_kinks() -> None:
    """The paper's activation: minimisers sit on kinks, where no gradient is small, and that is
    said. Softplus has none."""
    ended: dict[str, list[Status]] = {"relu": [], "softplus": []}
    for activation, statuses in ended.items():
        model = bold_energy(activation)
        with torch.no_grad():
            for network in (model.message, model.own, model.update):
                for raw in (network.raw_hidden, network.raw_out, network.raw_skip):
                    raw.sub_(2.0)
            for seed in range(1, 5):
                solution = model.run(undirected(10, seed)).solution
                assert solution is not None
                assert solution.converged == (solution.residual <= model.tolerance)
                statuses.append(solution.status)
    assert ended["relu"].count(Status.STAGNATED) >= 2
    assert ended["softplus"].count(Status.CONVERGED) == 4


def test_unsolved_adjoint_warns() -> None:
    graph = undirected(6)
    model = bold_energy()
    output = model.run(graph)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output.logits.mul(float("nan")).sum().backward()
    assert any(issubclass(w.category, BackwardWarning) for w in caught)


# ---------------------------------------------------------------------- GraphAttnDEQ


@torch.no_grad()
def test_normalised_attention_is_homogeneous() -> None:
    graph = undirected(9, edge_dim=2)
    for pre_norm in (True, False):
        torch.manual_seed(0)
        model = GraphAttnDEQ(3, 2, 2, 3, pre_norm=pre_norm, edge_dim=2).double()
        context = model.prepare(graph)
        state = torch.rand(9, 6, dtype=torch.float64) + 0.1
        once = model.attention(state, state, context.edges, context)
        scaled = model.attention(7.0 * state, 7.0 * state, context.edges, context)
        assert torch.allclose(scaled, 7.0 * once) == pre_norm


@torch.no_grad()
def test_attention_iterates_stay_in_the_box() -> None:
    graph = undirected(9)
    model = GraphAttnDEQ(3, 2, 2, 3, shift=1.2).double()
    context = model.prepare(graph)
    state = model.step(50 * torch.rand(9, 6, dtype=torch.float64), context)
    assert (state >= 0.2 - 1e-12).all()
    assert (state <= 2.2 + context.drive + 1e-12).all()


# ---------------------------------------------------------------------- Neural Sheaf Diffusion


@pytest.mark.parametrize("maps", ["diagonal", "full", "orthogonal"])
def test_sheaf_laplacian_is_symmetric_with_spectrum_in_zero_two(maps: str) -> None:
    graph = undirected(7)
    torch.manual_seed(0)
    layer = SheafLayer(3, 2, maps).double()
    n, d = 7, 3
    with torch.no_grad():
        diagonal, off = layer.laplacian(3 * torch.randn(n, 6, dtype=torch.float64), graph)
    if maps == "diagonal":
        diagonal, off = torch.diag_embed(diagonal), torch.diag_embed(off)
    dense = torch.zeros(n, n, d, d, dtype=torch.float64)
    dense[graph.target, graph.source] = off
    dense[torch.arange(n), torch.arange(n)] = diagonal
    matrix = dense.permute(0, 2, 1, 3).reshape(n * d, n * d)
    assert torch.allclose(matrix, matrix.T)
    values = torch.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-10
    assert values[-1] <= 2 + 1e-10


@pytest.mark.parametrize("maps", ["diagonal", "full", "orthogonal"])
def test_sheaf_layer_equals_its_dense_laplacian(maps: str) -> None:
    graph = undirected(6)
    torch.manual_seed(0)
    model = NeuralSheafDiffusion(3, 2, 3, 2, layers=1, maps=maps).double()
    layer = model.layers[0]
    assert isinstance(layer, SheafLayer)
    with torch.no_grad():
        state = torch.randn(6, 6, dtype=torch.float64)
        diagonal, off = layer.laplacian(state, graph)
        base = graph.edges
        kind = base.heads(3) if maps == "diagonal" else base.blocks(3)
        stalks = state.view(6, 3, 2)
        result = layer.diffuse(diagonal, off, stalks, kind)
        if maps == "diagonal":
            diagonal, off = torch.diag_embed(diagonal), torch.diag_embed(off)
        expected = (diagonal @ stalks).index_add(0, graph.target, off @ stalks[graph.source])
    assert torch.allclose(result, expected)


def test_householder_products_are_orthogonal() -> None:
    maps = householder(torch.randn(20, 6, dtype=torch.float64), 4)
    assert torch.allclose(
        maps.transpose(1, 2) @ maps, torch.eye(4, dtype=torch.float64).expand(20, 4, 4)
    )


def test_inverse_square_root_and_its_gradient() -> None:
    root = torch.randn(5, 3, 3, dtype=torch.float64)
    matrix = root @ root.transpose(1, 2) + torch.eye(3, dtype=torch.float64)
    inverse = inverse_square_root(matrix)
    assert torch.allclose(
        inverse @ matrix @ inverse, torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
    )

    def symmetric(free: torch.Tensor) -> torch.Tensor:
        return inverse_square_root(free @ free.transpose(1, 2) + torch.eye(3, dtype=torch.float64))

    assert torch.autograd.gradcheck(symmetric, root.requires_grad_())
    equal = torch.eye(3, dtype=torch.float64).expand(2, 3, 3).clone().requires_grad_()
    inverse_square_root(equal).sum().backward()
    assert torch.isfinite(equal.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["graph-attn-deq", "loop-transformer", "ignn", "appnp"])
def test_a_node_without_neighbours_can_update_alone(name):
    graph = Graph.build(torch.randn(3, 2), torch.zeros(2, 0, dtype=torch.long))
    torch.manual_seed(0)
    model = build_model(name, Shape(2, 3, None, 2, 3, 4)).eval()
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.initial_state(context)
        torch.testing.assert_close(
            model.local_step(state, state[:0], context), model.step(state, context)
        )
