"""Recipes: what ships, what may be laid over them, and what may not."""

from __future__ import annotations

import json

import pytest

from sheafdeq.cli import main
from sheafdeq.errors import UsageError
from sheafdeq.registry import build_model
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.recipe import overlaid, recipe, recipe_names, recipe_values, with_recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_a_configuration_of_a_model_that_can_be_built(name):
    config = recipe(name, {} if "model" in recipe_values(name) else {"model": "sheafdeq"})
    assert isinstance(config, TrainingConfig)
    from sheafdeq.registry import COMMUNITY

    build_model(config.model.name, COMMUNITY, **config.model.options)


def test_what_is_given_is_laid_over_the_recipe_table_by_table():
    config = recipe(
        "reliable", {"task": {"level": 5}, "seed": 43, "penalties": {"residual_weight": 1.0}}
    )
    plain = recipe("reliable")
    assert (config.task.level, config.seed, config.penalties.residual_weight) == (5, 43, 1.0)
    assert config.task.options == plain.task.options
    assert config.penalties.ramp == plain.penalties.ramp
    assert overlaid({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {
        "a": {"b": 3, "c": 2},
        "d": 4,
    }


def test_another_model_or_task_and_unknown_names_are_errors():
    with pytest.raises(UsageError, match="is for the model 'sheafdeq'"):
        with_recipe("reliable", {"model": "ignn"})
    with pytest.raises(UsageError, match="is for the task 'community'"):
        with_recipe("reliable", {"task": {"name": "counting"}})
    with pytest.raises(UsageError, match=r"there is no recipe 'relaible'.*did you mean 'reliable'"):
        recipe("relaible")


def test_the_command_takes_a_recipe(capsys):
    assert (
        main(
            [
                "train",
                "--recipe",
                "reliable",
                "--task",
                "community",
                "--level",
                "5",
                "--model",
                "sheafdeq",
                "--task-set",
                "nodes=30",
                "--task-set",
                "k=3",
                "--epochs",
                "1",
                "--json",
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["epochs"] == 1
    assert main(["train", "--recipe", "reliable", "--model", "mlp"]) == 2


def test_a_sweep_may_follow_recipes():
    from sheafdeq.training.sweep import Sweep

    configs = Sweep.load("reliable").configs()
    assert len(configs) == 95
    first = configs[0]
    assert first == recipe("reliable", {"task": {"level": 1}, "seed": 42})
    assert configs[1] == recipe("cascade-wide", {"task": {"level": 1}, "seed": 42})
    assert configs[60] == recipe("reliable-long", {"task": {"level": 1}, "seed": 42})
