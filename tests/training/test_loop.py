from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.errors import InputError
from sheafdeq.training.config import PenaltyConfig, ScheduleConfig
from sheafdeq.training.learning_rate import RateSchedule
from sheafdeq.training.loop import Trainer, TrainingError, evaluate, is_stochastic
from sheafdeq.training.penalty import SettlingPenalty
from sheafdeq.training.run import train
from sheafdeq.training.run_identity import task_of


def test_the_kept_checkpoint_is_the_one_that_made_the_best_score(small):
    result = train(small(max_epochs=12))
    again = evaluate(result.model, task_of(small()))
    assert again.scores == result.record.scores
    curve = result.record.curves["validation"]
    assert len(curve) == 13  # parameters after 0, 1, ..., 12 updates
    assert curve.index(max(curve)) == result.record.best.epoch  # the earliest of equals
    assert again.scores["validation"] == pytest.approx(max(curve), rel=1e-5)


def test_deterministic_models_are_scored_in_the_training_pass_without_changing_anything(
    small, monkeypatch
):
    shared = Trainer(small(), task_of(small()))
    separate = Trainer(small(), task_of(small()))
    assert not shared.stochastic
    separate.stochastic = True  # scored by a pass of its own
    for _ in range(4):
        assert shared.advance() == separate.advance()
    for first, second in zip(shared.model.parameters(), separate.model.parameters(), strict=True):
        assert torch.equal(first, second)


def test_selection_never_sees_the_test_split(small):
    config = small(max_epochs=8)
    task = task_of(config)
    plain = train(config, task=task).record
    import dataclasses

    spoiled = dataclasses.replace(
        task, test=dataclasses.replace(task.test, target=torch.zeros_like(task.test.target))
    )
    other = train(config, task=spoiled).record
    assert other.best == plain.best
    assert other.curves == plain.curves
    assert other.scores["test"] != plain.scores["test"]


def test_test_curve_is_recorded_and_changes_nothing(small):
    plain = train(small()).record
    curve = train(small(test_every=2)).record
    assert [epoch for epoch, _ in curve.curves["test"]] == [0, 2, 4, 6]
    assert curve.curves["validation"] == plain.curves["validation"]
    assert curve.scores == plain.scores


def test_patience_and_score_end_a_run(small):
    record = train(small(max_epochs=200, patience=3)).record
    assert record.stopped == "patience"
    assert record.epochs == record.best.epoch + 3
    record = train(small(max_epochs=200, stop_at_score=0.0)).record
    assert (record.stopped, record.epochs) == ("score", 0)
    result = train(small(max_epochs=200), stop_when=lambda metrics: metrics.epoch == 2)
    assert result.record.stopped == "stop_when"
    assert result.record.epochs == 3


def test_zero_epochs_evaluate_the_initial_parameters(small):
    record = train(small(max_epochs=0)).record
    assert (record.epochs, record.best.epoch, record.stopped) == (0, 0, "max_epochs")


class _Exploding(ExplicitModel):
    def __init__(self) -> None:
        super().__init__()
        self.in_channels, self.out_channels = 2, 3
        self.weight = nn.Parameter(torch.ones(2, 3))

    def logits(self, graph):
        return graph.x @ self.weight * float("nan")


def test_a_run_without_a_finite_score_is_an_error(small, monkeypatch):
    # Argmax of NaN still gives an accuracy, so the loss is what tells.
    monkeypatch.setattr("sheafdeq.training.loop.build_model", lambda *args, **options: _Exploding())
    trainer = Trainer(small(), task_of(small()))
    trainer.advance()
    assert trainer.stopped == "non-finite"
    trainer.best_parameters = {}
    with pytest.raises(TrainingError, match="never finite"):
        trainer.finish()
    with pytest.raises(InputError, match="over"):
        trainer.advance()


def test_status_counts_cover_every_training_evaluation(small):
    record = train(small()).record
    assert record.solves is not None
    assert sum(record.solves.training.values()) == 7  # one graph, epochs 0 to 6
    assert sum(record.solves.final.values()) == 2  # one training graph, one test graph
    assert not record.solves.to_tolerance
    assert not record.solves.unconverged


