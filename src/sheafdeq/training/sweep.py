"""A grid of runs over a run store: what is in it, what is done, what is left.

What a sweep file says: :mod:`sheafdeq.training.sweep_file`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sheafdeq.data import own_task
from sheafdeq.errors import (
    InputError,
    OptionError,
    RecordError,
    SheafDEQError,
    StoreError,
    UsageError,
)
from sheafdeq.identity import CodeIdentity, code_identity
from sheafdeq.options import suggestion
from sheafdeq.records import RunRecord, digest_of, read_sealed, write_sealed
from sheafdeq.registry import model_spec
from sheafdeq.regular_file import read_toml
from sheafdeq.training.config import (
    OWN,
    TaskConfig,
    TrainingConfig,
    describe,
)
from sheafdeq.training.recipe import with_recipe
from sheafdeq.training.run_identity import Identity, code_of, file_digests, identify, task_of
from sheafdeq.training.store import LOCKS_VARIABLE, RunStore, locks_wanted
from sheafdeq.training.sweep_file import Group, SweepFile, tasks_placed

__all__ = ["Budget", "Entry", "Manner", "Sweep", "answered", "preset_names", "question"]


TIMED = 5
"""Finished runs of each task and model that the estimate of the time left rests on."""


@dataclass(frozen=True)
class Entry:
    """One planned run. Without an identity its task could not be loaded, and ``error`` says why."""

    config: TrainingConfig
    identity: Identity | None
    error: str | None = None
    group: str = ""  # title of the part of the sweep it belongs to
    # id of a record of the same configuration, whatever the code version
    recorded: str | None = None


@dataclass(frozen=True)
class Budget:
    """What one invocation may spend: epochs over all runs, or seconds."""

    epochs: int | None = None
    seconds: float | None = None

    @staticmethod
    def parse(text: str | None) -> Budget:
        """``500`` or ``500epochs``; ``2h``, ``90m``, ``30s``."""
        if text is None:
            return Budget()
        units = {"h": 3600.0, "hours": 3600.0, "m": 60.0, "s": 1.0}
        number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text.strip()[len(number) :].strip()
        try:
            if unit in ("", "e", "epochs"):
                return Budget(epochs=_positive(int(number)))
            return Budget(seconds=_positive(float(number) * units[unit]))
        except (ValueError, KeyError) as error:
            raise UsageError(
                f"budget {text!r} is neither epochs (500) nor time (2h, 90m, 30s)"
            ) from error


@dataclass(frozen=True)
class Manner:
    """How a plan is carried out: by how many at a time, at what cost, telling whom."""

    jobs: int = 1
    budget: Budget = Budget()
    checkpoint_seconds: float = 30.0
    tell: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        """Raise unless so many workers can share a store."""
        if self.jobs < 1:
            raise InputError(f"jobs must be at least 1, got {self.jobs}")
        if self.jobs > 1 and not locks_wanted():
            raise UsageError(
                f"{LOCKS_VARIABLE}=off: nothing keeps {self.jobs} workers from one run; use "
                "--jobs 1 and --shard I/N"
            )


def _positive(value: Any) -> Any:
    if not value > 0:
        raise ValueError(value)
    return value


def preset_names() -> list[str]:
    """Presets that ship with the package."""
    folder = resources.files("sheafdeq.training") / "presets"
    return sorted(
        path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml")
    )


class Sweep:
    """A sweep file with its runs."""

    def __init__(
        self,
        file: SweepFile,
        overrides: dict[str, Any] | None = None,
        *,
        model_options: dict[str, Any] | None = None,
        task_options: dict[str, Any] | None = None,
        task_fields: dict[str, Any] | None = None,
    ) -> None:
        self.file = file
        self.name = file.name
        self.task_fields = task_fields or {}
        self.overrides = overrides or {}
        self.model_options, self.task_options = model_options or {}, task_options or {}

    @staticmethod
    def load(
        preset: str | Path, overrides: dict[str, Any] | None = None, **options: dict[str, Any]
    ) -> Sweep:
        """A preset by name, or a TOML file; ``overrides`` replace training fields of every run,
        ``model_options`` and ``task_options`` options of its model and task, ``task_fields`` the
        task's split, or with ``files`` the tasks themselves."""
        text = str(preset)
        if text in preset_names():
            with resources.as_file(
                resources.files("sheafdeq.training") / "presets" / f"{text}.toml"
            ) as path:
                values = read_toml(path)
        elif text.endswith(".toml"):
            values = tasks_placed(read_toml(Path(text)), Path(text).parent)
        else:
            raise UsageError(
                f"there is no preset {text!r}{suggestion(text, preset_names())}; presets are "
                f"{', '.join(preset_names())}, or give a .toml file"
            )
        try:
            return Sweep(SweepFile.model_validate(values), overrides, **options)
        except ValidationError as error:
            raise OptionError(f"{text}: {describe(error)}") from error

    def configs(self) -> list[TrainingConfig]:
        """All runs: group by group, in each by seed, task, model."""
        return [config for _, config in self.runs()]

    def runs(self) -> list[tuple[str, TrainingConfig]]:
        """All runs with the title of the group that asks for them first."""
        found: dict[str, tuple[str, TrainingConfig]] = {}
        # groups may ask for one run twice, and so may a grid whose options are all set to one
        once = self.file.groups or self.model_options or self.task_options or self.task_fields
        for group in self.file.parts:
            for config in self.configs_of(group):
                key = digest_of(config.payload()) if once else str(len(found))
                found.setdefault(key, (group.title, config))
        return list(found.values())

    def configs_of(self, group: Group) -> Iterator[TrainingConfig]:
        """What one group asks for: by seed, task, model."""
        excluded = {(pair.model, pair.task) for pair in group.exclude}
        tasks = [task for grid in group.tasks for task in grid.tasks]
        if "files" in self.task_fields:  # the models and seeds of the sweep on one's own graph
            tasks = [TaskConfig(**{"name": OWN, **self.task_fields})]
        elif self.task_fields:
            tasks = [task.model_copy(update=self.task_fields) for task in tasks]
        for seed, task, grid in product(group.seeds, tasks, group.models):
            if (grid.name, task.name) in excluded:
                continue
            for option in grid.option_sets:
                values = {
                    **group.training,
                    "task": task.model_copy(
                        update={"options": {**task.options, **self.task_options}}
                    ).model_dump(),
                    "model": {"name": grid.name, "options": {**option, **self.model_options}},
                    "seed": seed,
                    **self.overrides,
                }
                if grid.recipe:
                    values = with_recipe(grid.recipe, values)
                yield TrainingConfig.parse(values, f"sweep {self.name}")

    def plan(
        self,
        store: RunStore,
        shard: tuple[int, int] = (1, 1),
        recorded: Iterable[RunRecord] = (),
        *,
        download: bool = False,
    ) -> list[Entry]:
        """The runs of one shard (i of n, counted from 1) with their identities.

        ``recorded`` are records from anywhere: a run of the same configuration on the same data
        counts as done, whichever version of the sources made it. ``download`` allows fetching
        missing data.
        """
        known = {answered(record): record for record in recorded}
        return [_with_record(entry, known) for entry in self._plan(store, shard, download)]

    def _plan(self, store: RunStore, shard: tuple[int, int], download: bool) -> list[Entry]:
        index, count = shard
        digests: dict[str, str | Exception] = {}
        codes: dict[str, CodeIdentity] = {}
        entries = []
        for group, config in self.runs()[index - 1 :: count]:
            key = config.task.model_dump_json()
            if key not in digests:
                try:
                    digests[key] = _task_digest(config, store, download)
                except SheafDEQError as error:  # missing data files fail their runs, not the sweep
                    digests[key] = error
            digest = digests[key]
            if isinstance(digest, Exception):
                entries.append(Entry(config, None, str(digest), group))
                continue
            try:
                kind = f"{config.task.name} {config.model.model_dump_json()}"
                codes[kind] = codes.get(kind) or code_of(config)
                entries.append(
                    Entry(config, identify(config, digest, codes[kind], store=store), group=group)
                )
            except SheafDEQError as error:
                entries.append(Entry(config, None, str(error), group))
        return entries

    def status(self, store: RunStore, entries: Iterable[Entry] | None = None) -> dict[str, Any]:
        """Counts (done, running, failed, left, total), failures, and the time left at the present
        pace."""
        entries = list(entries) if entries is not None else self.plan(store)
        counts = {"done": 0, "running": 0, "failed": 0, "left": 0, "total": len(entries)}
        done: dict[tuple[str, str], list[str]] = {}
        waiting: list[tuple[str, str]] = []
        failures, missing = [], []
        groups: dict[str, dict[str, int]] = {}
        for entry in entries:
            kind = (entry.config.task.name, entry.config.model.name)
            state, error = _state(store, entry)
            counts[state] += 1
            part = groups.setdefault(entry.group, dict.fromkeys(counts, 0))
            part[state] += 1
            part["total"] += 1
            if state != "done":
                missing.append({"run": entry.config.title, "state": state, "group": entry.group})
            if entry.recorded is not None:
                continue  # made elsewhere: its time says nothing about this machine
            if state == "done":
                assert entry.identity is not None
                done.setdefault(kind, []).append(entry.identity.id)
            elif state == "failed":
                failures.append(
                    {
                        "run": entry.config.title,
                        "id": entry.identity.id if entry.identity else None,
                        "error": error,
                    }
                )
            else:
                waiting.append(kind)
        return {
            "sweep": self.name,
            **counts,
            "seconds_left": _time_left(
                _wall_seconds(store, done, waiting), waiting, max(1, counts["running"])
            ),
            "failures": failures,
            "missing": missing,
            "groups": [{"title": title, **part} for title, part in groups.items()]
            if self.file.groups
            else [],
        }


