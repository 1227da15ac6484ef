"""The engine for many machines: Ray core tasks over the same run store.

Ray promises that a task runs at least once; the store makes that exactly once. The store must be a
folder all machines see. Each run is one task with ``max_retries=-1``, so a killed worker or a lost
node only means that its runs start again elsewhere, from their last saved state.

Precautions: the cluster this engine starts listens on the loopback interface alone, with a token in
a file only its owner reads
(0600), without dashboard and usage statistics. To let other machines join, start a cluster yourself
and give ``--ray-address``, or set ``RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1``, Ray's own switch for
listening on all interfaces. ``OMP_NUM_THREADS`` is fixed for the workers (Ray would set it from
``num_cpus``), because the thread count is part of a run's identity. Machines do not share a clock,
so the driver ends a time budget for all of them.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sheafdeq.errors import StoreError, UsageError
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.engines.job_process import RunLimits, attempt
from sheafdeq.training.engines.local import planned, unfinished
from sheafdeq.training.run_identity import Identity
from sheafdeq.training.store import LOCKS_VARIABLE, RunStore
from sheafdeq.training.sweep import Budget, Entry, Manner, deadline_of
from sheafdeq.training.version import CODE_VERSION_VARIABLE
from sheafdeq.user_models import VARIABLE as MODELS_VARIABLE

__all__ = ["run_ray"]

LISTEN_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch between the loopback interface (0, its own choice on Windows and macOS) and all
interfaces (1)."""

STORE_FAILED = "store: "


def run_ray(
    entries: list[Entry],
    store: RunStore,
    manner: Manner | None = None,
    address: str | None = None,
) -> None:
    """Carry out the plan on a Ray cluster: the one at ``address``, or one started here with a CPU
    for each job."""
    manner = manner or Manner()
    ray = _import_ray()
    with planned(RunStore(store.root.resolve())) as (invocation, plan, counter):
        stop = plan.with_suffix(".stop")
        settings = {
            "store": str(store.root.resolve()),
            "invocation": invocation,
            "budget_epochs": manner.budget.epochs,
            "stop": str(stop),
            "counter": str(counter),
            "checkpoint_seconds": manner.checkpoint_seconds,
        }
        started = not ray.is_initialized()
        if started:
            _start(ray, manner.jobs, address)
        try:
            _carry_out(ray, entries, store, settings, deadline_of(manner.budget), stop, manner.tell)
        finally:
            if started:
                ray.shutdown()


def _carry_out(
    ray: Any,
    entries: list[Entry],
    store: RunStore,
    settings: dict[str, Any],
    deadline: float | None,
    stop: Path,
    tell: Callable[[str], None],
) -> None:
    # One run a CPU; a run that comes back busy is held by a process that is still dying, and is
    # tried again.
    task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_run_one)
    waiting = list(unfinished(entries, store).values())
    futures = {
        task.remote(entry.config.payload(), vars(entry.identity), settings): entry
        for entry in waiting
    }
    total, finished = len(entries), len(entries) - len(waiting)
    tell(f"{finished}/{total} runs finished or failed")
    while futures:
        left = None if deadline is None or stop.exists() else max(0.0, deadline - time.monotonic())
        ready, _ = ray.wait(list(futures), num_returns=1, timeout=left)
        if not ready:
            with store.guarded():
                stop.touch()
        for future in ready:
            entry = futures.pop(future)
            outcome = ray.get(future)
            if outcome == "busy":
                time.sleep(0.2)
                futures[task.remote(entry.config.payload(), vars(entry.identity), settings)] = entry
            elif outcome.startswith(STORE_FAILED):
                raise StoreError(outcome[len(STORE_FAILED) :])
            elif outcome != "suspended":
                finished += 1
                tell(f"{finished}/{total} runs finished or failed")


def _run_one(config: dict[str, Any], identity: dict[str, Any], settings: dict[str, Any]) -> str:
    """The Ray task: one attempt at one run."""
    budget = Budget(settings["budget_epochs"])
    try:
        counter = Path(settings["counter"]) if budget.epochs else None
        limits = RunLimits(budget, None, counter, None, stop=Path(settings["stop"]))
        if limits.reason() is not None:
            return "suspended"
        entry = Entry(TrainingConfig.parse(config), Identity(**identity))
        store = RunStore(settings["store"])
        return attempt(
            entry, store, settings["invocation"], limits, "ray", settings["checkpoint_seconds"]
        )
    except StoreError as error:  # sent as text: another machine may not know the class
        return f"{STORE_FAILED}{error}"


def _import_ray() -> Any:
    # Ray's core reads its settings once, when it is imported: a later switch would start a cluster
    # that refuses its own driver, or one that listens everywhere.
    too_late = "ray" in sys.modules and not {"RAY_AUTH_MODE", LISTEN_VARIABLE} <= set(os.environ)
    made = [name for name in ("RAY_AUTH_MODE", LISTEN_VARIABLE) if name not in os.environ]
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault(LISTEN_VARIABLE, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "--engine ray needs Ray: install sheafdeq[ray], or use --engine local"
        ) from error
    if too_late and not ray.is_initialized():
        for name in made:
            del os.environ[name]
        raise UsageError(
            f"ray was imported before RAY_AUTH_MODE and {LISTEN_VARIABLE} were set, so it cannot "
            "start a cluster with a token "
            f"on the loopback interface: set RAY_AUTH_MODE=token and {LISTEN_VARIABLE}=0 before "
            "importing ray, or call "
            "ray.init() yourself first"
        )
    return ray


def _start(ray: Any, jobs: int, address: str | None) -> None:
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for name in (CODE_VERSION_VARIABLE, LOCKS_VARIABLE, MODELS_VARIABLE, "PYTHONPATH"):
        if name in os.environ:
            variables[name] = os.environ[name]
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": variables},
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if address is not None:
        ray.init(address=address, **options)
        return
    _private_token()
    ray.init(num_cpus=jobs, include_dashboard=False, **options)
    where = ray.util.get_node_ip_address()
    if os.environ[LISTEN_VARIABLE] == "0" and not ipaddress.ip_address(where).is_loopback:
        ray.shutdown()
        raise UsageError(
            f"this version of Ray ({ray.__version__}) listens on {where} instead of the loopback "
            "interface: "
            "start a cluster yourself and give --ray-address, or use --engine local"
        )


def _private_token() -> None:
    """Make the token Ray would make, but readable by its owner alone; one that is there already is
    closed to others."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600
        )
    except FileExistsError:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077:
            path.chmod(0o600)
        return
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secrets.token_hex(32))
