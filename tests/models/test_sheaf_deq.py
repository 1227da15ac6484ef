import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

import sheafdeq.models.sheaf_deq as module
from graphs import random_graph
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers.restriction import normalise_rows
from sheafdeq.models import SheafDEQ
from sheafdeq.solvers import Picard
from sheafdeq.testing import ModelContract, example_graphs

DOUBLE = torch.float64


class TestContract(ModelContract):
    def make_model(self):
        return SheafDEQ(3, 2, 3, 2, steps=4)


class TestContractWithEdgeFeatures(ModelContract):
    def make_model(self):
        return SheafDEQ(3, 2, 2, 3, steps=4, edge_dim=2)


def awake(model):
    """With four hidden units and zero biases some edges have only dead units, and a zero map is a
    point of discontinuity."""
    with torch.no_grad():
        for generator in (model.source_maps, model.target_maps):
            generator[2].bias.normal_()
    return model


class TestContractWithoutNormalisation(ModelContract):
    def make_model(self):
        return awake(SheafDEQ(3, 2, 2, 2, steps=4, pre_norm=False))


class TestContractWithoutStalkMixing(ModelContract):
    def make_model(self):
        return SheafDEQ(3, 2, 3, 2, steps=4, mixers="channels")


class TestContractOtherNorm(ModelContract):
    def make_model(self):
        return awake(SheafDEQ(3, 2, 2, 2, steps=4, norm_order=math.inf))


