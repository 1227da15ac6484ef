"""What PyG users hold: ``Data``, ``Batch``, ``adj_t``, sparse tensors, and options by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

import sheafdeq
from sheafdeq import (
    Anderson,
    Graph,
    Implicit,
    Schedule,
    SheafCascade,
    SheafCascadeLayer,
    SheafDEQ,
    SheafDEQLayer,
    Status,
    certify,
    continue_iteration,
    multistart,
    simulate,
)
from sheafdeq.asynchronous.study import staleness_study
from sheafdeq.asynchronous.threaded import run_threads
from sheafdeq.diagnostics.spectrum import spectral_radius
from sheafdeq.distributed.infer import infer
from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.errors import InputError
from sheafdeq.predictions import certify_predictions
from sheafdeq.predictions.attack import attack
from sheafdeq.registry import COMMUNITY, MODELS, build_model

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
# directed on purpose: a matrix that is read the wrong way round gives other numbers
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 5], [1, 0, 2, 3, 2, 3, 4, 0]])


def made(name: str) -> GraphModel:
    torch.manual_seed(1)
    return build_model(name, COMMUNITY).eval()


def csr(edges: Tensor, values: Tensor | None = None) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that CSR tensors are in beta
        return coo(edges, values).to_sparse_csr()


def coo(edges: Tensor, values: Tensor | None = None) -> Tensor:
    values = torch.ones(edges.shape[1]) if values is None else values
    size = (6, 6, *values.shape[1:])
    return torch.sparse_coo_tensor(edges.flip(0), values, size, check_invariants=True)


def csc(edges: Tensor, values: Tensor | None = None) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return coo(edges, values).to_sparse_csc()


class SparseTensorLike:
    """The face of torch_sparse's class that is used."""

    def __init__(self, edges: Tensor) -> None:
        self.edges = edges

    def coo(self) -> tuple[Tensor, Tensor, None]:
        return self.edges[1], self.edges[0], None

    def sparse_sizes(self) -> tuple[int, int]:
        return 6, 6


MATRICES = {
    "coo": coo,
    "coalesced": lambda edges: coo(edges).coalesce(),
    "csr": csr,
    "csc": csc,
    "adj_t": lambda edges: ToSparseTensor()(Data(x=X, edge_index=edges)).adj_t,
    "edge index": lambda edges: EdgeIndex(edges, sparse_size=(6, 6)),
    "sparse tensor": SparseTensorLike,
}


@pytest.mark.filterwarnings("ignore:Sparse.*:UserWarning")  # PyG makes unchecked ones
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", ["sheafdeq", "sheaf-cascade", "ignn", "gcn"])
def test_adjacency_matrices_are_the_edges_they_hold(kind: str, name: str) -> None:
    model = made(name)
    assert torch.equal(model(X, MATRICES[kind](EDGES)), model(X, EDGES))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_data_and_batches(name: str) -> None:
    model = made(name)
    data = Data(x=X, edge_index=EDGES)
    expected = model(X, EDGES)
    assert torch.equal(model(data), expected)
    assert torch.equal(model(Graph.of(data)), expected)
    assert torch.equal(model.run(data).logits, expected)
    batch = Batch.from_data_list([data, data])
    outputs, solution = model(batch, return_info=True)
    assert torch.allclose(outputs, torch.cat([expected, expected]), atol=1e-5)
    if solution is not None:
        assert len(solution.graph_status) == 2


@pytest.mark.parametrize("layer", [SheafDEQLayer, SheafCascadeLayer])
def test_layers_take_data(layer: Any) -> None:
    torch.manual_seed(0)
    made_layer = layer(2, 6)
    assert torch.equal(made_layer(Data(x=X, edge_index=EDGES)), made_layer(X, EDGES))


def test_data_brings_its_edge_features_and_its_matrix() -> None:
    torch.manual_seed(0)
    model, attr = SheafDEQ(2, 3, edge_dim=1), torch.rand(8)
    expected = model(X, EDGES, attr.unsqueeze(1))
    assert torch.equal(model(X, EDGES, attr), expected)
    assert torch.equal(model(Data(x=X, edge_index=EDGES, edge_attr=attr)), expected)
    wide = coo(EDGES, attr.unsqueeze(1))
    assert torch.equal(model(X, wide), expected)
    assert torch.equal(model(Data(x=X, adj_t=wide)), expected)


@pytest.mark.parametrize("kind", [coo, csr, csc])
@pytest.mark.parametrize("name", ["sheafdeq", "sheaf-cascade", "gcn"])
def test_values_of_a_matrix_are_weights_of_edges(kind: Any, name: str) -> None:
    model, weight = made(name), torch.rand(8) + 0.5
    expected = model(X, EDGES, edge_weight=weight)
    assert torch.allclose(model(X, kind(EDGES, weight)), expected, atol=1e-6)
    assert not torch.allclose(model(X, EDGES), expected, atol=1e-3)


