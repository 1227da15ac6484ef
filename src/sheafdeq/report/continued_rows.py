"""Runs that were iterated on beyond their horizon, as rows of the page of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sheafdeq.records import RunRecord
from sheafdeq.report.evidence import Evidence

__all__ = [
    "PAPER_SETTLING",
    "ContinuedRow",
    "continued_rows",
    "number_text",
    "trained_by",
]


PAPER_SETTLING = {
    "sheafdeq": "residual 8.95e-07 after 420 iterations; accuracy kept through 100",
    "sheafdeq-no-norm": "residual 1.04e-02 after 500 iterations; accuracy kept through 100",
    "loop-transformer": "loses its accuracy beyond its 20 loops",
}
"""What the paper says of its three level-7 checkpoints (its Section 4.3 and appendix on
staleness)."""


@dataclass(frozen=True)
class ContinuedRow:
    """One run iterated on from several starts."""

    model: str
    title: str
    run: str
    seed: int
    protocol: str
    damping: float
    horizon: int
    iterations: int
    at_horizon: float | None
    last: float | None
    score_at_horizon: float | None
    score_last: float | None
    score_lowest: float | None  # of the medians from the horizon on
    starts: int
    groups: int
    resting: int  # nodes that change by less than the tolerance from some iteration on
    nodes: int
    tolerance: float  # of the nodes at rest

    def words(self) -> tuple[str, ...]:
        """One line of the table of the page."""
        plain = self.damping == 1.0
        return (
            f"{self.title}, seed {self.seed} (`{self.run[:8]}`)"
            + ("" if plain else f", damped {self.damping:g}"),
            self.protocol,
            str(self.iterations),
            number_text(self.at_horizon),
            number_text(self.last),
            _score(self.score_at_horizon),
            _score(self.score_last),
            _score(self.score_lowest),
            f"{self.resting} of {self.nodes}",
            f"{self.groups} of {self.starts}",
            PAPER_SETTLING.get(self.model, "") if plain else "",
        )


def continued_rows(evidence: Evidence) -> list[ContinuedRow]:
    """Diagnostics at level 7, the paper's protocol first."""
    runs = evidence.runs
    rows = []
    for payload in evidence.found.diagnostics:
        task = payload["task"]
        if (task["name"], task["level"]) != ("community", 7):
            continue
        record = runs.get(payload["run"])
        continued, bands = payload["continued"], payload["continued"]["bands"]
        horizon, iterations = continued["horizon"], continued["iterations"]
        settling = continued["trajectories"][0]["settling"]  # from the start it was trained with
        resting = sum(settling["counts"])
        rows.append(
            ContinuedRow(
                payload["model"]["name"],
                payload["model"]["title"],
                payload["run"],
                payload["seed"],
                "no record of the run" if record is None else trained_by(evidence, record),
                float(payload.get("damping", 1.0)),
                horizon,
                iterations,
                _at(bands["update"], horizon - 1),
                _at(bands["update"], iterations - 1),
                _at(bands["score"], horizon),
                _at(bands["score"], iterations),
                min(bands["score"]["median"][horizon:], default=None),
                len(continued["trajectories"]),
                len(continued["agreement"]["groups"]),
                resting,
                resting + settling["unsettled"],
                settling["tolerance"],
            )
        )
    return sorted(
        rows,
        key=lambda row: (row.protocol != "paper", row.model, row.protocol, row.seed, row.damping),
    )


def trained_by(evidence: Evidence, record: RunRecord) -> str:
    """How a run was trained, in few words."""
    if record.config.get("init_from") is not None:
        return "continued from another run"
    return evidence.protocol(record)


def _at(band: Mapping[str, Any], place: int) -> float | None:
    values = band["median"]
    return values[place] if 0 <= place < len(values) else None


def number_text(value: float | None) -> str:
    """Two digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.2e}"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