@st.composite
def cases(draw, edge=True):
    """A random model and a random graph (isolated nodes, self-loops, duplicates, several graphs),
    all in float64."""
    d, q = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 10**6))
    edge_dim = draw(st.sampled_from([None, 1, 3])) if edge else None
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    g = torch.Generator().manual_seed(seed)
    graphs = []
    for n in sizes:
        e = int(torch.randint(0, 3 * n, (1,), generator=g))
        options = {"edge_dim": edge_dim or 0, "isolated": False}
        graphs.append(random_graph(n, e, seed + len(graphs), **options))
    graph = Graph.union(graphs)
    torch.manual_seed(seed)
    model = SheafDEQ(
        2,
        3,
        d,
        q,
        edge_dim=edge_dim,
        shift=draw(st.sampled_from([1.05, 1.2, 1.6])),
        pre_norm=draw(st.booleans()),
        norm_order=draw(st.sampled_from([1.0, 2.0, 3.0, math.inf])),
        mixers=draw(st.sampled_from(["stalks", "channels"])),
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.normal_()
    state = torch.exp(torch.randn(graph.num_nodes, d * q, generator=g, dtype=DOUBLE))
    return model, graph, state


def mixers(model):
    """W_1 on stalks and W_2 on channels; or nothing on stalks and W_1 W_2 on channels."""
    if model.mixers == "stalks":
        return model.stalk_mixing, model.channel_mixing
    return torch.eye(model.stalk_dim, dtype=DOUBLE), model.first_mixing @ model.channel_mixing


def dense_step(model, graph, state):
    """The paper's formula with dense matrices: R^-1(P (I_n (x) W_1) R(H) W_2), P = I - D^-1/2 L
    D^-1/2, one edge at a time."""
    n, d, q = graph.num_nodes, model.stalk_dim, model.channels
    stacked = state.view(n * d, q)
    norm = torch.linalg.vector_norm(stacked, ord=model.norm_order, dim=1, keepdim=True)
    z = (stacked / norm if model.pre_norm else stacked).view(n, d * q)
    degree = torch.zeros(n, dtype=DOUBLE)
    for v in graph.target.tolist():
        degree[v] += 1
    degree = degree.clamp(min=1)
    laplacian = torch.zeros(n * d, n * d, dtype=DOUBLE)
    for k, (u, v) in enumerate(graph.edge_index.T.tolist()):
        inputs = [z[u], z[v]] + ([graph.edge_attr[k]] if graph.edge_attr is not None else [])
        maps = []
        for generator in (model.source_maps, model.target_maps):
            raw = generator(torch.cat(inputs)).view(d, d)
            maps.append(raw / torch.linalg.matrix_norm(raw))
        source, target = maps
        laplacian[v * d : (v + 1) * d, v * d : (v + 1) * d] += target.T @ target
        laplacian[v * d : (v + 1) * d, u * d : (u + 1) * d] -= target.T @ source
    root = torch.kron(torch.diag(degree**-0.5), torch.eye(d, dtype=DOUBLE))
    p = torch.eye(n * d, dtype=DOUBLE) - root @ laplacian @ root
    stalks, channels = mixers(model)
    moved = p @ torch.kron(torch.eye(n, dtype=DOUBLE), stalks) @ stacked @ channels
    drive = torch.relu(graph.x @ model.drive.weight.T + model.drive.bias)
    return torch.tanh(moved.view(n, d * q)) + model.shift + drive


@settings(max_examples=80)
@given(cases())
def test_dense_twin(case):
    model, graph, state = case
    with torch.no_grad():
        context = model.prepare(graph)
        stalks, channels = mixers(model)
        expected = dense_step(model, graph, state)
        for computed in (
            model.step(state, context),
            model.local_step(state, state[graph.source], context),
            torch.tanh(
                (
                    model.operator(state, context).to_dense()
                    @ (stalks @ state.view(-1, model.stalk_dim, model.channels) @ channels).reshape(
                        -1, model.channels
                    )
                ).view_as(state)
            )
            + model.shift
            + context.drive,
        ):
            assert float((computed - expected).abs().max()) < 1e-10


@given(cases(), st.floats(1e-3, 1e3))
def test_maps_are_scale_invariant_and_propagation_homogeneous_with_normalisation(case, scale):
    model, graph, state = case
    model.pre_norm = True
    with torch.no_grad():
        context = model.prepare(graph)
        one, many = model.operator(state, context), model.operator(scale * state, context)
        assert torch.allclose(one.source_maps, many.source_maps, atol=1e-9)
        assert torch.allclose(one.target_maps, many.target_maps, atol=1e-9)
        values = state.view(graph.num_nodes, model.stalk_dim, model.channels)
        assert torch.allclose(
            many.apply(scale * values), scale * one.apply(values), rtol=1e-8, atol=1e-9 * scale
        )


def test_homogeneity_breaks_without_normalisation():
    model = SheafDEQ(3, 2, 2, 3, pre_norm=False).double()
    graph = example_graphs(3)[0]
    state = torch.rand(graph.num_nodes, 6, dtype=DOUBLE) + 0.5
    with torch.no_grad():
        for generator in (model.source_maps, model.target_maps):
            generator[0].bias.normal_()
            generator[2].bias.normal_()
        context = model.prepare(graph)
        one, ten = model.operator(state, context), model.operator(10 * state, context)
    assert float((one.source_maps - ten.source_maps).abs().max()) > 0.01


@given(cases())
def test_every_iterate_after_the_first_is_in_the_invariant_box(case):
    model, graph, state = case
    with torch.no_grad():
        context = model.prepare(graph)
        for _ in range(4):
            state = model.step(state, context)
            assert bool((state >= model.shift - 1).all())
            assert bool((state <= model.shift + 1 + context.drive).all())


@pytest.mark.parametrize("order", [1, 1.5, 2, 7, math.inf])
def test_row_normalisation_is_scale_invariant_and_unit(order):
    state = torch.rand(5, 6, dtype=DOUBLE) + 0.1
    unit = normalise_rows(state, 2, 3, order)
    norms = torch.linalg.vector_norm(unit.view(-1, 3), ord=order, dim=1)
    assert torch.allclose(norms, torch.ones_like(norms))
    assert torch.allclose(normalise_rows(17.0 * state, 2, 3, order), unit)
    assert torch.equal(normalise_rows(torch.zeros(1, 6), 2, 3, order), torch.zeros(1, 6))


def test_zero_maps_stay_zero_and_do_not_poison_the_gradient():
    model = SheafDEQ(3, 2, 2, 2, steps=3).double()
    with torch.no_grad():
        for generator in (model.source_maps, model.target_maps):
            generator[2].weight.zero_()
            generator[2].bias.zero_()
    graph = example_graphs(3)[0]
    output = model.run(graph)
    output.logits.sum().backward()
    assert bool(torch.isfinite(output.logits).all())
    # a floored division would give 1e12
    assert all(float(p.grad.abs().max()) < 1e3 for p in model.parameters())


def test_paper_parameter_counts():
    assert SheafDEQ(2, 3).num_parameters() == 10_750
    assert SheafDEQ(3, 3).num_parameters() == 10_798
    assert SheafDEQ(3, 3, steps=50).num_parameters() == 10_798
    assert SheafDEQ(3, 3, mixers="channels").num_parameters() == 11_045  # as printed


def test_unknown_mixers_are_named():
    with pytest.raises(InputError, match="mixers must be 'stalks' or 'channels', got 'nodes'"):
        SheafDEQ(2, 3, mixers="nodes")


def test_named_parameters_can_be_exchanged():
    model = SheafDEQ(3, 2, 2, 4, edge_dim=5)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {
        "drive.weight": (8, 3),
        "drive.bias": (8,),
        "source_maps.0.weight": (8, 21),
        "source_maps.0.bias": (8,),
        "source_maps.2.weight": (4, 8),
        "source_maps.2.bias": (4,),
        "target_maps.0.weight": (8, 21),
        "target_maps.0.bias": (8,),
        "target_maps.2.weight": (4, 8),
        "target_maps.2.bias": (4,),
        "stalk_mixing": (2, 2),
        "channel_mixing": (4, 4),
        "readout.weight": (2, 8),
        "readout.bias": (2,),
    }


def test_initial_state_is_a_unit_row_of_ones():
    model = SheafDEQ(3, 2, 3, 16)
    context = model.prepare(example_graphs(3)[0].to(torch.float32))
    state = model.initial_state(context)
    assert torch.allclose(state.norm(dim=1), torch.ones(len(state)))
    assert len(state.unique()) == 1


def test_xavier_ranges_and_zero_biases():
    model = SheafDEQ(3, 2, 3, 4)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert float(parameter.detach().abs().max()) == 0.0, name
        else:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.5 * bound < float(parameter.detach().abs().max()) <= bound, name


def test_pyg_batch_equals_single_graphs_in_float32():
    model = SheafDEQ(2, 3, 2, 4, steps=6)
    parts = [
        Data(x=torch.randn(n, 2), edge_index=torch.randint(0, n, (2, 3 * n))) for n in (4, 7, 1)
    ]
    batch = Batch.from_data_list(parts)
    together = model(batch.x, batch.edge_index, batch=batch.batch)
    alone = torch.cat([model(p.x, p.edge_index) for p in parts])
    assert torch.allclose(together, alone, atol=1e-5)


def test_return_info_and_test_time_continuation():
    model = SheafDEQ(2, 3, 2, 4, steps=5)
    x, index = torch.randn(6, 2), torch.randint(0, 6, (2, 12))
    outputs, info = model(x, index, return_info=True)
    assert outputs.shape == (6, 3)
    assert (info.steps, len(info.residuals)) == (5, 5)
    _, longer = model(x, index, return_info=True, steps=40)
    assert longer.steps == 40
    assert longer.residuals[:5] == pytest.approx(info.residuals, rel=1e-4)


def test_solver_by_name_and_repr():
    model = SheafDEQ(2, 3, 2, 4, solver="anderson", gradient="truncated:2", pre_norm=False)
    assert repr(model) == (
        "SheafDEQ(2, 3, stalk_dim=2, channels=4, shift=1.3, steps=20, pre_norm=False)"
    )
    output = model(torch.randn(3, 2), torch.tensor([[0, 1], [1, 2]]))
    output.sum().backward()
    assert float(model.channel_mixing.grad.abs().sum()) > 0


def test_edge_order_does_not_matter():
    model = SheafDEQ(2, 3, 2, 3, edge_dim=2).double()
    x, index, attr = (
        torch.randn(5, 2, dtype=DOUBLE),
        torch.randint(0, 5, (2, 14)),
        torch.randn(14, 2, dtype=DOUBLE),
    )
    # distinct edges: the order is then fully determined
    index = torch.tensor(list(dict.fromkeys(map(tuple, index.T.tolist())))).T
    attr = attr[: index.shape[1]]
    order = torch.randperm(index.shape[1])
    assert torch.equal(model(x, index, attr), model(x, index[:, order], attr[order]))


def test_the_kernel_and_the_pure_path_agree_through_training_steps():
    """The same two optimiser steps with either kernel end at the same weights."""
    from sheafdeq.ops.native_module import native_available, use_kernel

    if not native_available():
        pytest.skip("the native kernel is not built here")
    graph = Graph.union(example_graphs(3))
    ends = []
    for kernel in ("native", "reference"):
        torch.manual_seed(1)
        model = SheafDEQ(3, 2, 3, 4, steps=5).double()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        with use_kernel(kernel):
            for _ in range(2):
                optimiser.zero_grad()
                model.run(graph).logits.square().mean().backward()
                optimiser.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-9, atol=1e-11)


