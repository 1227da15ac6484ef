"""Which configuration stands for its family: the highest mean validation score over seeds, blind to test.

This module reads records and needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sheafdeq.records import RunRecord, Summary

__all__ = ["PAPER_PROTOCOL", "deviations", "select", "summarise"]

PAPER_PROTOCOL: dict[str, Any] = {
    "learning_rate": 1e-2,
    "weight_decay": 5e-4,
    "clip_norm": 1.0,
    "max_epochs": 2000,
    "patience": None,
    "schedule": "wsd",
    "penalties": "none",
    "dtype": "float32",
    "init_from": None,
    "stop_at_score": None,
    "graphs_per_update": None,
    "keep": "best",
}
"""Training settings of the paper; ``patience=None`` is the task's own (200 or 500).

``"wsd"`` is the warm-up, stable, decay schedule with the lengths of :data:`PAPER_SCHEDULE`, which the paper does not print.
A constant rate is another protocol.
"""

PAPER_SCHEDULE: dict[str, float] = {"warmup": 0.1, "decay": 0.2, "floor": 0.01}


def deviations(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of a run's configuration that differ from the paper's protocol, as ``key=value``."""
    found = dict(config)
    found["schedule"] = _schedule_text(config)
    penalties = {key: value for key, value in config["penalties"].items() if key.endswith("weight") and value}
    found["penalties"] = ",".join(f"{key}={value:g}" for key, value in sorted(penalties.items())) or "none"
    if config["init_from"] is not None:
        found["init_from"] = "another run"
    return tuple(f"{key}={found[key]}" for key, expected in PAPER_PROTOCOL.items() if found.get(key, expected) != expected)


def _schedule_text(config: Mapping[str, Any]) -> str:
    """The schedule in one word, or with those of its lengths that are not the paper's."""
    schedule = config["schedule"]
    if schedule["kind"] != "wsd":
        return str(schedule["kind"])
    warmup = schedule["warmup"]
    if isinstance(warmup, int):  # epochs, in records made before the share
        warmup = warmup / max(1, config["max_epochs"])
    found = {"warmup": warmup, "decay": schedule["decay"], "floor": schedule["floor"]}
    other = [f"{key} {value:g}" for key, value in found.items() if value != PAPER_SCHEDULE[key]]
    return f"wsd({', '.join(other)})" if other else "wsd"


def summarise(records: Iterable[RunRecord]) -> list[Summary]:
    """Group records by configuration and column; of two runs that differ only in code version the later one counts."""
    groups: dict[str, dict[int, RunRecord]] = {}
    for record in records:
        key = json.dumps([_column(record), record.model.name, record.model.options, deviations(record.config)], sort_keys=True)
        seeds = groups.setdefault(key, {})
        present = seeds.get(record.seed)
        if present is None or record.timing.get("finished", "") >= present.timing.get("finished", ""):
            seeds[record.seed] = record
    summaries = []
    for seeds in groups.values():
        ordered = tuple(seeds[seed] for seed in sorted(seeds))
        first = ordered[0]
        summaries.append(
            Summary(
                model=first.model.name,
                family=first.model.family,
                title=first.model.title,
                options=first.config["model"]["options"],
                all_options=first.model.options,
                column=_column(first),
                deviations=deviations(first.config),
                records=ordered,
            )
        )
    return summaries


def _column(record: RunRecord) -> tuple[str, int | None, str]:
    options = record.config["task"]["options"]
    text = ", ".join(f"{key} {value}" for key, value in sorted(options.items()))
    if record.task.split is not None:
        text = ", ".join(part for part in (f"split {record.task.split}", text) if part)
    return record.task.name, record.task.level, text


def select(candidates: Iterable[Summary]) -> Summary | None:
    """The candidate with the highest mean validation score; the paper's protocol goes before deviations from it.

    The first of equals wins, so the order of the candidates (the grid's) decides ties. Test scores are never read.
    """
    best: Summary | None = None
    for candidate in candidates:
        if best is None or _merit(candidate) > _merit(best):
            best = candidate
    return best


def _merit(summary: Summary) -> tuple[bool, float]:
    return not summary.deviations, summary.validation
