"""``torch.compile`` and ``torch.export``: what is supported gives the same numbers, what is not is
named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from sheafdeq import Anderson, Picard, SheafCascade, SheafCascadeLayer, SheafDEQ
from sheafdeq.errors import ExportError
from sheafdeq.registry import COMMUNITY, build_model

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, 30, (2, 90), generator=torch.Generator().manual_seed(1))
OTHER = torch.randn(41, 2, generator=torch.Generator().manual_seed(2))
OTHER_EDGES = torch.randint(0, 41, (2, 133), generator=torch.Generator().manual_seed(3))
SHAPES = {"x": {0: Dim("n")}, "edge_index": {1: Dim("e")}}


def exported_agrees(model: Any) -> None:
    program = export(model, (X, EDGES), dynamic_shapes=SHAPES)
    with torch.no_grad():
        assert torch.allclose(
            program.module()(OTHER, OTHER_EDGES), model(OTHER, OTHER_EDGES), rtol=1e-4, atol=1e-4
        )


@pytest.mark.filterwarnings("ignore")  # torch's own, of its own modules
@pytest.mark.parametrize("name", ["ignn", "appnp", "mlp", "gcn"])
def test_a_fixed_number_of_steps_is_exported_for_graphs_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, COMMUNITY).eval()
    if hasattr(model, "solver"):
        model.solver = Picard(4)
    exported_agrees(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: SheafDEQ(2, 3, steps=4),
        lambda: SheafCascade(2, 3, levels=2, level_steps=3),
        lambda: SheafCascadeLayer(2, 6, levels=2, level_steps=3),
    ],
)
def test_sheaf_models_are_exported_for_graphs_of_any_size(make: Any) -> None:
    torch.manual_seed(0)
    exported_agrees(make().eval())


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_exported_is_named() -> None:
    for model, words in (
        (SheafDEQ(2, 3, solver=Anderson(50)), "Anderson"),
        (SheafDEQ(2, 3, solver=Picard(50, stop_early=True)), "fixed number of Picard steps"),
        (build_model("ignn", COMMUNITY), "model.solver = Picard"),
        (build_model("eignn", COMMUNITY), "EIGNN"),
        (build_model("energygnn", COMMUNITY), "EnergyGNN"),
        (build_model("sheaf-relay", COMMUNITY), "SheafRelay"),
    ):
        with pytest.raises(ExportError, match=words):
            export(model.eval(), (X, EDGES))
    with pytest.raises(ExportError, match="a solution"):
        export(SheafDEQ(2, 3, steps=2), (X, EDGES), {"return_info": True})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make", [lambda: SheafDEQ(2, 3, steps=5), lambda: SheafCascade(2, 3, levels=2, level_steps=3)]
)
def test_a_compiled_model_gives_the_same_numbers_and_statuses(make: Any) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make()
    outputs, solution = model(X, EDGES, return_info=True)
    expected = torch.autograd.grad(outputs.sum(), list(model.parameters()))
    compiled = torch.compile(model)
    again, status = compiled(X, EDGES, return_info=True)
    found = torch.autograd.grad(again.sum(), list(model.parameters()))
    assert torch.allclose(again, outputs, rtol=1e-4, atol=1e-5)
    assert status.status is solution.status
    assert all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(expected, found, strict=True)
    )
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert all("compiler.disable" in reason for reason in breaks), breaks  # the loop, nothing else


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_five_compiled_steps_are_ready_within_twenty_seconds() -> None:
    """Processor time of this process; that of the C++ compiler it starts comes on top."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = torch.compile(SheafDEQ(2, 3, steps=5))
    begun = time.process_time()
    model(X, EDGES).sum().backward()
    assert time.process_time() - begun < 20


def test_the_record_of_the_benchmark_is_within_twenty_seconds() -> None:
    """Time of the clock, C++ compiler included, which a busy machine cannot assert."""
    path = Path(__file__).resolve().parents[2] / "results" / "compile_time.json"
    record = json.loads(path.read_text())
    assert (record["model"], record["steps"]) == ("sheafdeq", 5)
    assert record["again_seconds"] < record["first_seconds"] <= record["target_seconds"] == 20
