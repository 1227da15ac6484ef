"""Records of studies, told apart by the schema they name and checked against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from sheafdeq.errors import RecordError
from sheafdeq.records.certificate_record import CERTIFICATE_SCHEMAS, CertificateRecord
from sheafdeq.records.diagnosis_record import DIAGNOSIS_SCHEMA, DiagnosisRecord
from sheafdeq.records.sealed import read_sealed
from sheafdeq.records.staleness_record import STALENESS_SCHEMA, StalenessRecord
from sheafdeq.records.study_record import checked
from sheafdeq.regular_file import read_regular

__all__ = ["STUDIES", "named_schema", "read_study", "schema_of"]

STUDIES: dict[str, Any] = {
    DIAGNOSIS_SCHEMA: DiagnosisRecord,
    STALENESS_SCHEMA: StalenessRecord,
    **dict.fromkeys(CERTIFICATE_SCHEMAS, CertificateRecord),
}
"""Name of a schema -> what such a record holds."""


def named_schema(path: Path) -> str | None:
    """The schema of a study a file names; the words are looked for before anything is parsed."""
    try:
        text = read_regular(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    return next((name for name in STUDIES if f'"schema":"{name}"'.encode() in text), None)


def schema_of(payload: Any) -> str | None:
    """The schema of a study a payload names, if it is one that is known here."""
    name = payload.get("schema") if isinstance(payload, dict) else None
    return name if isinstance(name, str) and name in STUDIES else None


def read_study(path: Path) -> dict[str, Any]:
    """A sealed record of a study; :class:`RecordError` when it is altered, or not of its schema."""
    payload = read_sealed(path)
    name = schema_of(payload)
    if name is None:
        raise RecordError(f"{path}: not a record of a study; known: {', '.join(STUDIES)}")
    return cast("dict[str, Any]", checked(payload, STUDIES[name], str(path)))
