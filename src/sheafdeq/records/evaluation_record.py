"""What ``sheafdeq evaluate`` writes: a checkpoint judged on a task."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sheafdeq.errors import RecordError

__all__ = ["EVALUATION_SCHEMA", "EvaluationRecord"]


EVALUATION_SCHEMA = "sheafdeq.evaluation/1"


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
    rest: dict[str, Any] | None = None  # residuals and end states from six starts, if asked for
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
