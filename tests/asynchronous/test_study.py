from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs import random_graph
from sheafdeq.asynchronous import Channel, Schedule, staleness_study
from sheafdeq.asynchronous.study import marks_up_to
from sheafdeq.errors import InputError
from sheafdeq.solvers import Status
from sheafdeq.testing import LinearAverage


def test_a_contraction_ends_at_the_reference_under_every_condition() -> None:
    conditions = [
        Schedule(1, 0),
        Schedule(2, 1),
        Schedule(5, 2, channel=Channel(loss=0.2, limit=16)),
    ]
    study = staleness_study(
        LinearAverage(2, 3).double(),
        random_graph(20, 60),
        conditions,
        samples=3,
        work=150,
        tolerance=1e-11,
        score=lambda outputs: 50.0,
    )
    assert study.reference.status is Status.CONVERGED
    for condition in study.conditions:
        assert condition.d_out is not None
        assert condition.d_out["max"] < 1e-9
        assert condition.violations == 0
        assert all(sample.status is Status.CONVERGED for sample in condition.samples)
    # synchronous schedules coincide
    assert [len(condition.samples) for condition in study.conditions] == [1, 3, 3]
    assert study.conditions[2].label == "(5, 2), loss 0.2"
    record = json.loads(json.dumps(study.to_json(), allow_nan=False))
    assert record["schema"] == "sheafdeq.async/1"
    last = record["conditions"][1]
    assert last["d_out"]["median"] == pytest.approx(
        statistics.median(t["d_out"][-1] for t in last["trajectories"])
    )
    assert last["staleness"]["max"] == 1
    assert last["trajectories"][0]["work"][0] == 0


def test_finite_references_are_the_picard_iterates() -> None:
    graph, model = random_graph(20, 60), LinearAverage(2, 3).double()
    study = staleness_study(model, graph, [Schedule(1, 0)], work=7, reference="finite:7")
    assert study.reference.steps == 7
    assert study.reference.status is Status.MAX_STEPS
    # bit for bit the same iterates
    assert study.conditions[0].d_out == {"median": 0.0, "min": 0.0, "max": 0.0}
    assert study.to_json()["reference"]["residual"] > 1e-6


def test_d_out_is_the_relative_frobenius_norm() -> None:
    graph, model = random_graph(20, 60), LinearAverage(2, 3).double()
    study = staleness_study(model, graph, [Schedule(1, 0)], work=3, reference="finite:9")
    with torch.no_grad():
        three, nine = (model.run(graph, steps=k).logits for k in (3, 9))
    expected = torch.linalg.matrix_norm(three - nine) / torch.linalg.matrix_norm(nine)
    assert study.conditions[0].samples[0].d_out[-1] == pytest.approx(expected.item(), rel=1e-9)


class FragileOnOldNews(LinearAverage):
    """Blows up when it is asked for more than a few updates alone."""

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        image = super().local_step(own, received, context)
        return torch.full_like(image, torch.inf) if len(own) == 1 else image


def test_lost_runs_are_reported_and_never_summarised() -> None:
    graph = random_graph(6, 12)
    study = staleness_study(
        FragileOnOldNews(2, 3).double(), graph, [Schedule(9, 1)], samples=4, work=60
    )
    (condition,) = study.conditions
    record = condition.to_json()
    assert record["statuses"]["non-finite"] == 4 - record["counted"]
    assert record["counted"] == 0
    assert record["d_out"] is None
    assert record["score"] is None
    json.dumps(record, allow_nan=False)


def test_wrong_requests_are_named() -> None:
    with pytest.raises(InputError, match="'converged' or 'finite:K'"):
        staleness_study(
            LinearAverage(2, 3).double(), random_graph(20, 60), [Schedule()], reference="best"
        )
    with pytest.raises(InputError, match="samples"):
        staleness_study(LinearAverage(2, 3).double(), random_graph(20, 60), [Schedule()], samples=0)


def test_marks_grow_and_stay_few() -> None:
    marks = marks_up_to(500)
    assert marks[:5] == [1, 2, 3, 4, 5]
    assert marks == sorted(set(marks))
    assert 50 < len(marks) < 80
    assert marks[-1] < 500
