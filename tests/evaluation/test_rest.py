"""At rest, or not: a model that settles, one that swings for ever, and one with two ends."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from sheafdeq.cli import main
from sheafdeq.data import Graph, load_task
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.evaluation import rest_of
from sheafdeq.models.mlp import MLP
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.records import EvaluationRecord, read_sealed
from sheafdeq.training import TrainingConfig, train

SMALL = {"nodes": 30, "k": 3, "train_seeds": [1], "test_seeds": [2, 3]}
TASK = load_task("community", level=7, **SMALL)


class Scalar(EquilibriumModel):
    """A map of one positive number, the same at every node."""

    in_channels, out_channels = 2, 3

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.ones(1))

    def prepare(self, graph: Graph) -> Graph:
        return graph

    def initial_state(self, context: Graph) -> Tensor:
        return context.x.new_full((context.num_nodes, 1), 2.0)

    def step(self, state: Tensor, context: Graph) -> Tensor:
        return self.function(state)

    def readout(self, state: Tensor, context: Graph) -> Tensor:
        return state.expand(-1, 3)


def test_a_guaranteed_model_rests_on_every_graph_from_every_start():
    torch.manual_seed(0)
    rest = rest_of(StrongSheafDEQ(2, 3), TASK, iterations=2000)
    assert rest.resting == len(rest.residual) == 2
    assert max(rest.residual) <= 1e-12
    assert set(rest.statuses) == {"converged"}
    assert sum(rest.statuses.values()) == 2 * 6


def test_a_swing_is_not_rest():
    rest = rest_of(Scalar(lambda z: 3 / z), TASK, iterations=50)
    assert rest.resting == 0
    assert min(rest.residual) > 0.1


def test_two_end_states_are_not_rest_though_every_start_settles():
    # below 2.5 everything falls to 1, above it everything goes to 4
    def two_ends(z: Tensor) -> Tensor:
        return torch.where(z < 2.5, 1 + 0.1 * (z.clamp(max=2.5) - 1), 4 + 0 * z)

    rest = rest_of(Scalar(two_ends), TASK, iterations=200)
    assert max(rest.residual) <= 1e-12
    assert min(rest.apart) > 0.5
    assert rest.resting == 0


def test_a_feed_forward_model_has_nothing_to_rest():
    with pytest.raises(InputError, match="feed-forward"):
        rest_of(MLP(2, 3), TASK, iterations=5)


def test_the_command_stores_it_and_finds_it_again(tmp_path, capsys):
    config = {"task": {"name": "community", "level": 7, "options": SMALL}, "max_epochs": 1}
    run = train(TrainingConfig.parse({**config, "model": "sheafdeq"}), out=tmp_path / "runs").path
    words = ["evaluate", str(run), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "rest " not in capsys.readouterr().out
    assert main([*words, "--rest", "30"]) == 0  # the record without it does not serve
    assert "of 2 graph(s), from 6 starts" in capsys.readouterr().out
    (file,) = (tmp_path / "out").glob("*.eval.json")
    record = EvaluationRecord.parse(read_sealed(file), str(file))
    assert record.rest is not None
    assert record.rest["iterations"] == 30
    assert record.command.endswith("--rest 30")
    assert main([*words, "--rest", "30", "--json"]) == 0
    told = capsys.readouterr()
    assert "found" in told.err
    assert json.loads(told.out)["results"][0]["rest"] == record.rest
