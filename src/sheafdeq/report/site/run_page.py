"""One run as its page shows it, with everything that was measured on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.records import EvaluationRecord, RunRecord, verdict_of
from sheafdeq.report.collection import Collection
from sheafdeq.report.site.charts import charts_of
from sheafdeq.report.site.environment import page_name
from sheafdeq.report.site.words import (
    certificate_sentences,
    clip,
    option_text,
    run_sentences,
    toml_of,
)
from sheafdeq.report.style import look_of_model
from sheafdeq.report.summary import Summary

__all__ = [
    "AboutRun",
    "Configuration",
    "RunPage",
    "configuration_text",
    "finite_number",
    "known_by_run",
]


Configuration = Callable[[RunRecord], Mapping[str, Any]]


def configuration_text(record: RunRecord, configuration: Configuration) -> str:
    """The configuration file that repeats a run, or why there is none."""
    try:
        return toml_of(configuration(record))
    except (InputError, KeyError, TypeError, ValueError) as error:
        lines = clip(f"This version cannot repeat the run: {error}", 500).splitlines()
        return "".join(f"# {line}\n" for line in lines) + toml_of(record.config)


@dataclass
class AboutRun:
    """What other records say about one run."""

    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    studies: list[dict[str, Any]] = field(default_factory=list)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)


def known_by_run(collection: Collection) -> dict[str, AboutRun]:
    """Studies, certificates and evaluations by the run they are about."""
    found: dict[str, AboutRun] = {}
    for kind in ("diagnostics", "studies", "certificates"):
        for payload in getattr(collection, kind):
            if isinstance(payload, dict) and isinstance(payload.get("run"), str):
                getattr(found.setdefault(payload["run"], AboutRun()), kind).append(payload)
    for evaluation in collection.evaluations:
        found.setdefault(evaluation.run, AboutRun()).evaluations.append(evaluation)
    return found


class RunPage:
    """Everything the pages say about one run."""

    def __init__(
        self, record: RunRecord, summary: Summary, about: AboutRun, explorer: bool
    ) -> None:
        self.record = record
        self.explorer = explorer
        self.name = page_name(record.id)
        self.short = clip(record.id, 8).split("…")[0]
        self.options = option_text(summary.options)
        self.deviations = [clip(text) for text in summary.deviations]
        self.label = clip(f"{record.model.title}, {record.task.title}, seed {record.seed}", 160)
        self.diagnostics, self.staleness = about.diagnostics, about.studies
        self.evaluations = about.evaluations
        self.certificates = [
            {
                **certificate,
                "part": payload.get("part"),
                "effort": payload.get("effort"),
                "words": certificate_sentences(certificate),
            }
            for payload in about.certificates
            for certificate in (
                {**payload["certificate"], "verdict": verdict_of(payload["certificate"])},
            )
        ]
        self.sentences = run_sentences(record, self.diagnostics)
        self.charts = charts_of(record, self.diagnostics, self.staleness)
        self.starts = [_starts(payload) for payload in self.diagnostics]
        self.settled = _settled(record)

    @property
    def verdict(self) -> str:
        """The strongest thing that is proved: refuted before certified before nothing."""
        verdicts = [str(certificate["verdict"]) for certificate in self.certificates]
        return next(
            (
                verdict
                for verdict in ("refuted", "certified", "two candidates", "not certified")
                if verdict in verdicts
            ),
            "",
        )

    @property
    def trust(self) -> dict[str, Any] | None:
        """Residual and score at the end of continued iteration from the default start, if that was
        recorded."""
        for payload in self.diagnostics:
            trajectory = payload["continued"]["trajectories"][0]
            update, score = trajectory.get("update") or [None], trajectory.get("score") or [None]
            if isinstance(update[-1], int | float) and isinstance(score[-1], int | float):
                return {
                    "residual": update[-1],
                    "score": score[-1],
                    "iterations": payload["continued"]["iterations"],
                }
        return None

    @property
    def index(self) -> dict[str, Any]:
        """What compare needs to know of every run."""
        record = self.record
        return {
            "id": record.id,
            "page": self.name,
            "label": self.label,
            "model": clip(record.model.title, 80),
            "options": self.options,
            "task": clip(record.task.title, 80),
            "seed": record.seed,
            "score": clip(record.task.score, 60),
            "scores": {key: finite_number(value) for key, value in record.scores.items()},
            "parameters": record.model.parameters,
            "epochs": record.epochs,
            "best": record.best.epoch,
            "protocol": ", ".join(self.deviations) or "the paper's",
            "settled": self.settled,
            "residual": None if record.solves is None else finite_number(record.solves.residual),
            "verdict": self.verdict,
            "seconds": finite_number(record.timing.get("wall_seconds")),
            "trust": self.trust,
            "colour": look_of_model(record.model.name).colour,
        }


def finite_number(value: Any) -> float | None:
    """The value if it is a finite number: curves of strangers hold anything."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _settled(record: RunRecord) -> str:
    """How the solves of the final evaluation ended, in one or two words."""
    if record.solves is None:
        return "feed-forward"
    if set(record.solves.final) == {"converged"}:
        return "converged"
    return "unconverged †" if record.solves.unconverged else "not at rest"


def _starts(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A table of the starts of one diagnose record."""
    continued = payload["continued"]
    agreement = continued["agreement"]
    group_of = {
        start: place for place, group in enumerate(agreement["groups"], 1) for start in group
    }
    same = dict(zip(agreement["starts"], agreement["same_prediction"] or [], strict=False))
    rows = []
    for trajectory in continued["trajectories"]:
        settling = trajectory["settling"]
        nodes = sum(settling["counts"]) + settling["unsettled"]
        rows.append(
            {
                "start": trajectory["start"],
                "status": trajectory["status"],
                "residual": (trajectory["update"] or [None])[-1],
                "score": (trajectory["score"] or [None])[-1],
                "median": settling["median"],
                "moving": settling["unsettled"] / nodes if nodes else None,
                "group": group_of.get(trajectory["start"]),
                "same": same.get(trajectory["start"]),
            }
        )
    return {
        "label": payload.get("label"),
        "graph": payload["graph"],
        "iterations": continued["iterations"],
        "tolerance": continued["trajectories"][0]["settling"]["tolerance"],
        "groups": len(agreement["groups"]),
        "rows": rows,
        "spectrum": payload.get("spectrum"),
        "command": payload.get("command"),
    }
