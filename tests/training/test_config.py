from __future__ import annotations

import pytest

from sheafdeq.errors import InputError
from sheafdeq.training.config import TrainingConfig


def test_defaults_are_the_papers():
    config = TrainingConfig.parse({"task": "community", "model": "sheafdeq"})
    assert (config.learning_rate, config.weight_decay, config.clip_norm, config.max_epochs) == (
        1e-2,
        5e-4,
        1.0,
        2000,
    )
    assert config.schedule.kind == "wsd"
    assert (config.schedule.warmup, config.schedule.decay) == (0.1, 0.2)  # shares of max_epochs
    assert config.patience is None  # the task's
    assert not config.penalties.active


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"task": "community", "model": "sheafdeq", "learning_rte": 1}, "learning_rte"),
        ({"task": {"name": "community", "levle": 3}, "model": "sheafdeq"}, "levle"),
        ({"task": "community", "model": "sheafdeq", "max_epochs": -1}, "max_epochs"),
        ({"task": "community", "model": "sheafdeq", "schedule": "cosine"}, "schedule"),
        (
            {"task": "community", "model": "sheafdeq", "schedule": {"warmup": 8}},
            "8 epochs of 160 are 0.05",
        ),
        (
            {"task": "community", "model": "sheafdeq", "schedule": {"warmup": 0.7, "decay": 0.4}},
            "together",
        ),
        ({"task": "community", "model": "sheafdeq", "penalties": {"steps": 4}}, "penalties.steps"),
        ({"model": "sheafdeq"}, "task"),
    ],
)
def test_wrong_keys_and_values_are_named(values, word):
    with pytest.raises(InputError, match=word):
        TrainingConfig.parse(values)


@pytest.mark.parametrize("kind", ["constant", "wsd"])
def test_a_stored_warm_up_in_epochs_is_read_as_a_share(kind):
    base = TrainingConfig.parse(
        {"task": "community", "model": "sheafdeq", "max_epochs": 160, "schedule": kind}
    )
    stored = base.payload()
    stored["schedule"]["warmup"] = 8
    read = TrainingConfig.of_record(stored, "record")
    assert read.schedule.warmup == 8 / 160
    assert TrainingConfig.of_record(read.payload(), "record") == read  # a share stays what it is
    stored["max_epochs"] = 5  # fewer epochs than the warm-up that a constant rate ignores
    assert TrainingConfig.of_record(stored, "record").schedule.kind == kind


def test_configurations_are_frozen_and_come_back_from_their_payload(small):
    config = small(schedule="wsd")
    assert TrainingConfig.parse(config.payload()) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    assert config.replace(seed=7).seed == 7


def test_toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'task = "counting"\nseed = 44\n[model]\nname = "sheafdeq"\noptions = { shift = 1.4 }\n'
    )
    config = TrainingConfig.read(path)
    assert config.seed == 44
    assert config.model.options == {"shift": 1.4}
    path.write_text("task = ")
    with pytest.raises(InputError, match=r"run\.toml"):
        TrainingConfig.read(path)
    with pytest.raises(InputError, match="no such file"):
        TrainingConfig.read(tmp_path / "absent.toml")


def test_the_example_configurations_are_valid():
    from pathlib import Path

    from sheafdeq.training.sweep import Sweep

    root = Path(__file__).parents[2]
    assert len(Sweep.load(root / "configs" / "my_sweep.toml").configs()) == 9
    files = [root / "configs" / "level10_sheafdeq.toml", *(root / "results").rglob("*level*.toml")]
    assert len(files) == 4
    for path in files:
        TrainingConfig.read(path)
