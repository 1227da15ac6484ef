from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from report.report_records import record
from scripts import loaded
from sheafdeq.cli import main
from sheafdeq.errors import InputError, UsageError
from sheafdeq.records import read_record, read_records, without_timing
from sheafdeq.registry import MODELS
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.engines.job_process import EXIT_SUSPENDED, RunLimits, attempt, write_plan
from sheafdeq.training.engines.job_process import main as work
from sheafdeq.training.engines.local import run_local
from sheafdeq.training.run import train
from sheafdeq.training.store import RunStore
from sheafdeq.training.sweep import (
    Budget,
    Manner,
    Sweep,
    answered,
    parse_shard,
    preset_names,
    question,
)
from sheafdeq.training.version import CODE_VERSION_VARIABLE

GRID = """
name = "tiny"
seeds = [42, 43]
[training]
max_epochs = 4
[[tasks]]
name = "community"
level = 10
options = { nodes = 30, train_seeds = [1], test_seeds = [2], k = 3 }
[[tasks]]
name = "counting"
options = { chains = 5 }
[[models]]
name = "sheafdeq"
options = [{ shift = 1.2 }, { shift = 1.3 }]
[[models]]
name = "ignn"
[[exclude]]
model = "ignn"
task = "counting"
"""


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    """Sources that are edited while the tests run must not fail them."""
    monkeypatch.setenv(CODE_VERSION_VARIABLE, "test")


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(GRID)
    return path


def payloads(folder):
    return {record.id: without_timing(record.payload()) for record in read_records(folder)}


# ---------------------------------------------------------------------- what a sweep is


def test_grid_order_and_exclusions(grid):
    configs = Sweep.load(grid).configs()
    assert len(configs) == 2 * (3 + 2)
    assert [config.seed for config in configs] == [42] * 5 + [43] * 5
    assert not any(
        config.model.name == "ignn" and config.task.name == "counting" for config in configs
    )
    assert all(config.max_epochs == 4 for config in configs)
    assert {config.max_epochs for config in Sweep.load(grid, {"max_epochs": 7}).configs()} == {7}


def test_shards_are_a_partition(grid, tmp_path):
    sweep, store = Sweep.load(grid), RunStore(tmp_path / "runs")
    whole = [entry.identity.id for entry in sweep.plan(store)]
    parts = [entry.identity.id for index in (1, 2, 3) for entry in sweep.plan(store, (index, 3))]
    assert sorted(parts) == sorted(whole)
    assert len(set(whole)) == len(whole)
    for wrong in ("0/3", "4/3", "a/b", "3"):
        with pytest.raises(UsageError, match="shard"):
            parse_shard(wrong)
    assert parse_shard("2/3") == (2, 3)


def test_budgets():
    assert Budget.parse("500") == Budget(epochs=500)
    assert Budget.parse("500epochs") == Budget(epochs=500)
    assert Budget.parse("2h") == Budget(seconds=7200.0)
    assert Budget.parse("1.5m") == Budget(seconds=90.0)
    assert Budget.parse(None) == Budget()
    for wrong in ("", "0", "-1h", "2 weeks", "h"):
        with pytest.raises(UsageError, match="budget"):
            Budget.parse(wrong)


def test_unknown_presets_keys_and_models_are_errors(grid, tmp_path):
    with pytest.raises(UsageError, match="community"):
        Sweep.load("nonsense")
    grid.write_text(GRID.replace("seeds", "sedes"))
    with pytest.raises(InputError, match="se"):
        Sweep.load(grid)
    grid.write_text(GRID.replace("max_epochs", "max_epoch"))
    with pytest.raises(InputError, match="max_epoch"):
        Sweep.load(grid).configs()
    grid.write_text(GRID.replace('"ignn"', '"ignm"', 1))
    with pytest.raises(InputError, match="ignm"):
        Sweep.load(grid).configs()


def test_presets_hold_the_papers_tables():
    assert {"community", "distributed", "headline", "smoke", "level10"} <= set(preset_names())
    runs = {name: Sweep.load(name).configs() for name in preset_names()}
    # Community: 22 configurations of the full table, six levels, five seeds.
    assert len(runs["community"]) == 22 * 6 * 5
    assert {config.task.level for config in runs["community"]} == {1, 3, 5, 7, 9, 10}
    # Distributed: 19 configurations without EIGNN, four tasks, five seeds; EIGNN on Counting alone.
    assert len(runs["distributed"]) == (19 * 4 + 1) * 5
    for name in ("community", "distributed"):
        assert {config.seed for config in runs[name]} == {42, 43, 44, 45, 46}
        assert {config.max_epochs for config in runs[name]} == {2000}
    assert {config.seed for config in runs["headline"]} == {42}
    assert {config.model.name for configs in runs.values() for config in configs} <= set(MODELS)


