"""Truncated and altered files: a named error each time, never a silent accept."""

from __future__ import annotations

import random
import shutil

import pytest

from sheafdeq.errors import RecordError
from sheafdeq.records import read_record
from sheafdeq.training.checkpoint import load_model
from sheafdeq.training.run import train


def damage(data: bytes, generator: random.Random) -> bytes:
    """A shorter file, or one flipped bit."""
    if generator.random() < 0.5:
        return data[: generator.randrange(len(data))]
    position = generator.randrange(len(data))
    return (
        data[:position]
        + bytes([data[position] ^ (1 << generator.randrange(8))])
        + data[position + 1 :]
    )


def attempt_all(folder, count, seed):
    """Number of damaged files that were refused by name, over the three files of a run."""
    generator = random.Random(seed)
    refused = 0
    for number in range(count):
        name = ("record.json", "checkpoint.json", "checkpoint.safetensors")[number % 3]
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(damage(original, generator))
        try:
            with pytest.raises(RecordError):
                read_record(folder) if name == "record.json" else load_model(folder)
            refused += 1
        finally:
            (folder / name).write_bytes(original)
    return refused


def test_damaged_records_and_checkpoints_are_refused(small, tmp_path):
    folder = train(small(), out=tmp_path).path
    assert attempt_all(folder, 1000, seed=0) == 1000
    assert read_record(folder).id == folder.name
    load_model(folder)


def test_an_altered_number_with_a_new_seal_still_fails_the_schema(small, tmp_path):
    from sheafdeq.records import read_sealed, write_sealed

    folder = train(small(), out=tmp_path).path
    payload = read_sealed(folder / "record.json")
    write_sealed(folder / "record.json", {**payload, "scores": "high"})
    with pytest.raises(RecordError, match="scores"):
        read_record(folder)
    write_sealed(folder / "record.json", {**payload, "format": 99})
    with pytest.raises(RecordError, match="format 99"):
        read_record(folder)


def test_a_checkpoint_of_another_run_does_not_pass(small, tmp_path):
    first = train(small(), out=tmp_path).path
    second = train(small(seed=43), out=tmp_path).path
    shutil.copy(second / "checkpoint.safetensors", first / "checkpoint.safetensors")
    with pytest.raises(RecordError, match="SHA-256"):
        load_model(first)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(RecordError, match="no such file"):
        read_record(tmp_path)
    with pytest.raises(RecordError, match=r"checkpoint\.json"):
        load_model(tmp_path)


def test_a_pickle_is_never_opened(tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return (print, ("executed",))

    for name in ("record.json", "checkpoint.json", "checkpoint.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Payload()))
    for read in (read_record, load_model):
        with pytest.raises(RecordError):
            read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {}},
        {"config": {"seed": "x"}},
        {"config": {"seed": True}},
        {"config": {"seed": 1, "task": []}},
        {"scores": {"train": 1.0}},
        {"timing": {"finished": 5}},
        {"curves": {"loss": 3}},
    ],
)
def test_a_record_of_another_shape_is_named(small, tmp_path, change):
    """Tables and diagnose rely on these parts; sealing the file again does not help."""
    from sheafdeq.cli import main
    from sheafdeq.records import read_sealed, write_sealed

    folder = train(small(), out=tmp_path).path
    payload = read_sealed(folder / "record.json")
    key, value = next(iter(change.items()))
    write_sealed(
        folder / "record.json",
        {**payload, key: {**payload[key], **value} if key == "config" and value else value},
    )
    with pytest.raises(RecordError, match=key):
        read_record(folder)
    assert main(["diagnose", str(folder)]) == 1
