from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs import random_graph
from sheafdeq.asynchronous.threaded import run_threads
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Status
from sheafdeq.testing import LinearAverage


def uneven(part: int, number: int) -> None:
    if part == 0 or random.random() < 0.1:
        time.sleep(0.001)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("staleness", [0, 3])
def test_a_contraction_reaches_its_fixed_point(parts: int, staleness: int) -> None:
    graph, model = random_graph(30, 120), LinearAverage(2, 1, rate=0.5).double()
    run = run_threads(
        model, graph, parts, rounds=200, staleness=staleness, tolerance=1e-12, pace=uneven
    )
    assert run.status is Status.CONVERGED
    assert (run.state - model.exact(graph)).abs().max() < 1e-10
    assert run.rounds == (200,) * parts
    assert run.largest_lag <= staleness


def test_one_part_is_picard_and_scattered_parts_settle() -> None:
    graph, model = random_graph(30, 120), SheafDEQ(2, 3, 2, 2).double()
    with torch.no_grad():
        expected = model.run(graph, steps=9).solution
    assert expected is not None
    torch.testing.assert_close(
        run_threads(model, graph, 1, rounds=9).state, expected.value, rtol=0, atol=1e-12
    )
    assignment = torch.arange(30) % 3
    run = run_threads(LinearAverage(2, 1).double(), graph, assignment, rounds=300, staleness=5)
    assert run.status is Status.CONVERGED


def test_failures_stop_everyone() -> None:
    class Broken(LinearAverage):
        def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
            image = super().local_step(own, received, context)
            return torch.full_like(image, torch.nan) if len(own) == 10 else image

    run = run_threads(
        Broken(2, 1).double(),
        random_graph(30, 120),
        torch.tensor([0] * 10 + [1] * 20),
        rounds=50,
        staleness=1,
    )
    assert run.status is Status.NON_FINITE
    assert torch.isfinite(run.state).all()

    def trip(part: int, number: int) -> None:
        if part == 1 and number == 3:
            raise RuntimeError("part 1 fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        run_threads(LinearAverage(2, 1).double(), random_graph(30, 120), 3, rounds=50, pace=trip)


def test_wrong_parts_are_named() -> None:
    model, graph = LinearAverage(2, 1).double(), random_graph(30, 120)
    for parts in (0, 31, torch.zeros(3, dtype=torch.int64), torch.full((30,), 2)):
        with pytest.raises(InputError, match="parts"):
            run_threads(model, graph, parts)
    with pytest.raises(InputError, match="staleness"):
        run_threads(model, graph, 2, staleness=-1)
