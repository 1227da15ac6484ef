"""What ``sheafdeq async`` writes; :mod:`sheafdeq.asynchronous.study` says what each field means."""

from __future__ import annotations

from typing import Any

from typing_extensions import NotRequired, TypedDict

from sheafdeq.records.study_record import Spread, StudyRecord

__all__ = ["STALENESS_SCHEMA", "ConditionFacts", "SampleFacts", "StalenessRecord"]

STALENESS_SCHEMA = "sheafdeq.async/1"


class ReferenceFacts(TypedDict):
    """The synchronous prediction everything is held against."""

    kind: str
    steps: int
    status: str
    residual: float | None
    score: float | None


class SampleFacts(TypedDict):
    """One schedule."""

    seed: int
    status: str
    residual: float | None
    score: float | None
    work: list[float]
    d_out: list[float | None]


class ObservedStaleness(TypedDict):
    """The delays that were read."""

    mean: float
    max: int
    histogram: list[int]


class ConditionFacts(TypedDict):
    """One condition (s, tau) with all its schedules."""

    update_window: int
    max_delay: int
    label: str
    samples: int
    counted: int
    d_out: Spread | None
    score: Spread | None
    statuses: dict[str, int]
    violations: int
    staleness: ObservedStaleness
    trajectories: list[SampleFacts]
    channel: NotRequired[dict[str, Any]]
    sleep: NotRequired[float]
    sleep_slots: NotRequired[int]


class StalenessRecord(StudyRecord):
    """Schema ``sheafdeq.async/1``."""

    study: str  # schedules, tau-sweep, faults or warm
    simulation: str
    reference: ReferenceFacts
    work: float
    conditions: list[ConditionFacts]
    warm: NotRequired[int]
