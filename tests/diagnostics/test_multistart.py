from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from graphs import random_graph
from sheafdeq.diagnostics import Band, multistart, random_start
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Status
from sheafdeq.testing import LinearAverage, constant_sheaf_deq, two_node_graph


def test_random_starts_are_positive_with_rows_of_the_asked_norm() -> None:
    like = torch.zeros(7, 5)
    for scale, order in ((1e-3, 2.0), (10.0, 1.0), (1e3, math.inf)):
        start = random_start(like, scale, seed=3, order=order)
        assert (start > 0).all()
        torch.testing.assert_close(
            torch.linalg.vector_norm(start, ord=order, dim=1), torch.full((7,), scale)
        )
        assert torch.equal(start, random_start(like, scale, seed=3, order=order))


def test_a_contraction_agrees_from_all_six_starts() -> None:
    result = multistart(
        LinearAverage(2, 3, rate=0.5),
        random_graph(dtype=torch.float32),
        iterations=60,
        score=lambda outputs: 0.5,
    )
    assert [trajectory.start for trajectory in result.trajectories] == [
        "default",
        "0.001",
        "0.1",
        "1",
        "10",
        "1000",
    ]
    assert result.agreement.agree
    assert result.agreement.same_prediction == (1.0,) * 6
    assert result.band("update").median[-1] < 1e-5
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert record["counted"] == 6
    assert len(record["bands"]["update"]["median"]) == 60
    assert len(record["bands"]["score"]["median"]) == 61


def test_the_counterexample_does_not_agree() -> None:
    model = constant_sheaf_deq(torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64))
    result = multistart(model, two_node_graph(), iterations=300, seed=1)
    assert len(result.agreement.groups) >= 2
    assert not result.agreement.agree
    assert sorted(label for group in result.agreement.groups for label in group) == sorted(
        trajectory.start for trajectory in result.trajectories
    )


class FragileAbove(LinearAverage):
    """NaN for states above 100: one of the six starts breaks it."""

    def step(self, state: Tensor, context: Any) -> Tensor:
        image = super().step(state, context)
        return torch.full_like(image, torch.nan) if float(state.max()) > 100 else image


def test_a_non_finite_start_is_reported_and_left_out() -> None:
    graph = random_graph(dtype=torch.float32)
    result = multistart(FragileAbove(2, 3), graph, iterations=30)
    statuses = {trajectory.start: trajectory.status for trajectory in result.trajectories}
    assert statuses["1000"] is Status.NON_FINITE
    assert len(result.finite) == 5
    assert len(result.band("update").median) == 30
    assert "1000" not in result.agreement.starts
    assert result.to_json()["counted"] == 5
    assert result.to_json()["statuses"]["non-finite"] == 1


def test_a_model_without_an_exposed_state_keeps_its_own_start() -> None:
    result = multistart(
        SheafDEQ(2, 3, 2, 2), random_graph(dtype=torch.float32), iterations=5, exposed=False
    )
    assert [trajectory.start for trajectory in result.trajectories] == ["default"]
    assert result.to_json()["update_of"] == "outputs"


def test_feed_forward_models_are_refused() -> None:
    with pytest.raises(InputError, match="feed-forward"):
        multistart(nn.Linear(2, 2), random_graph(dtype=torch.float32))  # type: ignore[arg-type]


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), min_size=1, max_size=7))
def test_bands_are_the_usual_quantiles(curves: list[list[float]]) -> None:
    band = Band.of(curves)
    for q, found in ((25, band.lower), (50, band.median), (75, band.upper)):
        np.testing.assert_allclose(
            found, np.percentile(np.array(curves), q, axis=0), rtol=1e-12, atol=1e-12
        )


def test_bands_keep_infinite_entries_infinite() -> None:
    band = Band.of([[math.inf], [math.inf], [1.0]])
    assert band.median == (math.inf,)
    assert Band.of([]).median == ()