def question(config: TrainingConfig, options: Mapping[str, Any] | None = None) -> str:
    """A configuration with every option of its model written out: what a run answers, whatever the
    sources. How often it was scored changes no answer.

    ``options``: what stands for options the configuration does not name, before today's defaults.
    """
    payload = config.payload()
    payload.pop("score_every", None)
    if config.task.files is not None:
        payload["task"]["files"] = file_digests(config.task)
    payload["model"]["options"] = {
        **model_spec(config.model.name).options,
        **(options or {}),
        **payload["model"]["options"],
    }
    return digest_of(payload)


def answered(record: RunRecord) -> str:
    """The question a record answers: options younger than it have the value they had without
    knowing, which need not be today's default."""
    config = TrainingConfig.of_record(record.config, record.id)
    taken = model_spec(config.model.name).options
    return question(config, {key: value for key, value in record.options.items() if key in taken})


def _with_record(entry: Entry, known: Mapping[str, RunRecord]) -> Entry:
    record = known.get(question(entry.config)) if known else None
    if record is None or (
        entry.identity is not None and entry.identity.task_digest != record.task.digest
    ):
        return entry
    return replace(entry, recorded=record.id)


def _state(store: RunStore, entry: Entry) -> tuple[str, str | None]:
    if entry.recorded is not None:
        return "done", None
    if entry.identity is None:
        return "failed", entry.error
    if store.finished(entry.identity.id):
        return "done", None
    if store.running(entry.identity.id):
        return "running", None
    failure = store.failure(entry.identity.id)
    return ("failed", failure["error"]) if failure else ("left", None)


