"""The run store under attack: damaged files, full and vanished disks, no locks, links, lost
signals."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sheafdeq.cli import main
from sheafdeq.errors import InputError, RecordError, StoreError, UsageError
from sheafdeq.records import read_record, read_sealed, without_timing, write_bytes, write_sealed
from sheafdeq.training import store as store_module
from sheafdeq.training.engines import local
from sheafdeq.training.engines.job_process import (
    EXIT_STORE,
    EXIT_SUSPENDED,
    RunLimits,
    attempt,
    write_plan,
)
from sheafdeq.training.engines.job_process import main as work
from sheafdeq.training.engines.local import CRASH_LIMIT, planned, run_local
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.run import train
from sheafdeq.training.run_identity import identify
from sheafdeq.training.saved_state import StateWarning
from sheafdeq.training.store import LOCKS_VARIABLE, RunStore, safe_name
from sheafdeq.training.sweep import Budget, Entry, Manner, Sweep
from sheafdeq.training.version import CODE_VERSION_VARIABLE


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    """Sources that are edited while the tests run must not fail them."""
    monkeypatch.setenv(CODE_VERSION_VARIABLE, "test")


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------------- following the advice


@pytest.mark.parametrize("name", ["record.json", "checkpoint.json", "checkpoint.safetensors"])
def test_deleting_a_damaged_file_as_told_heals_the_run(small, tmp_path, name):
    first = train(small(), out=tmp_path)
    damaged = first.path / name
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(RecordError, match="delete it and run again"):
        train(small(), out=tmp_path)
    damaged.unlink()
    again = train(small(), out=tmp_path)
    assert not again.reused
    assert without_timing(again.record.payload()) == without_timing(first.record.payload())
    assert train(small(), out=tmp_path).reused
    assert len(list((tmp_path / ".damaged").iterdir())) == 1
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_sweep_heals_a_run_and_does_not_train_for_ever(small, tmp_path):
    store = RunStore(tmp_path)
    entry = Entry(small(), identify(small()))
    assert attempt(entry, store, "first", None, "local", 30.0) == "done"
    (store.path(entry.identity.id) / "record.json").unlink()
    assert attempt(entry, store, "second", None, "local", 30.0) == "done"
    assert store.record(entry.identity.id).id == entry.identity.id


def test_another_writers_complete_run_wins_and_anything_else_is_put_aside(tmp_path):
    store = RunStore(tmp_path)

    def write(word: str) -> None:
        with store.writing("a") as aside:
            for name in store_module.RUN_FILES:
                (aside / name).write_text(word)

    write("first")
    write("second")
    assert (store.path("a") / "record.json").read_text() == "first"
    (store.path("a") / "checkpoint.json").unlink()
    write("third")
    assert (store.path("a") / "record.json").read_text() == "third"
    shutil.rmtree(store.path("a"))
    store.path("a").write_text("a file where a run should be")
    write("fourth")
    assert (store.path("a") / "record.json").read_text() == "fourth"
    assert visible(tmp_path) == [".damaged", "a"]


@pytest.mark.parametrize("part", ["state.json", "tensors"])
@pytest.mark.parametrize("how", ["delete", "truncate"])
def test_a_damaged_state_starts_over_with_the_same_result(small, tmp_path, part, how):
    config = small(max_epochs=4)
    straight = train(config, out=tmp_path / "straight").record
    with pytest.raises(Suspended):
        train(
            config,
            out=tmp_path / "broken",
            suspend_when=lambda metrics: "test" if metrics.epoch == 2 else None,
        )
    work_folder = RunStore(tmp_path / "broken").work(identify(config).id)
    path = work_folder / "state.json" if part == "state.json" else next(work_folder.glob("state-*"))
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-5])
    if part == "state.json" and how == "delete":
        record = train(config, out=tmp_path / "broken").record
    else:
        with pytest.warns(StateWarning, match="starts over"):
            record = train(config, out=tmp_path / "broken").record
    assert without_timing(record.payload()) == without_timing(straight.payload())


def test_a_damaged_failure_or_task_note_stops_nothing(small, tmp_path):
    store = RunStore(tmp_path)
    store.fail("a", error="deliberate", invocation="x")
    assert store.failure("a")["error"] == "deliberate"
    (tmp_path / ".failed" / "a.json").write_text("{")
    assert "truncated" in store.failure("a")["error"]


def test_what_a_process_killed_after_its_run_left_is_removed(small, tmp_path):
    """Complete and visible, and the process dies before it clears away: found by killing at every
    file operation."""
    result = train(small(), out=tmp_path)
    store, run_id = RunStore(tmp_path), result.record.id

    def leave() -> None:
        store.work(run_id).mkdir(parents=True)
        (store.work(run_id) / "state.json").write_text("{}")
        (tmp_path / ".locks" / run_id).write_text("1")
        (tmp_path / f".tmp-{run_id}-0").mkdir()

    leave()
    claim = store.claim(run_id)
    assert train(small(), out=tmp_path).reused  # held: left alone
    assert store.work(run_id).exists()
    claim.release()
    assert train(small(), out=tmp_path).reused
    assert [path.name for path in tmp_path.rglob("*") if run_id in path.name] == [run_id]
    leave()
    run_local([Entry(small(), identify(small()))], store)
    assert [path.name for path in tmp_path.rglob("*") if run_id in path.name] == [run_id]


# ---------------------------------------------------------------------- full and vanished disks


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"new")
    assert visible(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    abandoned, held = tmp_path / ".file.123.0123abcd", tmp_path / ".file.124.0123abcd"
    abandoned.write_bytes(b"half")
    other = tmp_path / ".file.note"
    other.write_bytes(b"not ours")
    with open(held, "wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write_bytes(tmp_path / "file", b"whole")
        assert visible(tmp_path) == [held.name, other.name, "file"]
    write_bytes(tmp_path / "file", b"whole")
    assert visible(tmp_path) == [other.name, "file"]


def test_a_full_disk_is_named_and_leaves_no_partial_run(small, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            train(small(), out=tmp_path)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        with pytest.raises(StoreError, match="No space"):
            RunStore(tmp_path).probe()
    assert train(small(), out=tmp_path).path.is_dir()


def test_a_store_that_vanishes_is_not_made_anew(small, tmp_path):
    folder = tmp_path / "store"

    def pull_out(metrics):
        shutil.rmtree(folder, ignore_errors=True)

    with pytest.raises(StoreError, match="vanished"):
        train(small(), out=folder, suspend_when=pull_out, checkpoint_seconds=0.0)
    assert not folder.exists()


def planned_here(store, entries):
    """The plan a driver would write for its workers."""
    plan = store.folder(".plans") / "plan.json"
    write_plan(
        plan,
        entries,
        store=str(store.root),
        invocation="x",
        driver=os.getppid(),
        deadline=None,
        budget_epochs=None,
        counter="",
        checkpoint_seconds=30.0,
    )
    return plan


def test_a_worker_that_cannot_write_says_so(small, tmp_path, monkeypatch, capsys):
    store = RunStore(tmp_path / "store")
    plan = planned_here(store, [Entry(small(), identify(small()))])
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "fsync", full)
    try:
        assert work(str(plan)) == EXIT_STORE
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "No space left" in capsys.readouterr().err
    assert work(str(tmp_path / "absent.json")) == EXIT_STORE
    assert "absent.json" in capsys.readouterr().err


class Dying(subprocess.Popen):
    """A worker that ends at once with a given code."""

    code = 1
    started = 0

    def __init__(self, *arguments, **options):
        type(self).started += 1
        super().__init__([sys.executable, "-S", "-c", f"raise SystemExit({self.code})"])


@pytest.mark.parametrize("code", [1, EXIT_STORE])
def test_workers_that_die_outside_a_run_are_counted(small, tmp_path, monkeypatch, code):
    monkeypatch.setattr(Dying, "code", code)
    monkeypatch.setattr(Dying, "started", 0)
    monkeypatch.setattr(local.subprocess, "Popen", Dying)
    with pytest.raises(StoreError, match=f"{CRASH_LIMIT} workers died outside any run"):
        run_local([Entry(small(), identify(small()))], RunStore(tmp_path))
    assert Dying.started == CRASH_LIMIT
    assert visible(tmp_path / ".plans") == []


def test_a_full_disk_ends_a_sweep_at_the_first_worker(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Dying, "code", EXIT_STORE)
    monkeypatch.setattr(Dying, "started", 0)
    monkeypatch.setattr(local.subprocess, "Popen", Dying)
    monkeypatch.setattr(
        RunStore, "probe", lambda self: (_ for _ in ()).throw(StoreError("No space left on device"))
    )
    with pytest.raises(StoreError, match="No space"):
        run_local([Entry(small(), identify(small()))], RunStore(tmp_path))
    assert Dying.started == 1


# ---------------------------------------------------------------------- locks


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_named(small, tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store_module.fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=rf"does not lock files.*{LOCKS_VARIABLE}=off"):
        train(small(), out=tmp_path)
    monkeypatch.setenv(LOCKS_VARIABLE, "off")
    assert train(small(), out=tmp_path).path.is_dir()
    with pytest.raises(UsageError, match="--shard"):
        run_local([], RunStore(tmp_path), Manner(jobs=2))


def test_a_lock_service_that_does_not_answer_is_named(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(store_module, "LOCK_PATIENCE", 0.1)
    monkeypatch.setattr(store_module.fcntl, "flock", lambda descriptor, operation: release.wait(30))
    try:
        with pytest.raises(StoreError, match=r"no answer within 0\.1 s"):
            RunStore(tmp_path).claim("a")
    finally:
        release.set()


def test_the_choice_of_locks_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCKS_VARIABLE, "maybe")
    with pytest.raises(UsageError, match="maybe"):
        RunStore(tmp_path).claim("a")


def test_links_are_not_followed(tmp_path):
    store, victim = RunStore(tmp_path / "store"), tmp_path / "victim"
    victim.write_text("precious")
    locks = store.folder(".locks")
    (locks / "a").symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        store.claim("a")
    with pytest.raises(StoreError, match="symbolic link"):
        store.running("a")
    assert store.holder("a") is None
    (locks / "b").symlink_to(tmp_path / "not yet there")
    with pytest.raises(StoreError, match="symbolic link"):
        store.claim("b")
    os.mkfifo(locks / "c")
    with pytest.raises(StoreError, match="not a regular file"):
        store.claim("c")
    assert victim.read_text() == "precious"
    assert visible(tmp_path) == ["store", "victim"]
    for name in (".locks", ".work", ".failed", ".plans"):
        other = RunStore(tmp_path / f"other{name}")
        other.open()
        (other.root / name).symlink_to(tmp_path)
        with pytest.raises(StoreError, match="symbolic link"):
            other.folder(name)


# ---------------------------------------------------------------------- drivers, signals, clocks


def test_plans_of_killed_drivers_are_removed_and_those_of_living_ones_stay(tmp_path):
    store = RunStore(tmp_path)
    folder = store.folder(".plans")
    for suffix in ("json", "epochs", "lock", "stop"):
        (folder / f"dead.{suffix}").write_text("1")
    (folder / "old.json").write_text("{}")
    os.utime(folder / "old.json", (0, 0))
    with planned(store) as (first, plan, _):
        plan.write_text("{}")
        with planned(store):
            assert f"{first}.json" in visible(folder)
        assert visible(folder) == [f"{first}.json", f"{first}.lock"]
    assert visible(folder) == []


def test_time_budgets_do_not_depend_on_the_wall_clock(monkeypatch):
    limits = RunLimits(Budget(), time.monotonic() + 3600, None, None)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert limits.reason() is None
    assert "time" in RunLimits(Budget(), time.monotonic() - 1, None, None).reason()


def test_a_driver_elsewhere_ends_the_time_by_a_file(tmp_path):
    limits = RunLimits(Budget(), None, None, None, stop=tmp_path / "stop")
    assert limits.reason() is None
    (tmp_path / "stop").touch()
    assert "time" in limits.reason()


def test_an_interrupt_while_a_worker_starts_reaches_it(small, tmp_path, monkeypatch):
    """The signal comes inside Popen: the worker exists, and the driver does not know it yet."""
    told = []

    class Starting(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
            os.kill(os.getpid(), signal.SIGINT)

        def send_signal(self, number):
            told.append(number)
            super().send_signal(number)

    monkeypatch.setattr(local.subprocess, "Popen", Starting)
    began = time.monotonic()
    with pytest.raises(Suspended, match="SIGINT"):
        run_local(
            [Entry(small(seed=seed), identify(small(seed=seed))) for seed in (1, 2)],
            RunStore(tmp_path),
            Manner(jobs=2),
        )
    assert told == [signal.SIGTERM]  # and no second worker was started
    assert time.monotonic() - began < 30


def test_a_signal_after_the_last_epoch_is_not_lost(small, tmp_path):
    heard = []

    class AtTheEnd:
        def start(self, title, epoch, max_epochs):
            pass

        def update(self, metrics):
            pass

        def finish(self, message):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        result = train(small(), out=tmp_path, progress=AtTheEnd())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert result.path.is_dir()


def test_a_worker_told_to_stop_between_two_runs_stops(small, tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    entries = [Entry(small(seed=seed), identify(small(seed=seed))) for seed in (1, 2)]
    plan = planned_here(store, entries)

    def first_then_signal(entry, *arguments):
        result = attempt(entry, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr("sheafdeq.training.engines.job_process.attempt", first_then_signal)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert work(str(plan)) == EXIT_SUSPENDED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [store.finished(entry.identity.id) for entry in entries] == [True, False]


# ---------------------------------------------------------------------- what leaves the store


SWEEP = """
name = NAME
seeds = [42]
[training]
max_epochs = 1
[[tasks]]
name = "counting"
options = { chains = 5 }
[[models]]
name = "ignn"
options = [{}]
"""


@pytest.mark.parametrize(
    "name", ["../../outside", "/tmp/outside-of-results", "..", "a/b", "\x1b[31m"]
)
@pytest.mark.parametrize("extra", [[], ["--checkpoints"]])
def test_export_never_leaves_its_folder(tmp_path, capsys, name, extra):
    grid = tmp_path / "grid.toml"
    grid.write_text(SWEEP.replace("NAME", json.dumps(name)))
    store = RunStore(tmp_path / "store")
    (entry,) = Sweep.load(grid).plan(store)
    train(entry.config, out=store.root)
    capsys.readouterr()
    results = tmp_path / "deep" / "results"
    assert (
        main(
            [
                "sweep",
                "export",
                str(grid),
                "--out",
                str(store.root),
                "--results",
                str(results),
                "--json",
                *extra,
            ]
        )
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["copied"] == 1
    assert Path(facts["folder"]).resolve().parent == results.resolve()
    records = [*results.rglob("*.run.json"), *results.rglob("record.json")]
    assert [read_record(path).id for path in records] == [entry.identity.id]
    assert visible(tmp_path) == ["deep", "grid.toml", "store"]
    assert visible(tmp_path / "deep") == ["results"]


def test_export_does_not_follow_a_link_out_of_its_folder(tmp_path, capsys):
    grid = tmp_path / "grid.toml"
    grid.write_text(SWEEP.replace("NAME", '"mine"'))
    (entry,) = Sweep.load(grid).plan(RunStore(tmp_path / "store"))
    train(entry.config, out=tmp_path / "store")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine").symlink_to(outside)
    arguments = [
        "sweep",
        "export",
        str(grid),
        "--out",
        str(tmp_path / "store"),
        "--results",
        str(tmp_path / "results"),
    ]
    assert main(arguments) == 2
    assert "symbolic link" in capsys.readouterr().err
    assert visible(outside) == []


def test_safe_names():
    assert safe_name("community-10-sheafdeq-1.3-seed42") == "community-10-sheafdeq-1.3-seed42"
    for text in ("..", ".", "", "../x", "/etc/passwd", "a\0b", "a\nb", "x" * 1000):
        name = safe_name(text)
        assert name
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) <= 151


def test_records_name_the_checkpoint_a_run_starts_from_by_content(small, tmp_path):
    first = train(small(), out=tmp_path / "a").path
    moved = tmp_path / "elsewhere"
    shutil.copytree(first, moved)
    records = [
        train(small(max_epochs=1, init_from=str(path)), out=tmp_path / name).record
        for name, path in (("a", first), ("b", moved))
    ]
    assert without_timing(records[0].payload()) == without_timing(records[1].payload())
    assert (
        records[0].config["init_from"]
        == f"sha256:{read_sealed(first / 'checkpoint.json')['tensors']}"
    )
    assert str(tmp_path) not in json.dumps(records[0].payload())
    # The record's own configuration, and a run id, find the checkpoint in the store.
    stored = small().replace(**records[0].config)
    assert train(stored, out=tmp_path / "a").reused
    assert train(small(max_epochs=1, init_from=first.name[:12]), out=tmp_path / "a").reused
    with pytest.raises(RecordError, match="neither a run directory"):
        train(stored, out=tmp_path / "empty")


def test_a_configuration_cannot_consent_to_a_download(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path / "data"))
    asked = []

    def fetch(*arguments, **options):
        asked.append(arguments)
        raise OSError("a download was tried")

    monkeypatch.setattr("urllib.request.urlopen", fetch)
    monkeypatch.setattr("urllib.request.OpenerDirector.open", fetch)
    text = 'model = "mlp"\n[task]\nname = "mnist-terrain"\noptions = { OPTION }\n'
    for option, word in (("download = true", "--download"), ('root = "/"', "SHEAFDEQ_DATA")):
        path = tmp_path / "run.toml"
        path.write_text(text.replace("OPTION", option))
        assert main(["train", "--config", str(path)]) == 2
        assert word in capsys.readouterr().err
    assert (
        main(["train", "--task", "mnist-terrain", "--model", "mlp", "--task-set", "download=true"])
        == 2
    )
    assert asked == []
    assert main(["train", "--task", "mnist-terrain", "--model", "mlp", "--download"]) == 1
    assert asked


# ---------------------------------------------------------------------- speed


def test_status_of_two_thousand_runs_takes_less_than_a_second(tmp_path, monkeypatch):
    """Planned and counted, without the time Python needs to load torch."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # reading is timed, not writing
    grid = tmp_path / "grid.toml"
    text = (
        SWEEP.replace("NAME", '"many"').replace("[42]", str(list(range(1000))))
        + '[[models]]\nname = "mlp"\noptions = [{}]\n'
    )
    grid.write_text(text)
    store = RunStore(tmp_path / "store")
    sweep = Sweep.load(grid)
    entries = sweep.plan(store)
    assert len(entries) == 2000
    source = train(entries[0].config, out=store.root).path
    payload = read_sealed(source / "record.json")
    payload["curves"]["loss"] = [0.12345] * 2000  # as long as a real run's
    payload["curves"]["validation"] = [98.7654] * 2000
    for entry in entries[1:1500]:
        folder = store.root / entry.identity.id
        folder.mkdir()
        write_sealed(folder / "record.json", {**payload, "id": entry.identity.id})
        for name in ("checkpoint.json", "checkpoint.safetensors"):
            os.link(source / name, folder / name)
    began = time.process_time()
    status = sweep.status(store, sweep.plan(store))
    seconds = time.process_time() - began
    assert (status["done"], status["left"]) == (1500, 500)
    assert status["seconds_left"] is not None
    assert seconds < 1.0, f"{seconds:.2f} s"


def test_a_store_that_cannot_be_made_is_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        train(small(), out=tmp_path / "file" / "store")
    with pytest.raises(InputError, match="jobs"):
        run_local([], RunStore(tmp_path), Manner(jobs=0))
