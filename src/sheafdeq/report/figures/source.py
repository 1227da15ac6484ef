"""Which records a figure is drawn from, in which order, and by what they are told apart."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.records import (
    RECORD_FILE,
    RunRecord,
    read_record,
    read_sealed,
    read_study,
    refuse_unreadable,
    schema_of,
)
from sheafdeq.regular_file import files_below, read_regular

__all__ = [
    "Source",
    "by_task",
    "check_sources",
    "model_rank",
    "read_sources",
    "run_of",
]


@dataclass(frozen=True)
class Source:
    """One record file."""

    path: Path  # relative to the results folder
    sha256: str
    payload: dict[str, Any]
    run: RunRecord | None = None

    @property
    def schema(self) -> str:
        """Which kind of record this is."""
        return "run" if self.run is not None else str(self.payload.get("schema"))


def read_sources(results: str | Path, runs: Iterable[str | Path] = ()) -> list[Source]:
    """All records below ``results`` and the run records below ``runs``, in a fixed order; an
    altered record raises."""
    found: dict[Path, Source] = {}
    folders = [Path(results), *map(Path, runs)]
    for number, root in enumerate(folders):
        if number == 0 and len(folders) > 1 and not root.exists():
            continue  # training curves come from runs alone
        for path in files_below(root, ".json", refuse_unreadable):
            relative = path.relative_to(root)
            is_run = path.name == RECORD_FILE or path.name.endswith(".run.json")
            if is_run:
                source = Source(relative, _sha256(path), {}, read_record(path))
            elif number == 0 and relative.parts[0] in ("diagnostics", "async", "certificates"):
                payload = read_sealed(path)
                if isinstance(payload, dict) and schema_of(payload) is None:
                    continue  # of another kind: an audit
                source = Source(relative, _sha256(path), read_study(path))
            else:
                continue
            found.setdefault(path.resolve(), source)
    return list(found.values())


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error


def run_of(source: Source) -> str | None:
    """Id of the run a record is of, or about."""
    return source.run.id if source.run is not None else source.payload.get("run")


def by_task(sources: Sequence[Source], schema: str) -> dict[tuple[str, str], list[Source]]:
    """Records of one schema, grouped by task; inside a group in the order models are always shown
    in."""
    groups: dict[tuple[str, str], list[Source]] = defaultdict(list)
    for source in sources:
        if source.schema == schema:
            task = source.payload["task"]
            groups[(task["name"], task["title"])].append(source)
    for group in groups.values():
        group.sort(
            key=lambda s: (
                model_rank(s.payload["model"]["name"]),
                s.payload.get("label") or "",
                str(s.path),
            )
        )
    return dict(sorted(groups.items()))


_ORDER = (
    "sheafdeq",
    "sheafdeq-no-norm",
    "sheaf-cascade",
    "strong-sheaf",
    "loop-transformer",
    "graph-attn-deq",
    "ignn",
    "eignn",
)


def model_rank(name: str) -> tuple[int, str]:
    """Where a model stands among others: ours first, then the paper's, then by name."""
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def check_sources(sources: Sequence[Source]) -> None:
    """Nothing to draw is an error with a remedy, not an empty folder."""
    if not sources:
        raise RecordError(
            "no records found: make some with `sheafdeq diagnose RUN --out results/diagnostics`"
        )
