"""The finished runs of one configuration in one column of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from sheafdeq.records.run_record import RunRecord

__all__ = [
    "LONGEST_NAME",
    "Summary",
    "options_text",
]

LONGEST_NAME = 80
"""Characters of a protocol's name in titles and notes."""


def options_text(options: Mapping[str, Any]) -> str:
    """Options of a task or a model in a few words; none for one as it is."""
    return ", ".join(f"{key} {value}" for key, value in sorted(options.items()))


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
    def trained_by(self) -> str:
        """The protocol, in a title: a long list of settings is named by a run that has them."""
        if len(self.protocol) <= LONGEST_NAME:
            return self.protocol
        return f"settings of {self.records[0].id[:8]}"

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
