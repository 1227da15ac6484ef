"""Plain tensors at the door: every subclass that torch and PyG ship, and views with a lazy sign."""

import warnings

import pytest
import torch
from torch import nn
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data
from torch_geometric.hash_tensor import HashTensor

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.models import SheafCascade, SheafDEQ, StrongSheafDEQ
from sheafdeq.ops import native_available
from sheafdeq.ops.native_calls import native_layout
from sheafdeq.plain_tensor import plain_tensor

EDGES = [[0, 1, 1, 2], [1, 0, 2, 1]]


class Labelled(torch.Tensor):
    """A subclass of one's own: memory with a label, no dispatch."""


def negated(tensor):
    """The same numbers, stored with the other sign and a bit that says so."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg()
    assert torch.equal(view, tensor)
    return view


def conjugated(tensor):
    """A real view of a lazily conjugated tensor: numbers as they are, no bit left."""
    return torch.complex(tensor, torch.ones_like(tensor)).conj().real


SAME_NUMBERS = {
    "parameter": nn.Parameter,
    "buffer": nn.Buffer,
    "subclass": lambda tensor: tensor.as_subclass(Labelled),
    "negative-bit": negated,
    "conjugate": conjugated,
    "strided": lambda tensor: tensor.repeat_interleave(2, dim=1)[:, ::2],
}


@pytest.fixture
def features():
    return torch.randn(3, 2, generator=torch.Generator().manual_seed(0))


def all_subclasses(kind):
    return {kind, *(deeper for child in kind.__subclasses__() for deeper in all_subclasses(child))}


@pytest.mark.parametrize("kind", sorted(SAME_NUMBERS))
def test_same_numbers_and_the_same_gradient(kind, features):
    leaf = features.clone().requires_grad_()
    value = SAME_NUMBERS[kind](leaf if kind not in ("parameter", "buffer") else features.clone())
    result = plain_tensor(value, "x")
    assert type(result) is torch.Tensor
    assert not result.is_neg()
    assert not result.is_conj()
    assert torch.equal(result.detach(), features)
    if kind != "buffer":
        result.sum().backward()
        assert torch.equal((value if kind == "parameter" else leaf).grad, torch.ones_like(features))


@pytest.mark.parametrize("model", [SheafDEQ, StrongSheafDEQ, SheafCascade])
@pytest.mark.parametrize("kind", sorted(SAME_NUMBERS))
def test_models_answer_as_for_plain_tensors(kind, model, features):
    torch.manual_seed(1)
    model = model(2, 2, 2, 3, edge_dim=2)
    edge_attr = torch.randn(4, 2)
    edges = torch.tensor(EDGES)
    expected = model(features, edges, edge_attr)
    given = SAME_NUMBERS[kind](features.clone())
    result = model(given, EdgeIndex(EDGES), SAME_NUMBERS[kind](edge_attr.clone()))
    assert type(result) is torch.Tensor
    assert torch.equal(result, expected)


@pytest.mark.parametrize("order", [None, "row", "col"])
def test_edge_index_of_pyg_in_any_order(order, features):
    edges = EdgeIndex(EDGES, sparse_size=(3, 3), is_undirected=True, sort_order="row")
    edges = edges if order in (None, "row") else edges.sort_by("col").values
    torch.manual_seed(0)
    model = SheafDEQ(2, 2, 2, 3)
    graph = Graph.from_data(Data(x=features, edge_index=edges))
    assert type(graph.edge_index) is torch.Tensor
    assert torch.equal(model.run(graph).logits, model(features, torch.tensor(EDGES)))


def test_index_of_pyg_names_the_graphs(features):
    batch = Index([0, 0, 1], dim_size=2, is_sorted=True)
    graph = Graph.build(features, torch.tensor([[0, 1], [1, 0]]), batch=batch)
    assert type(graph.graph_of_node) is torch.Tensor
    assert graph.num_graphs == 2


def test_layouts_take_what_pyg_hands_out():
    edges = EdgeIndex([[1, 0, 2, 1], [0, 1, 1, 2]], sparse_size=(3, 3), sort_order="col")
    layout = Edges.build(
        edges[0], Index([0, 1, 3, 4]), negated(torch.ones(4)), nn.Parameter(torch.ones(3)), 3
    )
    assert {
        type(part) for part in (layout.source, layout.pointer, layout.weight, layout.degree)
    } == {torch.Tensor}
    if native_available():
        assert native_layout(layout) is not None


def test_hash_tensors_are_taken_by_value():
    table = HashTensor(torch.tensor([5, 7, 9]), torch.randn(3, 2))
    try:
        assert torch.equal(plain_tensor(table, "x"), table.as_tensor())
    except InputError as error:
        assert "HashTensor" in str(error)  # noqa: PT017 - either outcome is fine, a crash is not


def refused():
    """What has no dense tensor of numbers inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of these announce that they are prototypes
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.masked import masked_tensor

        with FakeTensorMode():
            fake = torch.ones(3, 2)
        ones = torch.ones(3, 2)
        return {
            "masked": masked_tensor(ones, ones > 0),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "jagged": torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], layout=torch.jagged
            ),
            "sparse": ones.to_sparse(),
            "compressed": ones.to_sparse_csr(),
            "meta": torch.ones(3, 2, device="meta"),
            "fake": fake,
            "uninitialised": nn.UninitializedParameter(),
            "uninitialised buffer": nn.UninitializedBuffer(),
        }


