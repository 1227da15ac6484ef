"""What the report is made of: run records and the studies that name a run. A damaged file is listed, not fatal."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.records import RECORD_FILE, RunRecord, read_record, read_sealed

__all__ = ["Collection", "Damage", "StoredRun", "Study", "collect"]

SCHEMAS = {
    "sheafdeq.diagnostics/1": "diagnostics",
    "sheafdeq.async/1": "async",
    "sheafdeq.certificate/1": "certificate",
}


@dataclass(frozen=True)
class Damage:
    """A file that cannot be trusted, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class StoredRun:
    """A run record and where it was found."""

    path: Path
    record: RunRecord


@dataclass(frozen=True)
class Study:
    """A sealed record about a run: ``kind`` is diagnostics, async or certificate."""

    file: str  # name for people, without the folders above
    kind: str
    payload: dict[str, Any]


@dataclass
class Collection:
    """Everything that was found, runs in a fixed order."""

    runs: list[StoredRun] = field(default_factory=list)
    studies: dict[str, list[Study]] = field(default_factory=lambda: defaultdict(list))  # by run id
    damaged: list[Damage] = field(default_factory=list)

    def of(self, run: str, kind: str) -> list[Study]:
        """The studies of one kind about one run."""
        return [study for study in self.studies.get(run, ()) if study.kind == kind]

    @property
    def staleness(self) -> list[dict[str, Any]]:
        """Payloads of all asynchronous studies, as the staleness table takes them."""
        return [study.payload for group in self.studies.values() for study in group if study.kind == "async"]


def collect(
    runs: Iterable[str | os.PathLike[str]], studies: Iterable[str | os.PathLike[str]] = ()
) -> Collection:
    """Read run records below ``runs`` and studies below both; of several records with one id the first is kept.

    ``runs`` are run directories or folders of them. Names that begin with a dot are working directories and skipped.
    """
    found = Collection()
    known: set[str] = set()
    seen: set[Path] = set()
    roots = [(Path(name), True) for name in runs] + [(Path(name), False) for name in studies]
    for root, with_runs in roots:
        for path in _files(root):
            resolved = path.resolve()
            if resolved in seen:
                continue
            is_run = path.name == RECORD_FILE or path.name.endswith(".run.json")
            if is_run and not with_runs:
                continue
            seen.add(resolved)
            name = str(path.relative_to(root)) if path != root else path.name
            try:
                if is_run:
                    record = read_record(path)
                    if record.id not in known:
                        known.add(record.id)
                        found.runs.append(StoredRun(path.parent, record))
                else:
                    _add_study(found, path, name)
            except RecordError as error:
                found.damaged.append(Damage(name, str(error).removeprefix(f"{path}: ")))
    return found


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def _add_study(found: Collection, path: Path, name: str) -> None:
    data = path.read_bytes()
    if not any(f'"schema":"{schema}"'.encode() in data for schema in SCHEMAS):
        return  # a figure's caption, a benchmark: nothing of ours
    payload = read_sealed(path)
    kind = SCHEMAS.get(str(payload.get("schema"))) if isinstance(payload, dict) else None
    run = payload.get("run") if isinstance(payload, dict) else None
    if kind is not None and isinstance(run, str):
        found.studies[run].append(Study(name, kind, payload))