def test_broken_sign_in_the_operator_is_caught_by_the_dense_twin(monkeypatch):
    """The twin must be able to fail: with the message sign flipped it does."""
    model, graph = SheafDEQ(3, 2, 2, 2).double(), example_graphs(3)[0]
    state = torch.rand(graph.num_nodes, 4, dtype=DOUBLE) + 0.5
    honest = module.sheaf_step
    monkeypatch.setattr(
        module,
        "sheaf_step",
        lambda s, drive, *rest: 2 * drive + 2 * rest[-1].shift - honest(s, drive, *rest),
    )
    with torch.no_grad():
        broken = model.step(state, model.prepare(graph))
        assert float((broken - dense_step(model, graph, state)).abs().max()) > 1e-3


def test_picard_of_zero_steps_reads_out_the_start():
    model = SheafDEQ(2, 1, 1, 1)
    output, info = model(
        torch.zeros(2, 2),
        torch.zeros(2, 0, dtype=torch.long),
        return_info=True,
        solver=Picard(steps=0),
    )
    assert torch.allclose(output, model.readout(torch.ones(2, 1)))
    assert info.steps == 0


def test_grid_of_sizes_runs_in_both_precisions():
    for (d, q), dtype in itertools.product(
        [(1, 1), (2, 8), (3, 2), (4, 5), (7, 2)], [torch.float32, DOUBLE]
    ):
        model = SheafDEQ(2, 2, d, q, steps=2).to(dtype)
        out = model(torch.randn(4, 2, dtype=dtype), torch.tensor([[0, 1, 2], [1, 2, 3]]))
        assert out.dtype == dtype
