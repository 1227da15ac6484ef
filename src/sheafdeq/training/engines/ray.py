"""The engine for many machines: Ray core tasks over the same run store.

Ray promises that a task runs at least once; the store makes that exactly once. The store must be a folder all machines see. Each
run is one task with ``max_retries=-1``, so a killed worker or a lost node only means that its runs start again elsewhere, from
their last saved state.

Precautions: the cluster this engine starts listens with a token, without dashboard and usage statistics; ``OMP_NUM_THREADS`` is
fixed for the workers (Ray would set it from ``num_cpus``), because the thread count is part of a run's identity.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sheafdeq.errors import InputError, UsageError
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.engines.worker import Limits, attempt
from sheafdeq.training.run import Identity
from sheafdeq.training.store import RunStore
from sheafdeq.training.sweep import Budget, Entry, deadline_of
from sheafdeq.training.version import CODE_VERSION_VARIABLE

__all__ = ["run_ray"]


def run_ray(
    entries: list[Entry],
    store: RunStore,
    *,
    jobs: int = 1,
    budget: Budget | None = None,
    checkpoint_seconds: float = 30.0,
    tell: Callable[[str], None] = lambda line: None,
    address: str | None = None,
) -> None:
    """Carry out the plan on a Ray cluster: the one at ``address``, or one started here with ``jobs`` CPUs."""
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    ray = _import_ray()
    budget = budget or Budget()
    invocation = uuid.uuid4().hex
    plans = store.root.resolve() / ".plans"
    plans.mkdir(parents=True, exist_ok=True)
    counter = plans / f"{invocation}.epochs"
    settings = {
        "store": str(store.root.resolve()),
        "invocation": invocation,
        "budget_epochs": budget.epochs,
        "deadline": deadline_of(budget),
        "counter": str(counter),
        "checkpoint_seconds": checkpoint_seconds,
    }
    started = not ray.is_initialized()
    if started:
        _start(ray, jobs, address)
    try:
        # One run a CPU; a run that comes back busy is held by a process that is still dying, and is tried again.
        task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_run_one)
        waiting = [entry for entry in entries if entry.identity is not None and not store.finished(entry.identity.id)]
        futures = {task.remote(entry.config.payload(), vars(entry.identity), settings): entry for entry in waiting}
        total, finished = len(entries), len(entries) - len(waiting)
        tell(f"{finished}/{total} runs finished or failed")
        while futures:
            ready, _ = ray.wait(list(futures), num_returns=1)
            for future in ready:
                entry = futures.pop(future)
                outcome = ray.get(future)
                if outcome == "busy":
                    time.sleep(0.2)
                    futures[task.remote(entry.config.payload(), vars(entry.identity), settings)] = entry
                elif outcome != "suspended":
                    finished += 1
                    tell(f"{finished}/{total} runs finished or failed")
    finally:
        counter.unlink(missing_ok=True)
        if started:
            ray.shutdown()


def _run_one(config: dict[str, Any], identity: dict[str, Any], settings: dict[str, Any]) -> str:
    """The Ray task: one attempt at one run."""
    budget = Budget(settings["budget_epochs"])
    limits = Limits(budget, settings["deadline"], Path(settings["counter"]) if budget.epochs else None, None)
    if limits.reason() is not None:
        return "suspended"
    entry = Entry(TrainingConfig.parse(config), Identity(**identity))
    store = RunStore(settings["store"])
    return attempt(entry, store, settings["invocation"], limits, "ray", settings["checkpoint_seconds"])


def _import_ray() -> Any:
    # Ray's core reads its settings once, when it is imported: a later switch would start a cluster that refuses its own driver.
    too_late = "ray" in sys.modules and "RAY_AUTH_MODE" not in os.environ
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray: install sheafdeq[ray], or use --engine local") from error
    if too_late and not ray.is_initialized():
        del os.environ["RAY_AUTH_MODE"]
        raise UsageError(
            "ray was imported before RAY_AUTH_MODE was set, so it cannot start a cluster with a token: "
            "set RAY_AUTH_MODE=token before importing ray, or call ray.init() yourself first"
        )
    return ray


def _start(ray: Any, jobs: int, address: str | None) -> None:
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if CODE_VERSION_VARIABLE in os.environ:
        variables[CODE_VERSION_VARIABLE] = os.environ[CODE_VERSION_VARIABLE]
    options: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        ray.init(address=address, **options)
    else:
        ray.init(num_cpus=jobs, include_dashboard=False, **options)
