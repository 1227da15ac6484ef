"""Every stored run, loaded from its checkpoint and judged on its own data, scores what its record
says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sheafdeq.data.task import Task
from sheafdeq.errors import DataError
from sheafdeq.evaluation.evaluate import load
from sheafdeq.training.loop import evaluate
from sheafdeq.training.run_identity import task_of

RUNS = Path(__file__).parents[2] / "results" / "runs"
STORED = sorted(path.parent for path in RUNS.glob("*/record.json"))

NODES = 1000
"""Accuracies: one label in so many may change (at least one). The same instructions give the same
digits; another instruction set adds in another order, which moves a state by its last digits and
so may flip a node on a border, where a recurrence has not come to rest."""
SHARE = 1e-3
"""Errors, as a share of the stored one. They are mean squares of small differences of outputs of
order one: where the root is 0.017, a thousandth is 8e-6 of an output, seventy units in the last
place of float32. (Largest seen on another processor: 6.6e-4; accuracies: not one label.)"""


def test_every_record_has_its_checkpoint() -> None:
    assert len(STORED) >= 60
    assert [path.name for path in STORED if not (path / "checkpoint.safetensors").is_file()] == []


def allowed_difference(task: Task, stored: float) -> float:
    """In the unit of the score."""
    if not task.score_name.endswith("(%)"):
        return SHARE * abs(stored)
    return 100.0 * max(1, task.test.size // NODES) / task.test.size


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name[:8])
def test_a_stored_run_scores_what_its_record_says(path: Path) -> None:
    run = load(path)
    try:
        task = task_of(run.config)
    except DataError as error:
        pytest.skip(f"the data of this run are not here: {error}")
    assert task.digest == run.record.task.digest
    dtype = next(run.model.parameters()).dtype
    found = evaluate(run.model, task.to(dtype), ["test"]).scores["test"]
    stored = run.record.scores["test"]
    print(f"{path.name[:8]} {run.record.model.name} {stored!r} {found!r} {found - stored:+.3g}")
    assert abs(found - stored) <= allowed_difference(task, stored) * (1 + 1e-9), (
        f"stored {stored}, found {found}"
    )
