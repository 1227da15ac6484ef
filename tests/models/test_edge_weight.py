"""How much an edge counts: zero is absent, two is twice, one is plain, and slopes are right."""

import pytest
import torch
from torch_geometric.nn import GCNConv

from sheafdeq.certificates import certify
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models import APPNP, EIGNN, GAT, GCN, IGNN, MLP, SheafCascade, SheafDEQ
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.models.neural_sheaf_diffusion import NeuralSheafDiffusion

MODELS = {
    "sheafdeq": lambda: SheafDEQ(3, 2, 2, 3, steps=5),
    "cascade": lambda: SheafCascade(3, 2, 2, 3, levels=2, level_steps=4),
    "gcn": lambda: GCN(3, 2, 6),
    "gat": lambda: GAT(3, 2, 2, 3),
    "ignn": lambda: IGNN(3, 2, 6),
    "eignn": lambda: EIGNN(3, 2, 6),
    "appnp": lambda: APPNP(3, 2, 6),
    "mlp": lambda: MLP(3, 2, 6, 2),
    "nsd": lambda: NeuralSheafDiffusion(3, 2, 2, 3, layers=2),
    "nsd-full": lambda: NeuralSheafDiffusion(3, 2, 2, 3, layers=2, maps="full"),
    "nsd-orthogonal": lambda: NeuralSheafDiffusion(3, 2, 2, 3, layers=2, maps="orthogonal"),
}
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 0, 2], [1, 0, 2, 1, 3, 2, 0, 3, 2, 0]])


def made(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    return MODELS[name]().double().eval(), torch.randn(5, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_one_is_plain_zero_is_absent_two_is_twice(name: str) -> None:
    model, x = made(name)
    ones = torch.ones(EDGES.shape[1], dtype=torch.float64)
    plain = model(x, EDGES)
    torch.testing.assert_close(model(x, EDGES, edge_weight=ones), plain, rtol=1e-5, atol=1e-6)
    fewer = ones.clone()
    fewer[-2:] = 0
    without = model(x, EDGES[:, :-2])
    torch.testing.assert_close(model(x, EDGES, edge_weight=fewer), without, rtol=1e-5, atol=1e-6)
    if name != "mlp":
        assert not torch.allclose(plain, without, rtol=1e-6)
    twice = torch.cat([EDGES, EDGES[:, -2:]], dim=1)
    more = ones.clone()
    more[-2:] = 2
    torch.testing.assert_close(
        model(x, EDGES, edge_weight=more), model(x, twice), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_slopes_of_weights_are_those_of_differences(name: str) -> None:
    model, x = made(name)
    weight = torch.linspace(0.4, 1.6, EDGES.shape[1], dtype=torch.float64, requires_grad=True)
    output = model(x, EDGES, edge_weight=weight).square().sum()
    (slope,) = torch.autograd.grad(output, weight)
    with torch.no_grad():
        for edge in (0, 4):
            step = torch.zeros_like(weight)
            step[edge] = 1e-5
            ahead = model(x, EDGES, edge_weight=weight + step).square().sum()
            behind = model(x, EDGES, edge_weight=weight - step).square().sum()
            torch.testing.assert_close(slope[edge], (ahead - behind) / 2e-5, rtol=2e-4, atol=1e-6)


def test_gcn_weighs_as_pyg_does() -> None:
    model, x = made("gcn")
    weight = torch.rand(EDGES.shape[1], dtype=torch.float64)
    convolution = GCNConv(3, 6).double()
    convolution.lin.weight.data = model.mixings[0].weight.data
    convolution.bias.data = model.biases[0].data
    second = GCNConv(6, 2).double()
    second.lin.weight.data = model.mixings[1].weight.data
    second.bias.data = model.biases[1].data
    expected = second(convolution(x, EDGES, weight).relu(), EDGES, weight)
    torch.testing.assert_close(model(x, EDGES, edge_weight=weight), expected)


def test_weights_survive_sorting_union_and_moving() -> None:
    x = torch.randn(5, 3)
    weight = torch.rand(EDGES.shape[1])
    order = torch.randperm(EDGES.shape[1])
    graph = Graph.build(x, EDGES, edge_weight=weight)
    shuffled = Graph.build(x, EDGES[:, order], edge_weight=weight[order])
    assert torch.equal(graph.edge_weight, shuffled.edge_weight)
    union = Graph.union([graph, Graph.build(x, EDGES)])
    torch.testing.assert_close(union.edge_weight[: len(weight)], graph.edge_weight)
    assert union.edges.share is not None
    assert bool((union.edges.share[len(weight) :] == 1).all())
    assert graph.to(torch.float64).edge_weight.dtype == torch.float64


@pytest.mark.parametrize("wrong", [torch.ones(3), -torch.ones(10), torch.full((10,), torch.nan)])
def test_wrong_weights_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(InputError, match="edge_weight"):
        Graph.build(torch.randn(5, 3), EDGES, edge_weight=wrong)


def test_who_cannot_weigh_says_so() -> None:
    model, x = LoopTransformer(3, 2), torch.randn(5, 3)
    with pytest.raises(InputError, match="takes no edge_weight"):
        model(x, EDGES, edge_weight=torch.ones(EDGES.shape[1]))
    graph = Graph.build(x, EDGES, edge_weight=torch.ones(EDGES.shape[1]))
    assert "edge_weight" in certify(SheafDEQ(3, 2, 2, 3), graph, effort="quick").reason
