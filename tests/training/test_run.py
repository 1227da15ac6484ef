from __future__ import annotations

import json
import random

import pytest
import torch

from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import without_timing
from sheafdeq.registry import MODELS
from sheafdeq.training.checkpoint import load_model
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.run import Busy, train
from sheafdeq.training.run_identity import identify, task_of
from sheafdeq.training.store import RunStore
from sheafdeq.training.version import CODE_VERSION_VARIABLE


def test_a_stored_run_is_complete_reused_and_rebuilds_its_model(small, tmp_path):
    first = train(small(), out=tmp_path)
    assert sorted(path.name for path in first.path.iterdir()) == [
        "checkpoint.json",
        "checkpoint.safetensors",
        "record.json",
    ]
    assert first.path.name == first.record.id == identify(small()).id
    again = train(small(), out=tmp_path)
    assert again.reused
    assert again.record == first.record
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, load_model(first.path).state_dict()[name])
    assert not (tmp_path / ".work" / first.record.id).exists()
    assert list((tmp_path / ".locks").iterdir()) == []


def test_equal_configurations_give_byte_equal_records(small, tmp_path):
    records = [train(small(), out=tmp_path / name).record.payload() for name in ("a", "b")]
    assert json.dumps(without_timing(records[0])) == json.dumps(without_timing(records[1]))


def test_whatever_changes_a_run_changes_its_id(small, monkeypatch):
    ids = {
        identify(config).id
        for config in (
            small(),
            small(seed=43),
            small(learning_rate=0.02),
            small(threads=2),
            small(model={"name": "sheafdeq", "options": {"shift": 1.4}}),
            small(task={"name": "counting", "options": {"chains": 5}}),
        )
    }
    assert len(ids) == 6
    # A default written out is the same run.
    assert identify(small(model={"name": "sheafdeq", "options": {}})).id == identify(small()).id
    monkeypatch.setenv(CODE_VERSION_VARIABLE, "pinned")
    pinned = identify(small())
    assert pinned.id not in ids
    assert pinned.code_version == "pinned"
    assert pinned.code_digest != "pinned"


def _record_of_interrupted_run(config, folder, epochs):
    """Suspend a run at each of the given epochs, then finish it."""
    for stop in epochs:
        with pytest.raises(Suspended):
            train(
                config,
                out=folder,
                suspend_when=lambda metrics, stop=stop: "test" if metrics.epoch >= stop else None,
            )
    return train(config, out=folder)


def _equal_up_to_timing(first, second):
    assert without_timing(first.record.payload()) == without_timing(second.record.payload())
    states = first.model.state_dict(), second.model.state_dict()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


@pytest.mark.parametrize("schedule", ["constant", "wsd", "plateau"])
def test_resume_is_bitwise_equal(small, tmp_path, schedule):
    config = small(max_epochs=9, schedule=schedule, test_every=3)
    straight = train(config, out=tmp_path / "straight")
    broken = _record_of_interrupted_run(config, tmp_path / "broken", [1, 2, 6])
    _equal_up_to_timing(straight, broken)
    assert broken.record.timing["epochs_in_this_attempt"] < 9


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_resume_is_bitwise_equal_at_ten_random_epochs_for_every_model(small, tmp_path, name):
    # One run stopped and resumed from disk ten times: had any of the ten lost a bit, the ends would
    # differ.
    config = small(max_epochs=20, model={"name": name, "options": {}})
    straight = train(config, out=tmp_path / "straight")
    assert straight.record.epochs == 20
    stops = sorted(random.Random(name).sample(range(20), 10))
    _equal_up_to_timing(straight, _record_of_interrupted_run(config, tmp_path / "broken", stops))


def test_resume_can_be_declined(small, tmp_path):
    with pytest.raises(Suspended, match="continue"):
        train(
            small(),
            out=tmp_path,
            suspend_when=lambda metrics: "test" if metrics.epoch == 3 else None,
        )
    assert train(small(), out=tmp_path, resume=False).record.timing["epochs_in_this_attempt"] == 6


def test_a_signal_saves_the_state(small, tmp_path):
    import os
    import signal

    def interrupt(metrics):
        if metrics.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Suspended, match="SIGINT"):
        train(small(), out=tmp_path, suspend_when=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert train(small(), out=tmp_path).record.timing["epochs_in_this_attempt"] < 6


def test_a_held_run_is_busy(small, tmp_path):
    store = RunStore(tmp_path)
    run_id = identify(small()).id
    claim = store.claim(run_id)
    assert store.running(run_id)
    assert store.claim(run_id) is None
    with pytest.raises(Busy):
        train(small(), out=tmp_path)
    claim.release()
    assert not store.running(run_id)
    assert train(small(), out=tmp_path).record.id == run_id


def test_what_is_not_in_the_configuration_cannot_be_stored(small, tmp_path):
    with pytest.raises(InputError, match="cannot be stored"):
        train(small(), out=tmp_path, stop_when=lambda metrics: False)


def test_fine_tuning_starts_from_the_checkpoint(small, tmp_path):
    first = train(small(), out=tmp_path)
    tuned = train(small(max_epochs=0, init_from=str(first.path)), out=tmp_path)
    assert tuned.record.scores == first.record.scores
    assert tuned.record.id != first.record.id
    with pytest.raises(RecordError, match="do not fit"):
        train(small(task={"name": "counting", "options": {"chains": 5}}, init_from=str(first.path)))


def test_a_changed_plan_is_refused(small, tmp_path):
    import dataclasses

    planned = dataclasses.replace(identify(small()), id="0" * 64, task_digest="1" * 64)
    with pytest.raises(RecordError, match="task changed"):
        train(small(), out=tmp_path, expected=planned)


def test_task_digest_can_be_supplied(small):
    assert identify(small(), task_of(small()).digest) == identify(small())


def test_seconds_to_a_score_are_the_share_of_the_epochs(small):
    record = train(small(max_epochs=4)).record
    timed = record.model_copy(
        update={
            "epochs": 4,
            "curves": {**record.curves, "validation": [10.0, None, 60.0, 50.0, 70.0]},
            "timing": {"cpu_seconds": 8.0},
        }
    )
    assert timed.seconds_to(60) == 4.0
    assert timed.seconds_to(5) == 0.0
    assert timed.seconds_to(99) is None
