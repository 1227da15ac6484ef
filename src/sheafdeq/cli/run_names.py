"""Runs by name: a directory, the beginning of an id, or the readable name ``sheafdeq runs`` prints.

A beginning is looked for in ``results/runs`` and ``runs``, below the folder the command runs in;
``STORE/05fb`` looks in the folder ``STORE``. It must fit one run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sheafdeq.errors import UsageError

__all__ = ["STORES", "add_runs", "resolve_runs", "run_name", "runs_matching", "shortest"]

STORES = ("results/runs", "runs")
"""Where runs are looked for by the beginning of their id."""
_BEGINNING = re.compile(r"[0-9a-f]{2,64}")
_READABLE = re.compile(r"(?:RUN|.+-seed\d+)-([0-9a-f]{8,64})")  # RUN-: as records write it
_LISTED = 6


def add_runs(
    parser: Any, dest: str, *, several: bool = False, other: str = "", help: str, **settings: Any
) -> None:
    """An argument RUN (or an option, by ``settings["flag"]``) that takes directories, beginnings of
    ids and names. ``other`` says what a word that is no run may mean instead."""
    flag = settings.pop("flag", None)
    if several:
        settings.setdefault("nargs", "+")
    names = (flag,) if flag else (dest,)
    if flag:
        settings["dest"] = dest
    settings.setdefault("metavar", "RUN")
    action = parser.add_argument(*names, help=help, **settings)
    action.completer = complete_run
    known = parser.get_default("run_arguments") or {}
    parser.set_defaults(run_arguments={**known, dest: bool(other)})


def resolve_runs(options: Any) -> None:
    """Put directories in the place of beginnings and names, wherever a command takes runs."""
    for dest, other in (getattr(options, "run_arguments", None) or {}).items():
        value = getattr(options, dest)
        find = run_or_other if other else run_directory
        if isinstance(value, list):
            setattr(options, dest, [",".join(map(find, word.split(","))) for word in value])
        elif value is not None:
            setattr(options, dest, find(value))


def run_directory(text: str) -> str:
    """A path that is there, or the directory of the one run the word names."""
    found = _resolved(text)
    if found is None:
        raise UsageError(
            f"{text[:200]}: neither a run directory nor a folder of runs, and no run in "
            f"{_places(text)} begins with it (see `sheafdeq runs`)"
        )
    return found


def run_or_other(text: str) -> str:
    """As :func:`run_directory`, where the word may also mean something else."""
    return _resolved(text) or text


def run_name(task: str, level: int | None, model: str, seed: int, run_id: str) -> str:
    """``community-7-sheafdeq-seed42-05fb0a6b``: fit for a file name, and taken where a run is."""
    from sheafdeq.training.store import safe_name

    middle = "" if level is None else f"-{level}"
    return safe_name(f"{task}{middle}-{model}-seed{seed}-{run_id[:8]}")


def runs_matching(beginning: str, stores: Sequence[str | os.PathLike[str]] = STORES) -> list[Path]:
    """Run directories whose id begins so, each id once."""
    from sheafdeq.records import RECORD_FILE

    found: dict[str, Path] = {}
    for store in map(Path, stores):
        for folder in sorted(store.iterdir()) if store.is_dir() else ():
            if folder.name.startswith(beginning) and (folder / RECORD_FILE).is_file():
                found.setdefault(folder.name, folder)
    return list(found.values())


def shortest(ids: Sequence[str], least: int = 8) -> int:
    """How many characters tell these ids apart."""
    for length in range(least, 64):
        if len({name[:length] for name in ids}) == len(set(ids)):
            return length
    return 64


def complete_run(prefix: str = "", **_: object) -> list[str]:
    """For the shell: beginnings of ids."""
    names = [folder.name for folder in runs_matching("")]
    length = shortest(names)
    return [name[:length] for name in names if name.startswith(prefix)]


def _resolved(text: str) -> str | None:
    try:
        if os.path.lexists(text):
            return text
    except ValueError as error:
        raise UsageError(f"{text[:80]!r} cannot be a path ({error})") from error
    parent, _, word = text.rpartition("/")
    readable = _READABLE.fullmatch(word)
    beginning = readable.group(1) if readable else word
    if not _BEGINNING.fullmatch(beginning):
        return None
    found = runs_matching(beginning, [parent] if parent else STORES)
    if len(found) > 1:
        length = shortest([folder.name for folder in found], len(beginning) + 1)
        names = ", ".join(folder.name[:length] for folder in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise UsageError(
            f"{len(found)} runs begin with {word!r}: {names}{more}; give more of the id"
        )
    return str(found[0]) if found else None


def _places(text: str) -> str:
    parent = text.rpartition("/")[0]
    return parent[:200] or " or ".join(STORES)
