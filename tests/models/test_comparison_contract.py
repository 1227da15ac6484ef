"""Every comparison model keeps the shared contract, has the counts it should have, and learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sheafdeq.data.catalogue import load_task
from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.errors import InputError
from sheafdeq.registry import COMMUNITY, MODELS, Shape, build_model, model_spec
from sheafdeq.testing.contracts import check_model, example_graphs
from sheafdeq.training.loop import shape_of

SMALL = Shape(in_channels=3, out_channels=2, edge_dim=None, stalk_dim=2, channels=3, steps=4)
EDGED = Shape(in_channels=3, out_channels=2, edge_dim=2, stalk_dim=2, channels=3, steps=4)
F3 = Shape(in_channels=3, out_channels=3, edge_dim=None, stalk_dim=3, channels=16, steps=20)

# Finite differences see the solver's tolerance, so models that solve to one are given a tight one.
TIGHT: dict[str, dict[str, Any]] = {
    "ignn": {"tolerance": 1e-13, "steps": 2000},
    "energygnn": {"tolerance": 1e-12, "steps": 2000},
}
# tested in files of their own
SHEAF = (
    "sheafdeq",
    "sheafdeq-no-norm",
    "strong-sheaf",
    "strong-attention",
    "sheaf-cascade",
    "sheaf-relay",
)
VARIANTS = [
    *((name, {}) for name in MODELS if name not in (*SHEAF, "dnsd", "nsd")),
    ("graph-attn-deq", {"pre_norm": True}),
    ("eignn", {"self_loops": True, "normalise": True}),
    *(
        ("dnsd", {"maps": m, "activation": a, "gate": g})
        for m in ("diagonal", "full")
        for a in ("tanh", "relu")
        for g in (True, False)
    ),
    *(("nsd", {"maps": m}) for m in ("diagonal", "full", "orthogonal")),
]


def made(name: str, shape: Shape, options: dict[str, Any]) -> GraphModel:
    torch.manual_seed(3)
    return build_model(name, shape, **{**TIGHT.get(name, {}), **options})


@pytest.mark.parametrize(
    ("name", "options"),
    VARIANTS,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())),
)
def test_contract(name: str, options: dict[str, Any]) -> None:
    model = made(name, SMALL, options)
    # A directed graph is iterated by EIGNN to 1e-6, so its outputs are exact to that only.
    tolerance = 1e-9 if name not in ("eignn",) else 1e-5
    assert check_model(model, tolerance=tolerance)


@pytest.mark.parametrize("name", ["graph-attn-deq", "loop-transformer", "energygnn", "sheaf-relay"])
def test_contract_with_edge_features(name: str) -> None:
    model = made(name, EDGED, {})
    assert check_model(model)
    attributed = example_graphs(3, 2)[1]
    changed = replace(attributed, edge_attr=attributed.edge_attr + 1.0)  # type: ignore[operator]
    model = model.double().eval()
    with torch.no_grad():
        assert not torch.allclose(model.run(attributed).logits, model.run(changed).logits)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in SHEAF])
def test_models_without_edge_features_ignore_them(name: str) -> None:
    options = {"edge_features": False} if "edge_features" in model_spec(name).options else {}
    torch.manual_seed(0)
    model = build_model(name, EDGED, **options).double().eval()
    graph = example_graphs(3, 2)[1]
    bare = replace(graph, edge_attr=None)
    with torch.no_grad():
        assert torch.equal(model.run(graph).logits, model.run(bare).logits)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("mlp", {}, 42_675),
        ("appnp", {}, 2_691),
        ("appnp-tanh", {"shift": 1.65}, 2_691),
        ("ignn", {}, 2_643),
        ("eignn", {}, 2_643),
        ("energygnn", {}, 340),
        ("dnsd", {"maps": "diagonal"}, 11_691),
        ("dnsd", {"maps": "full", "activation": "relu"}, 25_659),
        ("dnsd", {"maps": "diagonal", "gate": True}, 12_087),
        ("dnsd", {"maps": "full", "gate": True}, 26_055),
        ("graph-attn-deq", {}, 9_555),
        ("loop-transformer", {}, 21_843),
        ("sheafdeq", {}, 10_798),  # the text's; the paper prints the next
        ("sheafdeq", {"mixers": "channels"}, 11_045),
        ("sheafdeq-no-norm", {}, 10_798),
    ],
)
def test_parameter_counts(name: str, options: dict[str, Any], count: int) -> None:
    assert build_model(name, F3, **options).num_parameters() == count
    printed = model_spec(name).printed_parameters
    if not options.get("gate"):
        expected = printed[options["maps"]] if "maps" in options else printed[""]
        assert expected == (11_045 if name.startswith("sheafdeq") else count)


def test_counts_with_the_real_two_features_are_one_column_short() -> None:
    for name in ("mlp", "appnp", "ignn", "eignn", "graph-attn-deq", "loop-transformer", "dnsd"):
        assert (
            build_model(name, F3).num_parameters() - build_model(name, COMMUNITY).num_parameters()
            == 48
        )


def test_loop_transformer_count_does_not_depend_on_the_number_of_loops() -> None:
    counts = {
        build_model("loop-transformer", Shape(3, 3, None, 3, 16, steps)).num_parameters()
        for steps in (1, 20, 50)
    }
    assert counts == {21_843}


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(InputError, match="Choose from: mlp"):
        model_spec("resnet")
    with pytest.raises(InputError, match=r"Choose from: width, .* alpha"):
        build_model("appnp", F3, teleport=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_every_configuration_of_the_grid_builds(name: str) -> None:
    for options in model_spec(name).grid:
        assert build_model(name, F3, **options).num_parameters() > 0


TASKS = {
    "community": {"level": 10, "nodes": 60, "k": 4, "train_seeds": (42,), "test_seeds": (100,)},
    "counting": {"chains": 6},
    "sums": {"chains": 4, "length": 8},
    "coordinates": {"graphs": 6, "nodes": 12, "k": 3},
    "mnist-terrain-standin": {},
}


@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("name", MODELS)
def test_five_epochs_on_a_small_task(name: str, task_name: str) -> None:
    task = load_task(task_name, **TASKS[task_name])
    torch.manual_seed(1)
    options = {"dropout": 0.0} if "dropout" in model_spec(name).options else {}
    model = build_model(name, shape_of(task), **options)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        model.train()
        output = model.run(task.train.graph)
        loss = task.loss(output.logits, task.train)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        model.project()
        if isinstance(model, EquilibriumModel):
            assert output.solution is not None
    assert all(torch.isfinite(torch.tensor(losses)))
    assert min(losses[1:]) < losses[0]  # the gradient leads downhill
