"""``save_pretrained`` and ``from_pretrained``: the same numbers, or a named error."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sheafdeq import (
    Anderson,
    EquilibriumLayer,
    Implicit,
    Picard,
    SheafCascade,
    SheafCascadeLayer,
    SheafDEQ,
    SheafDEQLayer,
    Truncated,
    certify,
)
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import read_sealed, write_sealed
from sheafdeq.registry import COMMUNITY, MODELS, build_model

X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 5], [1, 0, 2, 3, 2, 3, 4, 0]])


class Average(EquilibriumLayer):
    """A layer of one's own, with an option."""

    def __init__(self, in_channels: int, *, share: float = 0.5, steps: int = 7) -> None:
        super().__init__(steps=steps)
        self.in_channels = self.out_channels = in_channels
        self.share, self.scale = share, nn.Parameter(torch.randn(()))

    def prepare(self, graph: Graph) -> Graph:
        return graph

    def initial_state(self, context: Graph) -> Tensor:
        return torch.zeros_like(context.x)

    def step(self, state: Tensor, context: Graph) -> Tensor:
        return self.share * torch.tanh(self.scale * state) + context.x


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = build_model(name, COMMUNITY).eval()
    model.save_pretrained(tmp_path / "m")
    again = type(model).from_pretrained(tmp_path / "m")
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert repr(again) == repr(model)
    assert not again.training
    assert torch.equal(again(X, EDGES), model(X, EDGES))
    assert getattr(again, "solver", None) == getattr(model, "solver", None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SheafDEQLayer(-1, 6, steps=5, norm_order=math.inf),
        lambda: SheafCascadeLayer(2, 6, levels=2, training_steps=(1, 2)),
        lambda: SheafDEQ(2, 3, 2, 3, solver=Anderson(50, window=3), gradient=Implicit()),
        lambda: SheafDEQ(2, 3, solver="anderson", gradient="truncated:3"),
        lambda: SheafCascade(2, 3, solver=Picard(40, tolerance=1e-5, distance="thompson")),
        lambda: Average(2, share=0.25),
    ],
)
def test_layers_solvers_and_models_of_ones_own(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    model(X, EDGES)  # finds the width out
    copy.deepcopy(model).double().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert {p.dtype for p in again.parameters()} == {torch.float64}
    assert again.solver == model.solver
    assert again.adjoint == model.adjoint
    assert torch.equal(again(X.double(), EDGES), model.double().eval()(X.double(), EDGES))


def test_rules_set_later_are_saved(tmp_path: Path) -> None:
    model = SheafDEQ(2, 3)
    model.solver, model.adjoint = Anderson(33), Truncated(4)
    model.save_pretrained(tmp_path)
    again = SheafDEQ.from_pretrained(tmp_path)
    assert (again.solver, again.adjoint) == (Anderson(33), Truncated(4))


def test_what_comes_back_can_be_certified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SheafCascade(2, 3, 2, 2, levels=2)
    model.save_pretrained(tmp_path)
    graph = Graph.build(X, EDGES)
    first = certify(model, graph, effort="quick")
    second = certify(SheafCascade.from_pretrained(tmp_path), graph, effort="quick")
    assert (first.verdict, first.rate) == (second.verdict, second.rate)


def test_wrong_folders_and_classes_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such folder"):
        SheafDEQ.from_pretrained(tmp_path / "nowhere")
    SheafCascade(2, 3).save_pretrained(tmp_path)
    with pytest.raises(RecordError, match=r"SheafCascade\.from_pretrained"):
        SheafDEQ.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="in_channels=-1"):
        SheafDEQ(-1, 3).save_pretrained(tmp_path / "lazy")

    class Odd(Average):
        pass

    odd = Odd(2, share=torch.tensor(0.5))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="argument share"):
        odd.save_pretrained(tmp_path / "odd")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_every_altered_bit_is_found(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    SheafDEQ(2, 2, 2, 2).save_pretrained(tmp_path)
    data = (tmp_path / name).read_bytes()
    for place in range(0, len(data), max(1, len(data) // 60)):
        spoiled = bytearray(data)
        spoiled[place] ^= 1 << place % 8
        (tmp_path / name).write_bytes(bytes(spoiled))
        with pytest.raises(RecordError):
            SheafDEQ.from_pretrained(tmp_path)
    (tmp_path / name).write_bytes(data[:-1])
    with pytest.raises(RecordError):
        SheafDEQ.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("arguments", "levels"), 10**9),
        (("arguments", "stalk_dim"), 10**6),
        (("arguments", "channels"), "many"),
        (("arguments", "unheard"), 1),
        (("rules", "solver"), {"kind": "Popen", "fields": {"args": "ls"}}),
        (("rules", "solver"), {"kind": "Picard", "fields": {"wrong": 1}}),
        (("tensors",), "0" * 64),
        (("format",), "else"),
        (("arguments",), []),
        (("rules", "forward"), None),
    ],
)
def test_a_sealed_configuration_that_lies_is_refused(
    where: tuple[str, ...], value: Any, tmp_path: Path
) -> None:
    SheafCascade(2, 3, 2, 2, levels=2).save_pretrained(tmp_path)
    facts = read_sealed(tmp_path / "config.json")
    inner = facts
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    write_sealed(tmp_path / "config.json", facts)
    assert json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(RecordError):
        SheafCascade.from_pretrained(tmp_path)
