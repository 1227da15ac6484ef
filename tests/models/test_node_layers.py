"""Equilibria as layers: stacked, in PyG's Sequential, pooled, and of a width that is found out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import Sequential, global_mean_pool

from sheafdeq import Graph, Status, certify
from sheafdeq.errors import InputError
from sheafdeq.models import SheafCascade, SheafCascadeLayer, SheafDEQ, SheafDEQLayer

LAYERS: list[tuple[Any, Any, dict[str, Any]]] = [
    (SheafDEQLayer, SheafDEQ, {"steps": 5}),
    (SheafCascadeLayer, SheafCascade, {"levels": 2, "level_steps": 3}),
]
X = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5], [1, 0, 2, 1, 3, 2, 5, 4]])
BATCH = torch.tensor([0, 0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(("layer", "model", "options"), LAYERS)
def test_a_layer_returns_the_states_that_the_model_reads_out(
    layer: Any, model: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    whole = model(4, 2, 3, 2, **options)
    part = layer(4, 6, **options)
    names = part.load_state_dict(whole.state_dict(), strict=False)
    assert not names.missing_keys
    assert {name.split(".")[0] for name in names.unexpected_keys} <= {
        "readout",
        "readout_norm",
        "output",
    }
    states, solution = part(X, EDGES, batch=BATCH, return_info=True)
    _, expected = whole(X, EDGES, batch=BATCH, return_info=True)
    assert states.shape == (7, 6)
    assert torch.equal(states, expected.value[:, -6:])
    assert len(solution.graph_status) == 2
    states.sum().backward()
    assert all(p.grad is not None for p in part.parameters())


@pytest.mark.parametrize(("layer", "model", "options"), LAYERS)
def test_layers_stack_in_a_sequential_and_pool(
    layer: Any, model: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    network = Sequential(
        "x, edge_index, batch",
        [
            (layer(-1, 6, **options), "x, edge_index -> x"),
            nn.ReLU(),
            (layer(6, 9, **options), "x, edge_index -> x"),
            (global_mean_pool, "x, batch -> x"),
            nn.Linear(9, 2),
        ],
    )
    network(X, EDGES, BATCH)  # finds the width of the features
    before = network(X, EDGES, BATCH)
    assert before.shape == (2, 2)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)
    before.square().sum().backward()
    optimiser.step()
    assert float(network(X, EDGES, BATCH).square().sum().detach()) < float(
        before.square().sum().detach()
    )


@pytest.mark.parametrize(("layer", "model", "options"), LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_width_that_is_found_out_is_that_of_the_first_graph(
    layer: Any, model: Any, options: dict[str, Any], edge_dim: int | None
) -> None:
    attr = None if edge_dim is None else torch.ones(8, 2)
    for lazy in (layer(-1, 6, edge_dim=edge_dim, **options), model(-1, 2, edge_dim=edge_dim)):
        lazy.double()
        lazy(X.double(), EDGES, None if attr is None else attr.double())
        assert lazy.in_channels == 4
        assert {p.dtype for p in lazy.parameters()} == {torch.float64}
        first = next(m for m in lazy.modules() if isinstance(m, nn.Linear) and m.in_features == 4)
        assert (
            float(first.weight.detach().abs().max())
            <= (6 / (4 + first.out_features)) ** 0.5 + 1e-12
        )
        assert first.bias is None or not bool(first.bias.detach().any())
        with pytest.raises(InputError, match="made for 4"):
            lazy(X[:, :3].double(), EDGES)


def test_wrong_widths_are_named() -> None:
    with pytest.raises(InputError, match="multiple of stalk_dim"):
        SheafDEQLayer(4, 7)
    for bad in (0, -2, True, 2.5):
        with pytest.raises(InputError, match="in_channels"):
            SheafDEQLayer(bad, 6)  # type: ignore[arg-type]


def test_what_is_proved_of_a_model_is_proved_of_its_layer() -> None:
    torch.manual_seed(0)
    whole, part = SheafCascade(4, 2, 3, 2, levels=2), SheafCascadeLayer(4, 6, levels=2)
    part.load_state_dict(whole.state_dict(), strict=False)
    graph = Graph.build(X, EDGES)
    first, second = certify(whole, graph), certify(part, graph)
    assert first.verdict == second.verdict
    assert first.rate == second.rate


def test_a_layer_settles_when_it_is_asked_to() -> None:
    torch.manual_seed(0)
    layer = SheafCascadeLayer(4, 6, levels=2)
    output = layer.run_to_equilibrium(Graph.build(X, EDGES))
    assert output.solution is not None
    assert output.solution.status is Status.CONVERGED
    states: Tensor = output.logits
    assert bool((states > 0).all())
