"""One forward pass of each published implementation, with its weights copied into ours (see
tests/vectors/README.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.layers.adjacency import gcn_weights, propagate
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.dnsd import DNSD
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.ignn import IGNN, project_columns
from sheafdeq.models.neural_sheaf_diffusion import NeuralSheafDiffusion
from sheafdeq.solvers import Picard

VECTORS = Path(__file__).parent.parent / "vectors"
TOLERANCE = 1e-5


def vector(name: str) -> tuple[Graph, dict[str, Tensor]]:
    with np.load(VECTORS / f"{name}.npz", allow_pickle=False) as file:
        data = {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}
    return Graph.build(data.pop("x"), data.pop("edge_index")), data


@torch.no_grad()
def copy_linear(layer: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(torch.zeros_like(layer.bias) if bias is None else bias)


def agree(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max().item() <= TOLERANCE * (1 + theirs.abs().max().item())


@torch.no_grad()
def test_appnp() -> None:
    graph, data = vector("subdeq_appnp")
    model = APPNP(3, 5, 5, alpha=float(data["alpha"]), steps=int(data["iterations"])).eval()
    copy_linear(model.encoder[0], data["weight_1"].T, data["bias_1"])  # type: ignore[arg-type]
    copy_linear(model.encoder[1], data["weight_2"].T, data["bias_2"])  # type: ignore[arg-type]
    copy_linear(model.readout, torch.eye(5))  # the released model has no readout after propagation
    context = model.prepare(graph)
    agree(model.readout(model.closed_form(context)).log_softmax(1), data["output_exact"])
    for name, shift in (("tanh", 0.0), ("normalized_tanh", 1.2)):
        state = model.initial_state(context)
        for _ in range(model.steps):
            state = model.step(state, context).tanh()
            if shift:
                state = functional.normalize(state + shift, dim=1, p=float("inf"))
        agree(state.log_softmax(1), data[f"output_{name}"])


@torch.no_grad()
def test_ignn() -> None:
    graph, data = vector("ignn")
    weights = gcn_weights(graph.edges, self_loops=True)
    propagated = propagate(weights.edge, weights.own, graph.x, graph.x, graph.edges)
    solver = Picard(steps=300, tolerance=3e-6, stop_early=True, distance="sup")  # type: ignore[arg-type]
    model = IGNN(3, 4, 6, kappa=float(data["kappa"]), solver=solver).eval()
    model.recurrent.copy_(data["weight"].T)
    copy_linear(model.drive, data["omega"])
    copy_linear(model.linear_readout, data["readout"])
    # the released code propagates the features once
    output = model.run(graph.with_features(propagated))
    assert output.solution is not None
    assert output.solution.converged
    agree(output.logits, data["output"])
    projected = project_columns(
        data["weight_before_projection"].T, float(data["kappa"] / data["rho"])
    )
    agree(projected.T, data["weight"])
    assert not torch.allclose(data["weight_before_projection"], data["weight"])


def test_eignn() -> None:
    graph, data = vector("eignn")
    model = EIGNN(3, 4, 3, gamma=float(data["gamma"]), self_loops=True, normalise=True).eval()
    copy_linear(model.drive, torch.eye(3))  # the released linear model reads the raw features
    copy_linear(model.linear_readout, data["readout"])
    with torch.no_grad():
        model.factor.copy_(data["factor"])
    logits = model.run(graph).logits
    agree(logits.detach(), data["output"])
    (logits * data["cotangent"]).sum().backward()
    assert model.factor.grad is not None
    agree(model.factor.grad, data["factor_gradient"])


@torch.no_grad()
@pytest.mark.parametrize("maps", ["diagonal", "full", "orthogonal"])
def test_neural_sheaf_diffusion(maps: str) -> None:
    graph, data = vector(f"nsd_{maps}")
    model = NeuralSheafDiffusion(3, 4, 3, 4, layers=2, maps=maps).eval()
    copy_linear(model.encoder, data["lin1/weight"], data["lin1/bias"])
    copy_linear(model.readout, data["lin2/weight"], data["lin2/bias"])
    for k, layer in enumerate(model.layers):
        layer.learner.weight.copy_(data[f"sheaf_learners/{k}/linear1/weight"])  # type: ignore[union-attr, operator]
        if layer.edge_learner is not None:
            layer.edge_learner.weight.copy_(data[f"weight_learners/{k}/linear1/weight"])  # type: ignore[union-attr, operator]
        layer.stalk_mixing.weight.copy_(data[f"lin_left_weights/{k}/weight"])  # type: ignore[union-attr, operator]
        layer.channel_mixing.weight.copy_(data[f"lin_right_weights/{k}/weight"])  # type: ignore[union-attr, operator]
        layer.epsilon.copy_(data[f"epsilons/{k}"])  # type: ignore[operator]
    agree(model.run(graph).logits.log_softmax(1), data["output"])


@torch.no_grad()
@pytest.mark.parametrize(
    ("maps", "activation"), [(m, a) for m in ("diagonal", "full") for a in ("tanh", "relu")]
)
def test_dnsd(maps: str, activation: str) -> None:
    gate = activation == "tanh"
    graph, data = vector(f"dnsd_{maps}_{activation}{'_gate' if gate else ''}")
    model = DNSD(3, 4, 3, 4, layers=2, maps=maps, activation=activation, gate=gate).eval()
    copy_linear(model.encoder, data["lin_in/weight"], data["lin_in/bias"])
    copy_linear(model.readout, data["lin_out/weight"], data["lin_out/bias"])
    for k, layer in enumerate(model.layers):
        copy_linear(
            layer.receiver_maps,
            data[f"source_builders/{k}/lin/weight"],
            data[f"source_builders/{k}/lin/bias"],
        )  # type: ignore[arg-type]
        copy_linear(
            layer.sender_maps,
            data[f"target_builders/{k}/lin/weight"],
            data[f"target_builders/{k}/lin/bias"],
        )  # type: ignore[arg-type]
        layer.stalk_mixing.copy_(data[f"convs/{k}/W1"])  # type: ignore[operator]
        layer.channel_mixing.copy_(data[f"convs/{k}/W2"])  # type: ignore[operator]
        layer.epsilon.copy_(data[f"convs/{k}/eps"])  # type: ignore[operator]
        if gate:
            copy_linear(
                layer.gate, data[f"convs/{k}/gate_lin/weight"], data[f"convs/{k}/gate_lin/bias"]
            )  # type: ignore[arg-type]
        copy_linear(layer.norm, data[f"norms/{k}/weight"], data[f"norms/{k}/bias"])  # type: ignore[arg-type]
    agree(model.run(graph).logits, data["output"])
