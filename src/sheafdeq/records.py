"""Run records: what a finished run says about itself. JSON in and out; nothing here knows tensors.

A record file is one line of canonical JSON (sorted keys, no spaces, ASCII, finite numbers only),

    {"payload": ..., "sha256": "<of the canonical payload>"}

and reading it back checks three things: the text is valid JSON, its digest fits, and writing what
was read gives the same bytes. A truncated or altered file is therefore a
:class:`~sheafdeq.errors.RecordError`, never a wrong number.

Everything that two runs of one configuration may differ in (seconds, memory, the machine, the
engine) is under the single key ``timing``; :func:`without_timing` removes it, and what remains is
equal byte for byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sheafdeq.errors import RecordError
from sheafdeq.regular_file import files_below, read_regular

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "EVALUATION_SCHEMA",
    "RECORD_FILE",
    "Best",
    "EvaluationRecord",
    "ModelFacts",
    "RunRecord",
    "SolveFacts",
    "Summary",
    "TaskFacts",
    "canonical_json",
    "digest_of",
    "finite",
    "read_record",
    "read_records",
    "read_sealed",
    "seal",
    "unseal",
    "without_timing",
    "write_bytes",
    "write_sealed",
]

RECORD_FILE = "record.json"
EVALUATION_SCHEMA = "sheafdeq.evaluation/1"
FORMAT = 1


# ---------------------------------------------------------------------- canonical JSON with a seal


def canonical_json(value: Any) -> bytes:
    """The one byte string a JSON value has here: sorted keys, no spaces, ASCII; NaN and infinity
    are refused."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def finite(value: float, digits: int | None = None) -> float | None:
    """The number, with ``digits`` significant digits if given; None for NaN and infinity (JSON has
    neither)."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}") if digits else float(value)


def seal(payload: Any) -> bytes:
    """The bytes of a record file."""
    return canonical_json({"payload": payload, "sha256": digest_of(payload)}) + b"\n"


def unseal(data: bytes, source: str) -> Any:
    """The payload of a record file; :class:`RecordError` when a byte is not as it was written."""
    try:
        content = json.loads(data.decode("ascii"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"{source}: not valid JSON ({error}): truncated or altered; delete it and run again"
        ) from error
    if not isinstance(content, dict) or set(content) != {"payload", "sha256"}:
        raise RecordError(
            f"{source}: not a sealed record (keys payload and sha256 expected): "
            "delete it and run again"
        )
    payload = content["payload"]
    try:
        same = seal(payload) == data and digest_of(payload) == content["sha256"]
    except (ValueError, RecursionError) as error:  # NaN or infinity, which the writer refuses
        raise RecordError(
            f"{source}: holds a number that is not finite: the file was altered"
        ) from error
    if not same:
        raise RecordError(
            f"{source}: the content does not fit its SHA-256: the file was altered; "
            "delete it and run again"
        )
    return payload


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new, and the new one
    survives power loss.

    The bytes go into a file aside first, which is locked while it is written: it is removed when
    writing fails, and what a killed process left is found unlocked and removed by the next writer
    of the same file.
    """
    while True:
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with open(aside, "xb") as stream:
                _lock(stream.fileno())
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                if fcntl is None:  # Windows does not rename an open file
                    stream.close()
                os.replace(aside, path)
            break
        except FileNotFoundError:  # taken for abandoned in the moment before it was locked
            if not path.parent.is_dir():
                raise
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    _remove_abandoned(path)


def _lock(descriptor: int) -> bool:
    """Whether this process now holds the file; no where another does, or where there are no
    locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove files aside that nobody holds; without locks nobody can tell, and they stay."""
    aside = re.compile(re.escape(f".{path.name}.") + r"\d+\.[0-9a-f]{8}")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if aside.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                descriptor = os.open(entry.path, os.O_RDONLY)
                try:
                    if _lock(descriptor):
                        os.unlink(entry.path)
                finally:
                    os.close(descriptor)


def write_sealed(path: Path, payload: Any) -> None:
    """Seal a payload and write it atomically."""
    write_bytes(path, seal(payload))


def read_sealed(path: Path) -> Any:
    """Read a sealed file; :class:`RecordError` when it is missing or altered."""
    try:
        data = read_regular(path)
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file") from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from error
    return unseal(data, str(path))


# ---------------------------------------------------------------------- the schema


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class TaskFacts(_Frozen):
    """Which data were used, and what the score means."""

    name: str
    title: str
    level: int | None = None
    split: int | None = None
    options: dict[str, Any]
    digest: str  # SHA-256 over every tensor
    score: str  # name of the score, higher is better
    constant_score: float | None  # test score of the best constant predictor


