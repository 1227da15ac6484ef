"""Everything a folder holds that can be believed, and the names of what cannot.

One damaged file must not hide the others, and must not be passed over in silence either: it is left
out, named and counted. A run record whose checkpoint lies beside it is believed only if the
checkpoint's bytes are those the record names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.records import (
    CERTIFICATE_SCHEMAS,
    DIAGNOSIS_SCHEMA,
    STALENESS_SCHEMA,
    EvaluationRecord,
    RunRecord,
    named_schema,
    read_record,
    read_sealed,
    read_study,
    record_paths,
)
from sheafdeq.regular_file import files_below, read_regular

__all__ = ["Collection", "collect"]

EVALUATION_FILES = ".eval.json"
KINDS = {
    STALENESS_SCHEMA: "studies",
    DIAGNOSIS_SCHEMA: "diagnostics",
    **dict.fromkeys(CERTIFICATE_SCHEMAS, "certificates"),
}


@dataclass(frozen=True)
class Collection:
    """Records of five kinds, and why the rest was left out."""

    runs: tuple[RunRecord, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    diagnostics: tuple[dict[str, Any], ...] = ()  # what ``sheafdeq diagnose`` writes
    studies: tuple[dict[str, Any], ...] = ()  # what ``sheafdeq async`` writes
    certificates: tuple[dict[str, Any], ...] = ()  # what ``sheafdeq certify`` writes
    excluded: tuple[str, ...] = ()  # file and reason

    def fresh_scores(self) -> dict[str, float]:
        """Run id -> test score on graphs nobody had seen, where there is one."""
        return self.scores("fresh")

    def scores(self, label: str) -> dict[str, float]:
        """Run id -> test score on the graphs of that label (``fresh``, ``validation-graphs``)."""
        found = {
            record.run: record.splits.get("test", {}).get("score")
            for record in self.evaluations
            if record.label == label
        }
        return {run: score for run, score in found.items() if score is not None}


def collect(folders: Iterable[str | os.PathLike[str]], *, studies: bool = True) -> Collection:
    """Read every record below the folders; ``studies=False`` leaves diagnostics, asynchronous
    studies and certificates unread.

    Of several run records with one id the first counts. An evaluation of a run that is not among
    them is left out.
    """
    excluded: list[str] = []

    def unreadable(error: OSError) -> None:
        excluded.append(f"{error.filename}: the folder cannot be read ({error.strerror})")

    roots = [Path(folder) for folder in folders]
    runs: dict[str, RunRecord] = {}
    for path in record_paths(roots, unreadable):
        try:
            record = read_record(path)
            _check_checkpoint(path.parent, record)
        except RecordError as error:
            excluded.append(_relative(str(error), roots))
            continue
        runs.setdefault(record.id, record)
    evaluations: list[EvaluationRecord] = []
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS.values()}
    for root in roots:
        for path in files_below(root, ".json", unreadable):
            try:
                if path.name.endswith(EVALUATION_FILES):
                    evaluations.append(EvaluationRecord.parse(read_sealed(path), str(path)))
                elif studies and (schema := named_schema(path)) is not None:
                    found[KINDS[schema]].append(read_study(path))
            except RecordError as error:
                excluded.append(_relative(str(error), roots))
    for evaluation in evaluations:
        if evaluation.run not in runs:
            excluded.append(
                f"evaluation of run {evaluation.run[:8]}: there is no record of that run"
            )
    known = tuple(evaluation for evaluation in evaluations if evaluation.run in runs)
    return Collection(
        tuple(runs.values()),
        known,
        tuple(found["diagnostics"]),
        tuple(found["studies"]),
        tuple(found["certificates"]),
        tuple(dict.fromkeys(excluded)),
    )


def _check_checkpoint(folder: Path, record: RunRecord) -> None:
    for name, expected in record.checkpoint.items():
        path = folder / name
        if not path.is_file():
            continue  # records travel without their checkpoints
        try:
            found = hashlib.sha256(read_regular(path)).hexdigest()
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
        if found != expected:
            raise RecordError(
                f"{path}: the checkpoint is not the one its record names (SHA-256 differs)"
            )


def _relative(text: str, roots: list[Path]) -> str:
    """A message without the folders the caller named."""
    for root in roots:
        text = text.replace(f"{root}{os.sep}", "")
    return text