def test_what_holds_no_single_graph_is_named() -> None:
    model = made("sheafdeq")
    data = Data(x=X, edge_index=EDGES)
    with pytest.raises(InputError, match="edge_index is missing"):
        model(X)
    with pytest.raises(InputError, match="leave edge_index out"):
        model(data, EDGES)
    with pytest.raises(InputError, match="to_homogeneous"):
        model(HeteroData())
    with pytest.raises(InputError, match="no 'edge_index'"):
        model(Data(x=X))
    with pytest.raises(InputError, match="got str"):
        model("graph.pt")
    with pytest.raises(InputError, match=r"size \(6, 6\)"):
        model(X[:5], coo(EDGES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = csr(EDGES).to_sparse_bsr((2, 2))
    with pytest.raises(InputError, match="COO, CSR, CSC"):
        model(X, blocks)
    with pytest.raises(InputError, match="edge_attr was given too"):
        SheafDEQ(2, 3, edge_dim=1)(X, coo(EDGES, torch.rand(8, 1)), torch.rand(8))


def test_studies_take_data() -> None:
    torch.manual_seed(0)
    model = SheafCascade(2, 3, 2, 3, levels=2)
    data = Data(x=X, edge_index=EDGES)
    graph = Graph.of(data)
    first, second = certify(model, data, effort="quick"), certify(model, graph, effort="quick")
    assert (first.verdict, first.rate) == (second.verdict, second.rate)
    schedule = Schedule(2, 2, seed=0)
    runs = [simulate(model, g, schedule, work=20) for g in (data, graph)]
    assert torch.equal(runs[0].state, runs[1].state)
    assert torch.equal(
        continue_iteration(model, data, iterations=5).end.state,
        continue_iteration(model, graph, iterations=5).end.state,
    )
    assert multistart(model, data, iterations=30).agreement.agree
    state = model.run(data).solution.value
    assert spectral_radius(model, data, state).radius == pytest.approx(
        spectral_radius(model, graph, state).radius
    )
    assert staleness_study(model, data, [schedule], samples=1, work=5).conditions
    assert run_threads(model, data, 2, rounds=3).state.shape == (6, 12)
    assert infer(model, data, 2, engine="in-process").solution.status is Status.CONVERGED
    assert torch.equal(
        certify_predictions(model, data).label, model.double()(graph.to(torch.float64)).argmax(1)
    )
    assert attack(model, data, 1e-3, restarts=1, ascents=1).label.shape == (6,)
    assert model.float().run_to_equilibrium(data).solution.status is Status.CONVERGED


@pytest.mark.parametrize("name", [n for n in MODELS if isinstance(made(n), EquilibriumModel)])
def test_solvers_and_gradients_by_name_at_call_time(name: str) -> None:
    model = made(name)
    named, by_name = model(X, EDGES, return_info=True, solver="anderson", steps=30)
    given, by_object = model(X, EDGES, return_info=True, solver=Anderson(30))
    assert torch.equal(named, given)
    assert by_name.steps == by_object.steps
    model(X, EDGES, solver="picard", adjoint="truncated:2").sum().backward()
    outputs = model(X, EDGES, solver=Anderson(40), adjoint=Implicit())
    assert outputs.shape == (6, 3)


def test_names_that_do_not_exist_are_answered_with_those_that_do() -> None:
    model = made("sheafdeq")
    for call, words in (
        (lambda: model(X, EDGES, solver="andersen"), "'picard', 'anderson'"),
        (lambda: model(X, EDGES, solver=Anderson), "a solver object"),
        (lambda: model(X, EDGES, solver=7), "a solver object"),
        (lambda: model(X, EDGES, adjoint="adjoint"), "'unrolled', 'implicit', 'truncated'"),
        (lambda: model(X, EDGES, adjoint=Implicit), "an adjoint object"),
        (lambda: model(X, EDGES, step=5), "did you mean 'steps'.*initial_state, solver, adjoint"),
        (lambda: SheafDEQ(2, 3, solver="newton"), "'picard', 'anderson'"),
        (lambda: SheafDEQ(2, 3, gradient="exact"), "'unrolled', 'implicit', 'truncated'"),
        (lambda: SheafCascade(2, 3, gate="relu"), "balance, rational, tanh"),
        (lambda: certify(model, Graph.build(X, EDGES), effort="huge"), "quick"),
        (lambda: build_model("sheaf-deq", COMMUNITY), "did you mean 'sheafdeq'"),
        (lambda: build_model("sheafdeq", COMMUNITY, shifft=2), "did you mean 'shift'"),
        (lambda: sheafdeq.load_task("communities"), "did you mean 'community'"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    with pytest.raises(InputError, match="feed-forward"):
        made("gcn")(X, EDGES, steps=5)
