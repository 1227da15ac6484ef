"""What ``sheafdeq diagnose`` writes: continued iteration from several starts, and the spectrum."""

from __future__ import annotations

from typing_extensions import NotRequired, TypedDict

from sheafdeq.records.study_record import StudyRecord

__all__ = ["DIAGNOSIS_SCHEMA", "Continued", "DiagnosisRecord", "SpectrumFacts", "TrajectoryFacts"]

DIAGNOSIS_SCHEMA = "sheafdeq.diagnostics/1"
Curve = list[float | None]  # null where the number was infinite


class SettlingFacts(TypedDict):
    """How many nodes came to rest at which iteration."""

    tolerance: float
    counts: list[int]
    unsettled: int
    median: float | None


class TrajectoryFacts(TypedDict):
    """One start: lists over iterations, empty where nothing could be measured."""

    start: str
    status: str
    update: Curve
    thompson: Curve
    state_discrepancy: Curve
    prediction_discrepancy: Curve
    score: Curve
    settling: SettlingFacts
    lost_at: int | None
    thompson_rate: float | None


class Band(TypedDict):
    """Median and quartiles over the starts that stayed finite."""

    lower: Curve
    median: Curve
    upper: Curve


class Bands(TypedDict):
    """One band for each measure."""

    update: Band
    thompson: Band
    state_discrepancy: Band
    prediction_discrepancy: Band
    score: Band


class Agreement(TypedDict):
    """Which starts ended in the same state."""

    tolerance: float
    starts: list[str]
    groups: list[list[str]]
    distance: list[Curve]
    same_prediction: Curve | None


class Continued(TypedDict):
    """Continued iteration: the default start first."""

    iterations: int
    horizon: int
    update_of: str
    counted: int
    statuses: dict[str, int]
    trajectories: list[TrajectoryFacts]
    bands: Bands
    agreement: Agreement


class SpectrumFacts(TypedDict):
    """An estimate of the spectral radius of the Jacobian."""

    radius: float | None
    eigenvalue: Curve | None
    method: str
    kind: str
    converged: bool
    products: int
    residual: float | None


class DiagnosisRecord(StudyRecord):
    """Schema ``sheafdeq.diagnostics/1``."""

    continued: Continued
    spectrum: SpectrumFacts | None
    damping: NotRequired[float]  # 1 where it is missing
    undamped: NotRequired[int]