@pytest.mark.parametrize("kind", sorted(refused()))
def test_what_is_not_one_dense_tensor_is_refused_by_name(kind):
    value = refused()[kind]
    with pytest.raises(InputError, match=r"^x "):
        plain_tensor(value, "x")
    with pytest.raises(InputError):
        Graph.build(value, torch.tensor(EDGES))
    with pytest.raises(InputError):
        Graph.build(torch.ones(3, 2), value)


def test_every_subclass_that_is_loaded_is_accounted_for():
    """A new subclass in torch or PyG must be looked at here before it reaches native code."""
    known = {
        "Tensor",
        "Parameter",
        "Buffer",
        "UninitializedParameter",
        "UninitializedBuffer",
        "FlatParameter",
        "ExpandedWeight",
        "Labelled",
        "Index",
        "EdgeIndex",
        "HashTensor",
        "NestedTensor",
        "MaskedTensor",
        "FakeTensor",
        "FunctionalTensor",
        "LoggingTensor",
        "LoggingTensorReentrant",
        "DTensor",
        "SparseSemiStructuredTensor",
        "SparseSemiStructuredTensorCUTLASS",
        "SparseSemiStructuredTensorCUSPARSELT",
        "ShardedTensorBase",
        "ShardedTensor",
        "AsyncCollectiveTensor",
        "LocalTensor",
        "TwoTensor",
        "CausalBias",
    }
    readable = {
        "Tensor",
        "Parameter",
        "Buffer",
        "FlatParameter",
        "ExpandedWeight",
        "Labelled",
        "CausalBias",
        "UninitializedParameter",
        "UninitializedBuffer",
    }
    for kind in all_subclasses(torch.Tensor):
        if not kind.__module__.startswith(("torch", "sheafdeq", __name__)):
            continue
        assert kind.__name__ in known, kind
        dispatches = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        assert dispatches == (kind.__name__ not in readable), kind


@pytest.mark.parametrize("kind", ["negative-bit", "subclass", "parameter"])
def test_starts_are_read_with_their_own_sign(kind, features):
    torch.manual_seed(2)
    model = SheafDEQ(2, 2, 2, 3)
    graph = Graph.build(features, torch.tensor(EDGES))
    start = torch.rand(3, 6) + 0.5
    with torch.no_grad():
        ends = [
            model.run(graph, initial_state=s, steps=1).solution.value
            for s in (start, SAME_NUMBERS[kind](start.clone()))
        ]
    assert torch.equal(*ends)