def test_dropout_is_recognised():
    assert is_stochastic(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    assert not is_stochastic(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    module = nn.Linear(2, 2)
    module.dropout = 0.1
    assert is_stochastic(module)
    module.stochastic_training = False
    assert not is_stochastic(module)


def test_training_leaves_the_callers_generator_and_threads_alone(small):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    train(small(max_epochs=1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


# ---------------------------------------------------------------------- schedules


def test_constant_schedule_is_one():
    schedule = RateSchedule(ScheduleConfig(kind="constant"), 10)
    assert [schedule.rate(epoch, 0.0) for epoch in range(10)] == [1.0] * 10


def test_wsd_rises_stays_and_falls_to_its_floor():
    schedule = RateSchedule(ScheduleConfig(kind="wsd", warmup=0.2, decay=0.5, floor=0.1), 20)
    rates = [schedule.rate(epoch, 0.0) for epoch in range(21)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:11] == pytest.approx([1.0] * 7)
    assert rates[20] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_wsd_scales_with_the_number_of_epochs():
    short, long = (RateSchedule(ScheduleConfig(), epochs) for epochs in (100, 1000))
    assert [short.rate(epoch, 0.0) for epoch in (50, 90, 100)] == pytest.approx(
        [long.rate(10 * epoch, 0.0) for epoch in (50, 90, 100)]
    )
    assert (short.rate(10, 0.0), long.rate(100, 0.0)) == (1.0, 1.0)
    assert short.rate(9, 0.0) < 1
    assert long.rate(99, 0.0) < 1


def test_plateau_halves_after_its_patience_and_resumes():
    config = ScheduleConfig(kind="plateau", patience=2, factor=0.5, floor=0.2)
    schedule = RateSchedule(config, 100)
    scores = [1.0, 0.9, 0.9, 0.9, 0.9, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    rates = [schedule.rate(epoch, score) for epoch, score in enumerate(scores)]
    assert rates[:5] == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert rates[8] == 0.25
    assert min(rates) == 0.2
    first, second = RateSchedule(config, 100), RateSchedule(config, 100)
    for score in scores[:4]:
        first.rate(0, score)
    second.restore(first.state())
    assert [first.rate(0, score) for score in scores[4:]] == [
        second.rate(0, score) for score in scores[4:]
    ]


# ---------------------------------------------------------------------- penalties


@pytest.mark.parametrize(
    "weights",
    [
        {"residual_weight": 1.0},
        {"residual_max_weight": 1.0},
        {"rate_weight": 1.0, "rate_target": 0.1},
    ],
)
def test_penalties_have_the_documented_value_and_a_gradient(small, weights):
    config = small(dtype="float64", penalties=weights)
    trainer = Trainer(config, task_of(config))
    model, graph = trainer.model, trainer.task.train.graph
    output = model.run(graph)
    value = SettlingPenalty(config.penalties)(output, model, graph)
    with torch.no_grad():
        context = model.prepare(graph)
        state = output.solution.value
        image = model.step(state, context)
        change = ((image - state).norm(dim=1) / state.norm(dim=1)).square()
        following = ((model.step(image, context) - image).norm(dim=1) / image.norm(dim=1)).square()
        rate = math.sqrt((following.sum() + 1e-12) / (change.sum() + 1e-12))
        expected = {
            "residual_weight": change.mean(),
            "residual_max_weight": change.max(),
            "rate_weight": max(0.0, rate - 0.1) ** 2,
        }[next(iter(weights))]
    assert value.item() == pytest.approx(float(expected), rel=1e-6)
    value.backward()
    assert any(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for parameter in model.parameters()
    )


def test_following_the_penalty_lowers_the_residual(small):
    config = small(dtype="float64", penalties={"residual_weight": 1.0})
    trainer = Trainer(config, task_of(config))
    model, graph = trainer.model, trainer.task.train.graph
    with torch.no_grad():
        for parameter in model.parameters():  # far from settling
            parameter.mul_(3.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    values = []
    for _ in range(15):
        value = trainer.penalty(model.run(graph), model, graph)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]


def test_penalties_refuse_feed_forward_models(small):
    with pytest.raises(InputError, match="feed-forward"):
        SettlingPenalty(PenaltyConfig(residual_weight=1.0))(None, _Exploding(), None)