# ---------------------------------------------------------------------- running one


def test_local_sweep_shards_direct_runs_and_cli_give_equal_records(grid, tmp_path, capsys):
    sweep = Sweep.load(grid)
    store = RunStore(tmp_path / "local")
    lines: list[str] = []
    run_local(sweep.plan(store), store, Manner(jobs=2, tell=lines.append))
    assert lines[-1] == "10/10 runs finished or failed"
    status = sweep.status(store)
    assert (
        status["done"],
        status["left"],
        status["failed"],
        status["running"],
        status["total"],
    ) == (10, 0, 0, 0, 10)
    assert status["seconds_left"] == 0.0
    reference = payloads(tmp_path / "local")
    # In this process, one by one.
    for config in sweep.configs()[:3]:
        record = train(config, out=tmp_path / "direct").record
        assert without_timing(record.payload()) == reference[record.id]
    # Through the command line, one of three shards.
    assert (
        main(
            ["sweep", "run", str(grid), "--out", str(tmp_path / "cli"), "--shard", "2/3", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["done"] == 3
    shard = payloads(tmp_path / "cli")
    assert len(shard) == 3
    assert all(reference[key] == value for key, value in shard.items())
    # Running again computes nothing, and says so.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").glob("*/record.json")}
    run_local(sweep.plan(store), store, Manner(jobs=2))
    assert before == {
        path: path.stat().st_mtime_ns for path in (tmp_path / "local").glob("*/record.json")
    }
    # Exported records are what the store holds.
    arguments = [
        "sweep",
        "export",
        str(grid),
        "--out",
        str(tmp_path / "local"),
        "--results",
        str(tmp_path / "results"),
    ]
    assert main(arguments) == 0
    assert payloads(tmp_path / "results") == reference


def test_one_failed_run_is_recorded_and_retried_and_stops_nothing(
    grid, tmp_path, monkeypatch, capsys
):
    sweep, store = Sweep.load(grid), RunStore(tmp_path)
    entries = sweep.plan(store)

    def broken(*arguments, **options):
        raise FloatingPointError("deliberate")

    with monkeypatch.context() as patch:
        patch.setattr("sheafdeq.training.engines.job_process.train", broken)
        assert attempt(entries[0], store, "first", None, "local", 30.0) == "failed"
    status = sweep.status(store, entries)
    assert (status["failed"], status["left"]) == (1, 9)
    assert status["failures"][0]["error"] == "FloatingPointError: deliberate"
    assert main(["sweep", "status", str(grid), "--out", str(tmp_path)]) == 0
    assert "deliberate" in capsys.readouterr().out
    assert attempt(entries[0], store, "second", None, "local", 30.0) == "done"
    assert sweep.status(store, entries)["failed"] == 0


def test_a_task_that_cannot_be_loaded_fails_its_runs_alone(grid, tmp_path, monkeypatch):
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path / "empty"))
    grid.write_text(
        GRID.replace('name = "counting"\noptions = { chains = 5 }', 'name = "mnist-terrain"')
    )
    sweep, store = Sweep.load(grid), RunStore(tmp_path / "runs")
    status = sweep.status(store)
    assert status["failed"] == 6
    assert status["left"] == 6


def test_epoch_budget_suspends_and_the_next_call_continues(grid, tmp_path):
    sweep, store = Sweep.load(grid), RunStore(tmp_path / "runs")
    entries = sweep.plan(store)[:2]

    def invoke(epochs, name):
        plan = tmp_path / f"{name}.json"
        write_plan(
            plan,
            entries,
            store=str(store.root),
            invocation=name,
            driver=os.getppid(),
            deadline=None,
            budget_epochs=epochs,
            counter=str(tmp_path / name),
            checkpoint_seconds=30.0,
        )
        return work(str(plan))

    assert invoke(7, "first") == EXIT_SUSPENDED
    status = sweep.status(store, entries)
    assert (status["done"], status["left"]) == (1, 1)
    assert (store.work(entries[1].identity.id) / "state.json").is_file()
    assert invoke(None, "second") == 0
    assert sweep.status(store, entries)["done"] == 2
    assert store.record(entries[1].identity.id).timing["epochs_in_this_attempt"] < 4
    straight = train(entries[1].config, out=tmp_path / "straight").record
    assert without_timing(straight.payload()) == without_timing(
        store.record(entries[1].identity.id).payload()
    )


def test_limits_know_a_dead_driver_and_a_spent_budget(tmp_path):
    assert RunLimits(Budget(), None, None, os.getppid()).reason() is None
    assert "gone" in RunLimits(Budget(), None, None, -1).reason()
    assert "time" in RunLimits(Budget(), time.monotonic() - 1, None, None).reason()
    limits = RunLimits(Budget(epochs=2), None, tmp_path / "counter", None)
    assert limits(None) is None
    assert "epoch" in limits(None)


@pytest.mark.slow
def test_interrupting_the_driver_saves_the_runs(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(GRID.replace("max_epochs = 4", "max_epochs = 100000\npatience = 100000"))
    command = [
        sys.executable,
        "-m",
        "sheafdeq",
        "sweep",
        "run",
        str(path),
        "--out",
        str(tmp_path / "runs"),
    ]
    command += ["--checkpoint-seconds", "0.1"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs" / ".work").glob("*/state.json")):
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    error = driver.communicate(timeout=120)[1].decode()
    assert driver.returncode == 1
    assert "suspended" in error
    assert "Traceback" not in error
    assert len(list((tmp_path / "runs" / ".work").glob("*/state.json"))) == 1


# ---------------------------------------------------------------------- being killed


def need_ray():
    """Skip without Ray, and without importing it: its settings must be made first."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("could not import 'ray'")


def crash_module():
    return loaded("benchmarks/crash_safety.py")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_twenty_random_kills_lose_nothing(tmp_path, engine):
    if engine == "ray":
        need_ray()
    outcome = crash_module().crash(
        engine, kills=20, jobs=2, seeds=4, epochs=40, seed=1, mean_wait=1.0, folder=tmp_path
    )
    assert outcome["kills"] == 20
    assert (outcome["lost"], outcome["duplicated"], outcome["differing"]) == (0, 0, 0)


def test_the_comparison_notices_lost_extra_and_differing_runs():
    expected = {"a": b"1", "b": b"2", "c": b"3"}
    counts = crash_module().compare(expected, {"a": b"1", "b": b"9", "d": b"4"})
    assert counts == {"runs": 3, "lost": 1, "duplicated": 1, "differing": 1}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ray_gives_the_records_of_the_local_engine(grid, tmp_path):
    need_ray()
    from sheafdeq.training.engines.ray import run_ray

    sweep = Sweep.load(grid)
    for name, engine in (("local", run_local), ("ray", run_ray)):
        store = RunStore(tmp_path / name)
        engine(sweep.plan(store), store, Manner(jobs=2))
    assert payloads(tmp_path / "local") == payloads(tmp_path / "ray")
    assert len(payloads(tmp_path / "ray")) == 10


def test_ray_missing_is_said(grid, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert (
        main(["sweep", "run", str(grid), "--engine", "ray", "--out", str(tmp_path / "runs")]) == 2
    )
    assert "sheafdeq[ray]" in capsys.readouterr().err


def test_ray_imported_too_early_is_said(monkeypatch):
    from sheafdeq.training.engines.ray import _import_ray

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", cluster)
    # the refusal leaves nothing behind that a second attempt would take for the user's setting
    for _ in range(2):
        with pytest.raises(UsageError, match="before importing ray"):
            _import_ray()
    cluster.is_initialized = lambda: True
    assert _import_ray() is cluster


# ---------------------------------------------------------------------- community level 10


def test_level_ten_reaches_98_percent_and_preset_file_and_record_are_one_configuration():
    config = TrainingConfig.parse(
        {
            "task": {"name": "community", "level": 10},
            "model": {"name": "sheafdeq", "options": {"shift": 1.3}},
            "seed": 42,
        }
    )
    root = Path(__file__).parents[2]
    assert TrainingConfig.read(root / "configs" / "level10_sheafdeq.toml") == config
    assert config in Sweep.load("level10").configs()
    assert config in Sweep.load("headline").configs()
    assert config in Sweep.load("community").configs()
    recorded = [
        record
        for record in read_records(root / "results" / "runs")
        if TrainingConfig.of_record(record.config, record.id).replace(schedule="wsd") == config
    ]
    assert recorded
    assert min(record.scores["test"] for record in recorded) >= 98.0


def test_level_ten_is_the_same_through_the_python_interface_and_a_sweep():
    """Two full-size runs of one code version: the test scores noted on the way change nothing."""
    root = Path(__file__).parents[2] / "results" / "runs"
    swept, called = (
        read_record(next(root.glob(f"{start}*"))) for start in ("0b1bd7c3", "fa8deb2a")
    )
    assert (swept.timing["engine"], called.timing["engine"]) == ("local", "direct")
    assert swept.code == called.code
    assert TrainingConfig.of_record(called.config, "called").replace(
        test_every=None
    ) == TrainingConfig.of_record(swept.config, "swept")
    for name in ("loss", "validation"):
        assert swept.curves[name] == called.curves[name]
    assert swept.scores == called.scores
    tensors = [
        load_file(next(root.glob(f"{start}*")) / "checkpoint.safetensors")
        for start in ("0b1bd7c3", "fa8deb2a")
    ]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


# ---------------------------------------------------------------------- groups, and what was made
# elsewhere

GROUPS = """
name = "ordered"
[training]
max_epochs = 2
[[groups]]
title = "first"
seeds = [43]
tasks = [{ name = "community", levels = [7, 3], options = { SMALL } }]
models = [{ name = "ignn", options = [{}] }]
[[groups]]
title = "then"
seeds = [42, 43]
tasks = [{ name = "community", level = 3, options = { SMALL } }]
models = [{ name = "ignn", options = [{}] }, { name = "mlp", options = [{}] }]
training = { learning_rate = 1e-2 }
exclude = [{ model = "mlp", task = "counting" }]
""".replace("SMALL", "nodes = 30, train_seeds = [1], test_seeds = [2], k = 3")


@pytest.fixture
def ordered(tmp_path):
    (tmp_path / "ordered.toml").write_text(GROUPS)
    return tmp_path / "ordered.toml"


def test_groups_come_in_their_order_and_ask_for_a_run_once(ordered):
    runs = Sweep.load(ordered).runs()
    assert [
        (group, config.task.level, config.model.name, config.seed) for group, config in runs
    ] == [
        ("first", 7, "ignn", 43),
        ("first", 3, "ignn", 43),
        ("then", 3, "ignn", 42),
        ("then", 3, "mlp", 42),
        ("then", 3, "mlp", 43),
    ]
    assert {config.max_epochs for _, config in runs} == {2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name =", "seeds = [1]\nname ="), "seeds stands beside groups"),
        (("levels = [7, 3]", "level = 1, levels = [7, 3]"), "level or levels"),
        (("title = ", "titel = "), "unknown key 'groups.0.titel'"),
    ],
)
def test_a_file_with_groups_that_makes_no_sense_is_named(tmp_path, change, message):
    path = tmp_path / "bad.toml"
    path.write_text(GROUPS.replace(*change, 1))
    with pytest.raises(InputError, match=message):
        Sweep.load(path)
    path.write_text('name = "empty"\n')
    with pytest.raises(InputError, match="seeds is missing"):
        Sweep.load(path)


def test_records_made_by_other_sources_count_and_are_not_made_again(
    ordered, tmp_path, monkeypatch, capsys
):
    elsewhere = tmp_path / "elsewhere"
    config = Sweep.load(ordered).configs()[1]
    made = train(config, out=elsewhere)
    monkeypatch.setenv(CODE_VERSION_VARIABLE, "later")
    command = ["sweep", "status", str(ordered), "--out", str(tmp_path / "runs"), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 0
    assert main([*command, "--recorded", str(elsewhere), "--missing"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["done"], status["left"]) == (1, 4)
    assert [(group["title"], group["done"], group["total"]) for group in status["groups"]] == [
        ("first", 1, 2),
        ("then", 0, 3),
    ]
    assert len(status["missing"]) == 4
    assert (
        main(
            [
                "sweep",
                "run",
                str(ordered),
                "--out",
                str(tmp_path / "runs"),
                "--recorded",
                str(elsewhere),
            ]
        )
        == 0
    )
    finished = [record.config["task"]["level"] for record in read_records(tmp_path / "runs")]
    assert sorted(finished) == [3, 3, 3, 7]
    assert made.record.id not in {record.id for record in read_records(tmp_path / "runs")}
    capsys.readouterr()
    assert main([*command[:-1], "--missing"]) == 0
    assert "left     community level 3, ignn, seed 43 (first)" in capsys.readouterr().out


def test_a_record_older_than_an_option_answers_the_question_it_was_asked():
    """Before the Loop Transformer could draw a mask for every loop, it drew one for the solve."""
    options = {"dropout": 0.1, "edge_features": True, "gradient": "unrolled"}
    old = record(test=1.0, validation=1.0, model="loop-transformer", shift=None)
    old = old.model_copy(update={"model": old.model.model_copy(update={"options": options})})
    today = TrainingConfig.of_record(old.config, "today")
    assert answered(old) != question(today)
    assert answered(old) == question(today, {"masks": "solve"})
    younger = old.model.model_copy(update={"options": {**options, "masks": "loop"}})
    assert answered(old.model_copy(update={"model": younger})) == question(today)


def test_the_evidence_has_its_order():
    """The issue's list: cascade, SheafDEQ, comparison models, simple models, then readings, inputs,
    and more of everything."""
    runs = Sweep.load("evidence").runs()
    places = {group: number for number, (group, _) in reversed(list(enumerate(runs)))}
    numbers = [title.split()[0] for title in sorted(places, key=places.__getitem__)]
    assert [n for n in numbers if n.isdigit()] == sorted(n for n in numbers if n.isdigit())
    assert numbers.index("reading:") > numbers.index("4")
    assert numbers.index("then:") > numbers.index("same")
    must = [config for group, config in runs if group[0].isdigit()]
    cascade = {(c.task.name, c.task.level, c.seed) for c in must if c.model.name == "sheaf-cascade"}
    columns = [("community", level) for level in (1, 3, 5, 7, 9, 10)] + [
        ("coordinates", None),
        ("mnist-terrain", None),
    ]
    assert cascade == {(*column, seed) for column in columns for seed in (42, 43, 44, 45, 46)}
    ours = {(c.task.name, c.task.level, c.seed) for c in must if c.model.name == "sheafdeq"}
    assert len(ours) == 5 * 3 + 5
    warmups = {
        (c.model.name, c.task.level, c.schedule.warmup)
        for _, c in runs
        if not c.task.options and c.graphs_per_update is None
    }
    assert {
        (*which, w)
        for which in (("loop-transformer", 7), ("loop-transformer", 10), ("ignn", 10))
        for w in (0.05, 0.1, 0.2)
    } <= warmups
    assert len({config.model_dump_json() for _, config in runs}) == len(runs)


def test_the_token_of_ray_is_its_owners_alone(tmp_path, monkeypatch):
    from sheafdeq.training.engines.ray import _private_token

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    _private_token()
    path = tmp_path / ".ray" / "auth_token"
    token = path.read_text()
    assert len(token) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    _private_token()
    assert path.read_text() == token
    assert path.stat().st_mode & 0o777 == 0o600


RAY_SOCKETS = """
import json, os, sys
from pathlib import Path
from sheafdeq.training.engines.ray import _import_ray, _start
ray = _import_ray()
_start(ray, 1, None)
mine, waiting = set(), [os.getpid()]
parents = {}
for entry in Path("/proc").iterdir():
    if entry.name.isdecimal():
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
        except OSError:
            pass
while waiting:
    pid = waiting.pop()
    mine.add(pid)
    waiting += parents.get(pid, [])
inodes = set()
for pid in mine:
    try:
        inodes |= {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        pass
listening = []
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            listening.append(words[1].split(":")[0])
ray.shutdown()
print(json.dumps(listening))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_of_ours_listens_on_the_loopback_interface_alone(tmp_path):
    need_ray()
    if not Path("/proc/net/tcp").exists():
        pytest.skip("no /proc/net/tcp to read the listening sockets from")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RAY_SOCKETS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    listening = json.loads(done.stdout.splitlines()[-1])
    assert listening
    assert set(listening) <= {
        "0100007F",
        "0000000000000000FFFF00000100007F",
        "00000000000000000000000001000000",
    }
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o077 == 0
