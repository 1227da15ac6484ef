"""Does a sweep survive being killed? Random SIGKILLs to workers and drivers, then a comparison with
an undisturbed sweep.

    python benchmarks/crash_safety.py --engine local --kills 100 --out results/crash_safety
    python benchmarks/crash_safety.py --engine ray --kills 100 --out results/crash_safety
    # one of three local Ray nodes killed mid-sweep
    python benchmarks/crash_safety.py --nodes --out results/crash_safety

The grid is 60 real trainings of about a second. Every kill hits, at a random moment, a worker or
the driver (only processes this script started); a dead driver is started again. When a sweep
finishes with kills left, another starts in an empty store. Counted: runs lost, runs duplicated
(finished under another name), records that differ from the undisturbed sweep's in more than timing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sheafdeq.records import read_record, without_timing

GRID = """
name = "toy"
seeds = {seeds}
[training]
max_epochs = {epochs}
[[tasks]]
name = "community"
level = 10
options = {{ nodes = 30, train_seeds = [1], test_seeds = [2], k = 3 }}
[[models]]
name = "sheafdeq"
options = [{{ shift = 1.2 }}, {{ shift = 1.3 }}]
[[models]]
name = "appnp"
options = [{{}}]
[[models]]
name = "ignn"
options = [{{}}]
"""


def command(grid: Path, store: Path, engine: str, jobs: int) -> list[str]:
    return [
        sys.executable, "-m", "sheafdeq", "sweep", "run", str(grid), "--out", str(store),
        "--engine", engine, "--jobs", str(jobs), "--checkpoint-seconds", "0.2",
    ]  # fmt: skip


def start(grid: Path, store: Path, engine: str, jobs: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words, quiet = command(grid, store, engine, jobs), subprocess.DEVNULL
    return subprocess.Popen(
        words, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
    )


# ---------------------------------------------------------------------- processes


def descendants(root: int) -> dict[int, str]:
    """Process id -> command line of everything below ``root``, read from /proc."""
    children: dict[int, list[int]] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "stat").read_text()
            parent = int(status.rsplit(")", 1)[1].split()[1])
            lines[int(entry.name)] = (
                (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found[child] = lines[child]
                waiting.append(child)
    return found


def workers_of(driver: int, store: Path) -> list[int]:
    """Processes below the driver that are computing a run at this moment (they hold its lock)."""
    holders = set()
    with contextlib.suppress(OSError):
        for path in (store / ".locks").iterdir():
            with contextlib.suppress(OSError, ValueError):
                holders.add(int(path.read_text()))
    return sorted(holders & set(descendants(driver)))


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def reap(processes: dict[int, str], patience: float = 15.0) -> int:
    """Wait for what a killed driver left behind; after that, kill it (only processes seen below our
    driver). Returns how many."""
    deadline = time.monotonic() + patience

    def alive() -> list[int]:
        left = []
        for pid, line in processes.items():
            with contextlib.suppress(OSError):
                now = (
                    Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
                if now and now.split(" ")[0] == line.split(" ")[0]:
                    left.append(pid)
        return left

    while alive() and time.monotonic() < deadline:
        time.sleep(0.2)
    left = alive()
    for pid in left:
        kill(pid)
    return len(left)


# ---------------------------------------------------------------------- the experiment


def contents(store: Path) -> dict[str, bytes]:
    """Finished runs of a store: id -> record without timing, as bytes."""
    found = {}
    for path in sorted(store.iterdir()):
        if not path.name.startswith("."):
            record = read_record(path)
            assert record.id == path.name
            found[record.id] = json.dumps(without_timing(record.payload()), sort_keys=True).encode()
    return found


def undisturbed(grid: Path, store: Path, jobs: int) -> dict[str, bytes]:
    process = start(grid, store, "local", jobs)
    if process.wait() != 0:
        raise SystemExit("the undisturbed sweep failed")
    return contents(store)


def disturbed_round(
    grid: Path,
    store: Path,
    engine: str,
    jobs: int,
    kills: dict[str, int],
    generator: random.Random,
    mean_wait: float,
    deadline: float,
) -> dict[str, int]:
    """One sweep with kills until it finishes, the kills are used up or time is; then it is left to
    finish."""
    counts = {"worker": 0, "driver": 0, "restarts": 0, "reaped": 0}
    driver = start(grid, store, engine, jobs)
    try:
        while sum(kills.values()) > 0 and driver.poll() is None and time.monotonic() < deadline:
            target = generator.choices(list(kills), weights=list(kills.values()))[0]
            # The clock starts when there is something to kill, so that every kill hits work in
            # progress.
            while driver.poll() is None and not workers_of(driver.pid, store):
                time.sleep(0.05)
            moment = time.monotonic() + generator.expovariate(1 / mean_wait)
            while driver.poll() is None and time.monotonic() < moment:
                time.sleep(0.02)
            if driver.poll() is not None:
                break
            if target == "driver":
                below = descendants(driver.pid)
                kill(driver.pid)
                driver.wait()
                counts["driver"] += 1
                kills["driver"] -= 1
                counts["reaped"] += reap(below)
                driver = start(grid, store, engine, jobs)
                counts["restarts"] += 1
                continue
            candidates = workers_of(driver.pid, store)
            if candidates and kill(generator.choice(candidates)):
                counts["worker"] += 1
                kills["worker"] -= 1
        if driver.wait() != 0:
            raise SystemExit(f"the sweep in {store} ended with code {driver.returncode}")
    finally:
        if driver.poll() is None:
            below = descendants(driver.pid)
            kill(driver.pid)
            driver.wait()
            reap(below)
    return counts


def compare(expected: dict[str, bytes], found: dict[str, bytes]) -> dict[str, int]:
    return {
        "runs": len(found),
        "lost": len(set(expected) - set(found)),
        "duplicated": len(set(found) - set(expected)),
        "differing": sum(found[key] != expected[key] for key in set(found) & set(expected)),
    }


def crash(
    engine: str,
    kills: int,
    jobs: int,
    seeds: int,
    epochs: int,
    seed: int,
    mean_wait: float,
    folder: Path,
    minutes: float = math.inf,
) -> dict[str, object]:
    """The whole experiment for one engine."""
    grid = folder / "toy.toml"
    grid.write_text(GRID.format(seeds=list(range(42, 42 + seeds)), epochs=epochs))
    began = time.monotonic()
    expected = undisturbed(grid, folder / "undisturbed", jobs)
    clean = time.monotonic() - began
    generator = random.Random(seed)
    left = {"worker": kills - kills // 2, "driver": kills // 2}
    rounds: list[dict[str, int]] = []
    deadline = time.monotonic() + 60 * minutes
    while sum(left.values()) > 0 and time.monotonic() < deadline:
        store = folder / f"disturbed-{len(rounds)}"
        counts = disturbed_round(grid, store, engine, jobs, left, generator, mean_wait, deadline)
        rounds.append({**counts, **compare(expected, contents(store))})
        print(f"round {len(rounds)}: {rounds[-1]}, kills left {sum(left.values())}", flush=True)
    total = {key: sum(entry[key] for entry in rounds) for key in rounds[0]}
    return {
        "experiment": "random SIGKILLs",
        "engine": engine,
        "grid": len(expected),
        "jobs": jobs,
        "seed": seed,
        "kills_asked_for": kills,
        "kills": total["worker"] + total["driver"],
        "rounds": len(rounds),
        **total,
        "seconds_undisturbed": round(clean, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def lose_a_node(jobs: int, seeds: int, epochs: int, folder: Path) -> dict[str, object]:
    """Head without CPUs and two worker nodes with one each, on this machine; one worker node is
    killed mid-sweep."""
    os.environ["RAY_AUTH_MODE"] = "token"
    # ray.init makes one by itself, a cluster of nodes does not
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["OMP_NUM_THREADS"] = "1"
    import ray
    from ray.cluster_utils import Cluster

    from sheafdeq.training.engines.ray import run_ray
    from sheafdeq.training.store import RunStore
    from sheafdeq.training.sweep import Sweep

    grid = folder / "toy.toml"
    grid.write_text(GRID.format(seeds=list(range(42, 42 + seeds)), epochs=epochs))
    expected = undisturbed(grid, folder / "undisturbed", jobs)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    doomed = cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    store = RunStore(folder / "nodes")
    sweep = Sweep.load(str(grid))
    entries = sweep.plan(store)
    killed = []

    def tell(line: str) -> None:
        if not killed and int(line.split("/")[0]) >= len(entries) // 3:
            killed.append(int(line.split("/")[0]))
            cluster.remove_node(doomed, allow_graceful=False)

    try:
        run_ray(entries, store, jobs=2, checkpoint_seconds=0.2, tell=tell)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {
        "experiment": "one of three local Ray nodes killed",
        "engine": "ray",
        "grid": len(expected),
        "killed_after_runs": killed[0] if killed else None,
        **compare(expected, contents(folder / "nodes")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--nodes", action="store_true", help="kill one of three local Ray nodes instead"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--seeds", type=int, default=15, help="seeds of four configurations: 15 make 60 runs"
    )
    parser.add_argument("--epochs", type=int, default=60, help="length of a run")
    parser.add_argument(
        "--mean-wait", type=float, default=1.0, help="mean seconds between two kills"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no more kills after so many minutes"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="DIR", help="write the outcome as JSON into this folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        if options.nodes:
            outcome = lose_a_node(options.jobs, options.seeds, options.epochs, folder)
        else:
            sizes = (options.jobs, options.seeds, options.epochs)
            outcome = crash(
                options.engine,
                options.kills,
                *sizes,
                options.seed,
                options.mean_wait,
                folder,
                options.minutes,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(outcome, indent=1)
    print(text)
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        name = "nodes" if options.nodes else f"{options.engine}-seed{options.seed}"
        (Path(options.out) / f"{name}.json").write_text(text + "\n")
    return 0 if outcome["lost"] == outcome["duplicated"] == outcome["differing"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
