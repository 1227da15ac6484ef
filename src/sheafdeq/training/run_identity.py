"""What a run is named by: its configuration, the digest of its data, the code behind it."""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_type_hints

import torch

from sheafdeq.data import Task, load_task
from sheafdeq.data.custom import own_task
from sheafdeq.data.own_files import file_digest
from sheafdeq.errors import InputError, OptionError, RecordError, UsageError
from sheafdeq.identity import SCHEME, CodeIdentity, code_identity, model_roles
from sheafdeq.options import SEED, check_options, option_types
from sheafdeq.records import digest_of, read_sealed
from sheafdeq.registry import ModelSpec, Shape, build_model, model_spec
from sheafdeq.training.checkpoint import CHECKPOINT_FACTS, load_checkpoint
from sheafdeq.training.config import OWN, NamedFile, TaskConfig, TrainingConfig, file_name
from sheafdeq.training.loop import Trainer
from sheafdeq.training.store import RunStore
from sheafdeq.training.version import code_version

__all__ = [
    "CHECKPOINT_DIGEST",
    "Identity",
    "by_content",
    "code_of",
    "configured_task",
    "file_digests",
    "identify",
    "start_of",
    "task_of",
]


CHECKPOINT_DIGEST = "sha256:"
"""How a record names the checkpoint a run started from: by content, since a path says nothing on
another machine."""


@dataclass(frozen=True)
class Identity:
    """What a run is named by. ``code_roles`` says which part of the code has which digest
    (:mod:`sheafdeq.identity`)."""

    id: str
    task_digest: str
    code_digest: str
    code_version: str
    code_roles: dict[str, str] = field(default_factory=dict)

    def code(self) -> dict[str, str]:
        """For the record: scheme, label, digest, and the digest of every role."""
        roles = {f"role:{role}": digest for role, digest in self.code_roles.items()}
        return {"scheme": SCHEME, "version": self.code_version, "digest": self.code_digest, **roles}


OWN_TYPES = option_types(
    get_type_hints(own_task),
    {"seed": None, "undirected": False, "metric": "accuracy", "classes": None},
    {"seed": SEED},
)
"""Options of a task of a user's own files."""


@lru_cache(maxsize=2)
def _cached_own_task(key: str, *digests: str) -> Task:
    """``digests`` stand for what is in the files now, so that a changed file is read again."""
    from sheafdeq.data.catalogue import task_names

    config = TaskConfig.model_validate_json(key)
    if config.name in task_names():
        raise OptionError(f"{config.name!r} is a task of the package: call your own data otherwise")
    if config.level is not None:
        raise OptionError("level is for community tasks, not for your own files")
    if isinstance(config.split, str):
        raise OptionError(f"the splits of your own files have numbers, got {config.split!r}")
    check_options(config.options, OWN_TYPES, "your own data")
    options: dict[str, Any] = dict(config.options)
    name = None if config.name == OWN else config.name
    try:
        files = {kind: str(place) for kind, place in (config.files or {}).items()}
        return own_task(files, name=name, split=config.split or 0, **options)
    except OptionError:
        raise
    except InputError as error:  # a mask, a seed or an option the files do not go with
        raise OptionError(f"{config.title}: {error}") from error


@lru_cache(maxsize=2)
def _cached_task(key: str, download: bool) -> Task:
    config = TaskConfig.model_validate_json(key)
    options: dict[str, Any] = dict(config.options)
    for name, instead in (
        ("download", "--download, or train(..., download=True)"),
        ("root", "the variable SHEAFDEQ_DATA"),
    ):
        if name in options:
            raise OptionError(
                f"task {config.name!r}: {name!r} is not for a configuration to "
                f"decide; use {instead}"
            )
    for name in ("level", "split"):
        if getattr(config, name) is not None:
            options[name] = getattr(config, name)
    return load_task(config.name, download=download, **options)


# graphs may own native memory that must go before the interpreter does
atexit.register(_cached_task.cache_clear)
atexit.register(_cached_own_task.cache_clear)


def task_of(config: TrainingConfig, *, download: bool = False) -> Task:
    """The task of a configuration; the last two are kept in memory for sweeps. Missing files are
    fetched only on ``download``. A user's own files must be given where a record names them."""
    return configured_task(config.task, download=download)


