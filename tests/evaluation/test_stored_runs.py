"""Every stored run, loaded from its checkpoint and judged on its own data, scores what its record
says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sheafdeq.errors import DataError
from sheafdeq.evaluation.evaluate import load
from sheafdeq.training.loop import evaluate
from sheafdeq.training.run_identity import task_of

RUNS = Path(__file__).parents[2] / "results" / "runs"
STORED = sorted(path.parent for path in RUNS.glob("*/checkpoint.safetensors"))

POINTS = 0.5
"""Accuracies, in points: sums in another order move states by the last digits, which flips labels
of nodes on a border where a recurrence has not come to rest (4,500 test nodes: 0.5 are 22)."""
SHARE = 1e-3
"""Errors, as a share of the stored one."""


def test_there_are_runs_to_judge() -> None:
    assert len(STORED) >= 50


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
    allowed = POINTS if run.record.task.score.endswith("(%)") else SHARE * abs(stored)
    print(f"{path.name[:8]} {run.record.model.name} {stored!r} {found!r} {found - stored:+.3g}")
    assert abs(found - stored) <= allowed, f"stored {stored}, found {found}"
