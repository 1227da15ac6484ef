"""What ``sheafdeq certify`` writes: a verdict on one model and one graph, and its grounds."""

from __future__ import annotations

from typing import Any

from typing_extensions import NotRequired, TypedDict

__all__ = [
    "CERTIFICATE_SCHEMA",
    "CERTIFICATE_SCHEMAS",
    "CertificateFacts",
    "CertificateRecord",
    "verdict_of",
]

CERTIFICATE_SCHEMA = "sheafdeq.certificate/2"
CERTIFICATE_SCHEMAS = ("sheafdeq.certificate/1", CERTIFICATE_SCHEMA)
"""The one that is written, and the ones that are read."""


class AssumptionFacts(TypedDict):
    """A hypothesis of the theorem, with the number that was checked."""

    statement: str
    value: float | str  # text where it is not finite
    bound: float | str
    margin: float | str
    holds: bool


class CertificateFacts(TypedDict):
    """The certificate itself."""

    verdict: str
    level: str
    model: str
    graph: str
    rate: float | None
    metric: str | None
    domain: str | None
    radius: float | None
    delays: bool
    grounds: str
    assumptions: list[AssumptionFacts]
    proved: dict[str, Any]
    observations: dict[str, Any]
    witness: dict[str, Any] | None
    seconds: float
    reason: NotRequired[str]  # since the second scheme


class CertificateRecord(TypedDict):
    """Schemas ``sheafdeq.certificate/1`` and ``/2``."""

    schema: str
    subject: str
    model: str
    run: str | None  # none for fresh weights
    seed: int
    task: str
    part: str
    file: str
    effort: str
    starts_seed: int
    code: str
    certificate: CertificateFacts


def verdict_of(certificate: CertificateFacts) -> str:
    """Records of the first scheme called two states refuted without a proof; they are two
    candidates."""
    witness = certificate.get("witness")
    if certificate["verdict"] == "refuted" and witness is not None and not witness["proved"]:
        return "two candidates"
    return certificate["verdict"]