def configured_task(task: TaskConfig, *, download: bool = False) -> Task:
    """As :func:`task_of`, of the task's part of a configuration."""
    if task.files is None:
        return _cached_task(task.model_dump_json(), download)
    if task.missing_files:
        raise UsageError(needed_files(task))
    return _cached_own_task(task.model_dump_json(), *file_digests(task).values())


def needed_files(task: TaskConfig) -> str:
    """Which files of its user a run needs, and how to give them."""
    words = " and ".join(
        f"{file.name} (SHA-256 {file.sha256[:12]}...)" for file in task.missing_files.values()
    )
    flags = " ".join(f"--{kind} FILE" for kind in task.missing_files)
    return f"the run was trained on files of its user's, {words}: give them by {flags}"


def file_digests(task: TaskConfig) -> dict[str, str]:
    """SHA-256 of the files of a task by kind: of what is in them now, or as its record says."""
    return {
        kind: file.sha256 if isinstance(file, NamedFile) else file_digest(file)
        for kind, file in sorted((task.files or {}).items())
    }


def by_content(config: TrainingConfig, digests: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The payload of a configuration with its files named by content, as a record keeps it.

    ``digests``: of what was read, where that is known; else of what is in the files now.
    """
    payload = config.payload()
    if config.task.files is not None:
        digests = digests or file_digests(config.task)
        payload["task"]["files"] = {
            kind: {"name": file_name(file), "sha256": digests[kind]}
            for kind, file in sorted(config.task.files.items())
        }
    return payload


_roles: dict[tuple[str, str], tuple[ModelSpec, dict[str, list[Any]]]] = {}


def code_of(config: TrainingConfig) -> CodeIdentity:
    """The code behind a configuration: its model with solver and gradient rule, its task, the
    training loop."""
    from sheafdeq.data.catalogue import entries

    spec = model_spec(config.model.name)
    key = (config.model.name, json.dumps(config.model.options, sort_keys=True))
    if key not in _roles or _roles[key][0] is not spec:
        with torch.random.fork_rng(devices=[]):
            model = build_model(
                config.model.name, Shape(2, 2, None, 2, 2, 2), **config.model.options
            )
        _roles[key] = (spec, model_roles(model, spec.build))
    # What a builder is given (addresses, checksums) shows in the digest of the data it makes.
    builders: list[Any] = [entry.build for entry in entries() if entry.name == config.task.name]
    if config.task.files is not None:
        builders = [own_task]
    data = [build.func if isinstance(build, partial) else build for build in builders]
    return code_identity({**_roles[key][1], "data": data, "training": [Trainer]})


def identify(
    config: TrainingConfig,
    task_digest: str | None = None,
    code: CodeIdentity | None = None,
    *,
    store: RunStore | None = None,
) -> Identity:
    """The identity of a run.

    ``task_digest`` saves loading the task when it is known, ``code`` reading the sources again;
    ``store`` is where ``init_from`` is looked up when it is not a path.
    """
    task_digest = task_digest if task_digest is not None else task_of(config).digest
    code = code if code is not None else code_of(config)
    version = code_version(code.digest)
    payload = config.payload()
    # The digest of the task holds those of its files; where they lie and what they are called says
    # nothing.
    payload["task"].pop("files", None)
    # The options are named in full, so that a changed default is another run.
    payload["model"]["options"] = {
        **model_spec(config.model.name).options,
        **payload["model"]["options"],
    }
    if config.init_from is not None:
        payload["init_from"] = load_checkpoint(start_of(config.init_from, store))[1]["tensors"]
    named = {"scheme": SCHEME, "config": payload, "task": task_digest, "code": version}
    return Identity(digest_of(named), task_digest, code.digest, version, dict(code.roles))


def start_of(init_from: str, store: RunStore | None) -> Path:
    """Where the checkpoint named by ``init_from`` is: a path, a run of the store, or the digest a
    record gives for it."""
    path = Path(init_from)
    if path.exists():
        return path
    if store is not None and init_from.startswith(CHECKPOINT_DIGEST):
        for folder in sorted(store.root.iterdir()) if store.root.is_dir() else ():
            if (
                store.finished(folder.name)
                and read_sealed(folder / CHECKPOINT_FACTS).get("tensors")
                == init_from[len(CHECKPOINT_DIGEST) :]
            ):
                return folder
    elif store is not None and init_from and set(init_from) <= set("0123456789abcdef"):
        return store.resolve(init_from)
    raise RecordError(
        f"init_from {init_from!r} is neither a run directory, a checkpoint, nor a run of this store"
    )
