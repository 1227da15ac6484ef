"""What the timings compare is the same thing computed twice."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from sheafdeq.data.coordinates import coordinates
from sheafdeq.speed.attention_times import attention_times, same_layers
from sheafdeq.speed.gradient_times import gradient_times
from sheafdeq.speed.small_graphs import SMALL_TASKS, SmallWork, epoch_times
from sheafdeq.speed.work import community_batch


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def test_the_layer_is_that_of_pyg() -> None:
    graph = community_batch(quick=True)
    model, layer = same_layers()
    state = torch.randn(graph.num_nodes, 48, generator=torch.Generator().manual_seed(3))
    ours = model.convolve(state, state, graph.edges, model.prepare(graph))
    assert torch.allclose(ours, layer(state, graph.edge_index), atol=1e-5)


@pytest.mark.parametrize("name", ["counting", "coordinates"])  # without and with edge features
def test_an_epoch_of_the_peer_has_the_same_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SMALL_TASKS, "coordinates", partial(coordinates, graphs=20))
    work = SmallWork(name)
    work.ours()
    ours = gradients(work.model)
    work.theirs()
    theirs = gradients(work.model)
    assert torch.linalg.vector_norm(ours - theirs) < 1e-3 * torch.linalg.vector_norm(theirs)


def test_timings_are_whole() -> None:
    epoch = epoch_times("counting", rounds=1, peer_rounds=1).row()
    assert epoch["nodes"] == 1275
    assert epoch["kernel_seconds"] > 0
    assert epoch["speedup"] > 0
    rows = attention_times(community_batch(quick=True), rounds=1, models=("gat",))
    assert [row.name for row in rows] == ["attention", "layer", "dense", "gat"]
    assert [row.peer for row in rows] == ["PyTorch", "TransformerConv", "PyTorch", "PyTorch"]
    assert all(row.speedup > 0 for row in rows)


def test_a_gradient_of_the_equilibrium_is_timed() -> None:
    row = gradient_times("ignn", community_batch(quick=True), rounds=1).row()
    assert row["status"] == "CONVERGED"
    assert row["evaluations"] < row["unrolled_steps"]
    assert row["ratio"] > 0