class ModelFacts(_Frozen):
    """Which model was trained."""

    name: str
    title: str
    family: str  # configurations of one family compete for one row of the compact table
    options: dict[str, Any]  # all options, defaults included
    parameters: int


class Best(_Frozen):
    """The checkpoint with the highest validation score: the earliest of equals."""

    epoch: int  # number of updates its parameters have seen
    validation: float


class SolveFacts(_Frozen):
    """How the solves ended. ``training`` counts graphs over all training evaluations, ``final``
    those of the last evaluation."""

    # the solver stops at a tolerance (then anything but "converged" is a failure)
    to_tolerance: bool
    steps: int
    tolerance: float | None
    training: dict[str, int]
    final: dict[str, int]
    residual: float | None  # largest residual of the final evaluation
    # the final evaluation solved to the tolerance, whatever the trained horizon
    at_equilibrium: bool = False
    # in which it was measured; records without it used relative-sup, or their solver's own
    distance: str | None = None

    @property
    def unconverged(self) -> bool:
        """Whether a solve that promises convergence ended otherwise in the final evaluation."""
        return self.to_tolerance and set(self.final) != {"converged"}


class _Part(BaseModel):
    """A part of a stored configuration: what later code relies on is checked, further keys are
    allowed."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), strict=True)


class _NamedPart(_Part):
    name: str
    options: dict[str, Any]


class _SchedulePart(_Part):
    kind: str


class _RunConfig(_Part):
    seed: int
    task: _NamedPart
    model: _NamedPart
    schedule: _SchedulePart
    penalties: dict[str, Any]
    init_from: str | None

    @field_validator("penalties")
    @classmethod
    def _weights_are_numbers(cls, penalties: dict[str, Any]) -> dict[str, Any]:
        for key, value in penalties.items():
            if key.endswith("weight") and not isinstance(value, int | float):
                raise ValueError(f"{key} is no number")
        return penalties


class RunRecord(_Frozen):
    """One finished run: configuration, curves, solve statistics and the metrics of the
    best-validation checkpoint."""

    format: int = FORMAT
    id: str  # SHA-256 of configuration, task digest and code version
    config: dict[str, Any]
    task: TaskFacts
    model: ModelFacts
    # scheme, version (part of the id), digest of the code that computed the run, digest of each
    # role of it
    code: dict[str, str]
    epochs: int  # optimiser updates made
    stopped: str  # patience, max_epochs, score, stop_when or non-finite
    best: Best
    scores: dict[str, float]  # train, validation, test of the best checkpoint; higher is better
    metrics: dict[str, dict[str, float | None]]
    solves: SolveFacts | None
    curves: dict[str, list[Any]]
    checkpoint: dict[str, str]  # file name -> SHA-256
    timing: dict[str, Any]

    @field_validator("config")
    @classmethod
    def _config_has_its_parts(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Tables, figures and diagnostics read these parts; the rest may differ from version to
        version."""
        try:
            _RunConfig.model_validate(config)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        return config

    @field_validator("scores")
    @classmethod
    def _scores_of_every_split(cls, scores: dict[str, float]) -> dict[str, float]:
        if not {"train", "validation", "test"} <= set(scores):
            raise ValueError("train, validation and test expected")
        return scores

    @field_validator("timing")
    @classmethod
    def _finished_is_text(cls, timing: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(timing.get("finished", ""), str):
            raise ValueError("finished must be text")
        return timing

    @property
    def scheme(self) -> str:
        """How the run was named: :data:`sheafdeq.identity.SCHEME`, or ``modules`` (names and texts
        of modules) for older records."""
        return self.code.get("scheme", "modules")

    @property
    def seed(self) -> int:
        """Parameter-initialisation seed."""
        return int(self.config["seed"])

    def seconds_to(self, score: float) -> float | None:
        """CPU seconds of training until the validation score first reached ``score``; None if it
        never did.

        The epochs of a run cost about the same, so this is the share of its epochs.
        """
        curve = self.curves["validation"]
        reached = next(
            (epoch for epoch, value in enumerate(curve) if value is not None and value >= score),
            None,
        )
        if reached is None:
            return None
        return float(self.timing["cpu_seconds"]) * reached / max(1, self.epochs)

    @staticmethod
    def parse(payload: Any, source: str) -> RunRecord:
        """Check a payload against the schema."""
        if isinstance(payload, dict) and payload.get("format") != FORMAT:
            raise RecordError(
                f"{source}: record format {payload.get('format')!r}, this version reads {FORMAT}"
            )
        try:
            return RunRecord.model_validate(payload)
        except ValidationError as error:
            first = error.errors()[0]
            raise RecordError(
                f"{source}: not a run record: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from error

    def payload(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.model_dump(mode="json")


class EvaluationRecord(BaseModel):
    """What ``sheafdeq evaluate`` writes: a checkpoint judged on a task, which need not be the one
    it was trained on."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), populate_by_name=True
    )

    schema_name: str = Field(alias="schema")
    command: str
    label: str  # fresh, validation-graphs, own, trained, or nothing for another task
    run: str
    model: dict[str, Any]
    seed: int
    # name, title, level, options, digest, score, and the digest of the task trained on
    task: dict[str, Any]
    splits: dict[str, dict[str, Any]]  # score, metrics, scored rows, graphs
    solves: dict[str, Any] | None
    dtype: str
    timing: dict[str, Any]

    @staticmethod
    def parse(payload: Any, source: str) -> EvaluationRecord:
        """Check a payload against the schema."""
        if not isinstance(payload, dict) or payload.get("schema") != EVALUATION_SCHEMA:
            raise RecordError(f"{source}: not an evaluation record of schema {EVALUATION_SCHEMA}")
        try:
            return EvaluationRecord.model_validate(payload)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise RecordError(
                f"{source}: not an evaluation record: {where}: {first['msg']}"
            ) from error

    def payload(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.model_dump(mode="json", by_alias=True)


@dataclass(frozen=True)
class Summary:
    """The finished runs of one configuration in one column of a table, one for each seed."""

    model: str
    family: str
    title: str
    options: Mapping[str, Any]  # those the configuration names
    all_options: Mapping[str, Any]  # defaults included
    # task, level, further task options as text ("" for the task as published)
    column: tuple[str, int | None, str]
    deviations: tuple[str, ...]  # training settings that differ from the paper's protocol
    records: tuple[RunRecord, ...]  # by seed
    protocol: str = "paper"  # or the recipe's name, or what differs from the paper's protocol
    differences: bool = False  # whether the model sees differences of the raw features on its edges

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that have finished."""
        return tuple(record.seed for record in self.records)

    @property
    def validation(self) -> float:
        """Mean validation score over the seeds: all that selection may look at."""
        return sum(record.scores["validation"] for record in self.records) / len(self.records)

    def test(self, metric: str | None = None) -> list[float]:
        """Test score (or another metric) of every seed that has one."""
        if metric is None:
            return [record.scores["test"] for record in self.records]
        values = [record.metrics.get("test", {}).get(metric) for record in self.records]
        return [value for value in values if value is not None]

    def spread(self, metric: str | None = None) -> tuple[float, float, float] | None:
        """(median, min, max) over the seeds."""
        values = self.test(metric)
        return (median(values), min(values), max(values)) if values else None

    @property
    def unconverged(self) -> int:
        """Runs whose solver promises convergence and did not reach it in the final evaluation."""
        return sum(
            record.solves is not None and record.solves.unconverged for record in self.records
        )


def without_timing(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A record's payload without the fields that may differ between two runs of one
    configuration."""
    return {key: value for key, value in payload.items() if key != "timing"}


# ---------------------------------------------------------------------- files


def read_record(path: str | os.PathLike[str]) -> RunRecord:
    """Read one record: its file, or the run directory that holds it."""
    path = Path(path)
    if path.is_dir():
        path = path / RECORD_FILE
    return RunRecord.parse(read_sealed(path), str(path))


def refuse_unreadable(error: OSError) -> None:
    """A folder that cannot be listed would leave its records out in silence."""
    raise RecordError(
        f"{error.filename}: the folder cannot be read ({error.strerror}); its "
        "records would be missing"
    ) from error


def record_paths(
    folders: Iterable[str | os.PathLike[str]],
    unreadable: Callable[[OSError], None] = refuse_unreadable,
) -> Iterator[Path]:
    """Run records below the folders, in a fixed order; working directories (dot names) are skipped.

    ``unreadable`` is told of every folder that cannot be listed.
    """
    for folder in folders:
        for path in files_below(Path(folder), ".json", unreadable):
            if path.name == RECORD_FILE or path.name.endswith(".run.json"):
                yield path


def read_records(
    *folders: str | os.PathLike[str], unreadable: Callable[[OSError], None] = refuse_unreadable
) -> list[RunRecord]:
    """All run records below the folders (``record.json`` of a store, ``*.run.json`` of a results
    folder).

    Of several records with one id, the first is kept; a record that cannot be trusted raises.
    ``unreadable`` is told of every folder that cannot be listed (default: raise).
    """
    found: dict[str, RunRecord] = {}
    for path in record_paths(folders, unreadable):
        record = read_record(path)
        found.setdefault(record.id, record)
    return list(found.values())
