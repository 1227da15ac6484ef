from __future__ import annotations

from typing import Any

import pytest

from sheafdeq.training.config import TrainingConfig

SMALL_COMMUNITY = {
    "name": "community",
    "level": 10,
    "options": {"nodes": 30, "train_seeds": [1], "test_seeds": [2], "k": 3},
}
SMALL_COUNTING = {"name": "counting", "options": {"chains": 5}}


@pytest.fixture
def small():
    """A configuration that trains in a fraction of a second."""

    def make(**changes: Any) -> TrainingConfig:
        values: dict[str, Any] = {
            "task": SMALL_COMMUNITY,
            "model": {"name": "sheafdeq", "options": {"shift": 1.3}},
            "max_epochs": 6,
        }
        return TrainingConfig.parse({**values, **changes})

    return make
