"""Run records: what a finished run says about itself.

Everything that two runs of one configuration may differ in (seconds, memory, the machine, the
engine) is under the single key ``timing``; :func:`without_timing` removes it, and what remains is
equal byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from sheafdeq.errors import RecordError
from sheafdeq.records.sealed import read_sealed
from sheafdeq.regular_file import files_below

__all__ = [
    "FORMAT",
    "RECORD_FILE",
    "Best",
    "ModelFacts",
    "RunRecord",
    "SolveFacts",
    "TaskFacts",
    "read_record",
    "read_records",
    "record_paths",
    "refuse_unreadable",
    "without_timing",
]


RECORD_FILE = "record.json"

FORMAT = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class TaskFacts(_Frozen):
    """Which data were used, and what the score means."""

    name: str
    title: str
    level: int | None = None
    split: int | str | None = None
    options: dict[str, Any]
    digest: str  # SHA-256 over every tensor
    score: str  # name of the score, higher is better
    constant_score: float | None  # test score of the best constant predictor
    # node classification, graph classification, node regression, localisation; older records have
    # none
    kind: str | None = None


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


ADDED_LATER: dict[str, Any] = {
    "differences": True,
    "dropout": 0.0,
    "encoder": [],
    "harmonics": 0,
    "input_dropout": 0.0,
    "masks": "solve",
    "mixers": "stalks",
    "readout_norm": False,
    "skip": False,
}
"""Model options that older records lack, with the value they had without knowing."""


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
    def options(self) -> dict[str, Any]:
        """Every option of the model, with what the record could not know yet."""
        return {**ADDED_LATER, **self.model.options}

    @property
    def seed(self) -> int:
        """Parameter-initialisation seed."""
        return int(self.config["seed"])

    def seconds_to(self, score: float) -> float | None:
        """CPU seconds of training until the validation score first reached ``score``; None if it
        never did.

        The epochs of a run cost about the same, so this is the share of its epochs.
        """
        curve = self.curves.get("validation", [])
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


def without_timing(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A record's payload without the fields that may differ between two runs of one
    configuration."""
    return {key: value for key, value in payload.items() if key != "timing"}


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