def _wall_seconds(
    store: RunStore, done: dict[tuple[str, str], list[str]], waiting: list[tuple[str, str]]
) -> dict[tuple[str, str], list[float]]:
    """Wall time of finished runs by task and model, as far as the waiting ones need it: a few
    records of each kind.

    Reading the records of thousands of runs would take longer than the answer is worth.
    """
    wanted = (
        set(waiting) & set(done) if set(waiting) <= set(done) else set(done) if waiting else set()
    )
    found: dict[tuple[str, str], list[float]] = {}
    for kind in wanted:
        for run_id in done[kind][-TIMED:]:
            # damaged: tables will say so
            with contextlib.suppress(RecordError, KeyError, TypeError, ValueError):
                found.setdefault(kind, []).append(
                    float(store.record(run_id).timing["wall_seconds"])
                )
    return found


def _time_left(
    seconds: dict[tuple[str, str], list[float]], waiting: list[tuple[str, str]], workers: int
) -> float | None:
    """Mean wall time of finished runs of the same task and model (of all kinds where there is
    none), over the workers."""
    everything = [value for values in seconds.values() for value in values]
    if not waiting:
        return 0.0
    if not everything:
        return None
    overall = sum(everything) / len(everything)
    total = sum(
        sum(seconds[kind]) / len(seconds[kind]) if kind in seconds else overall for kind in waiting
    )
    return round(total / workers, 1)


def _task_digest(config: TrainingConfig, store: RunStore, download: bool) -> str:
    """Digest of a task, remembered in the store so that status need not generate the data again."""
    from sheafdeq.data.catalogue import entries

    builders: list[Any] = [entry.build for entry in entries() if entry.name == config.task.name]
    named = config.payload()["task"]
    if config.task.files is not None:
        builders, named["files"] = [own_task], file_digests(config.task)
    code = code_identity({"data": builders}).digest
    key = digest_of({"task": named, "code": code})
    path = store.root / ".tasks" / f"{key}.json"
    if path.is_file() and not download:
        with contextlib.suppress(RecordError):  # a damaged note is made again
            return str(read_sealed(path))
    digest = task_of(config, download=download).digest
    # only a note: a store that is read-only can still be looked at
    with contextlib.suppress(StoreError), store.guarded():
        write_sealed(store.folder(path.parent.name) / path.name, digest)
    return digest


def parse_shard(text: str | None) -> tuple[int, int]:
    """``i/n`` with 1 <= i <= n."""
    if text is None:
        return 1, 1
    try:
        index, count = (int(part) for part in text.split("/"))
    except ValueError as error:
        raise UsageError(f"shard must be i/n such as 1/4, got {text!r}") from error
    if not 1 <= index <= count:
        raise UsageError(f"shard i/n needs 1 <= i <= n, got {text!r}")
    return index, count


def deadline_of(budget: Budget) -> float | None:
    """The moment at which a time budget ends, on the clock that is never set (``time.monotonic``).

    Processes of one machine share that clock; other machines do not.
    """
    return time.monotonic() + budget.seconds if budget.seconds is not None else None
