"""Which configuration stands for its family: the highest mean validation score over seeds, blind to
test.

This module reads records and needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sheafdeq.records import RunRecord
from sheafdeq.report.summary import Summary, options_text
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.recipe import recipe_names, recipe_values

__all__ = ["PAPER_PROTOCOL", "deviations", "protocol", "sees_differences", "select", "summarise"]

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
    "solves": "none",
    "augmentation": "none",
    "weight_average": None,
}
"""Training settings of the paper; ``patience=None`` is the task's own (200 or 500).

``"wsd"`` is the warm-up, stable, decay schedule with the lengths of :data:`PAPER_SCHEDULE`, which
the paper does not print. A constant rate is another protocol.
"""

PAPER_SCHEDULE: dict[str, float] = {"warmup": 0.1, "decay": 0.2, "floor": 0.01}
NOT_PROTOCOL = ("task", "model", "seed", "threads", "test_every", "score_every")
"""Fields of a configuration that say what is trained, or change no number."""
PAPER_OPTIONS: dict[str, dict[str, Any]] = {
    "loop-transformer": {"masks": "loop"},
    "sheafdeq": {"mixers": "stalks"},
    "sheafdeq-no-norm": {"mixers": "stalks"},
}
"""Model options whose other values are another training than the paper's."""
READ_DIFFERENCES = frozenset({"sheaf-cascade", "strong-sheaf", "strong-attention", "sheaf-relay"})
"""Models that form differences of raw features on their own."""
READ_EDGE_FEATURES = READ_DIFFERENCES | {
    "sheafdeq",
    "sheafdeq-no-norm",
    "graph-attn-deq",
    "loop-transformer",
    "energygnn",
}
"""Models that see what a task writes on its edges."""


def deviations(record: RunRecord) -> tuple[str, ...]:
    """Settings of a run that differ from the paper's protocol, as ``key=value``."""
    config = record.config
    found = dict(config)
    found["schedule"] = _schedule_text(config)
    penalties = {
        key: value for key, value in config["penalties"].items() if key.endswith("weight") and value
    }
    found["penalties"] = (
        ",".join(f"{key}={value:g}" for key, value in sorted(penalties.items())) or "none"
    )
    for key in ("solves", "augmentation"):
        given = {
            name: value
            for name, value in (config.get(key) or {}).items()
            if value not in (None, 0, 0.0)
        }
        found[key] = ",".join(f"{name}={value}" for name, value in sorted(given.items())) or "none"
    if config["init_from"] is not None:
        found["init_from"] = "another run"
    return (
        *_different(found, PAPER_PROTOCOL),
        *_different(record.options, PAPER_OPTIONS.get(record.model.name, {})),
    )


def _different(found: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{key}={found[key]}" for key, value in expected.items() if found.get(key, value) != value
    )


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


def protocol(record: RunRecord) -> str:
    """By what a run was trained: ``"paper"``, ``"recipe NAME"``, or the settings that differ from
    the paper's."""
    different = deviations(record)
    if not different:
        return "paper"
    known = TrainingConfig.of_record(record.config, "record").payload()
    model = known["model"]["name"]
    fields = {key: value for key, value in known.items() if key not in NOT_PROTOCOL}
    general = None
    for name in recipe_names():
        recipe_model, recipe_fields = _recipe_fields(name)
        if recipe_fields == fields and recipe_model == model:
            return f"recipe {name}"
        if recipe_fields == fields and recipe_model is None:
            general = f"recipe {name}"
    return general or _in_words(different)


@cache
def _recipe_fields(name: str) -> tuple[str | None, dict[str, Any]]:
    """The model a recipe is for, if it is for one, and its training fields with every default."""
    values = recipe_values(name)
    model = values.get("model", {}).get("name")
    filled = {
        **values,
        "task": values.get("task", "community"),
        "model": values.get("model") or "sheafdeq",
    }
    payload = TrainingConfig.parse(filled, f"recipe {name}").payload()
    return model, {key: value for key, value in payload.items() if key not in NOT_PROTOCOL}


def _in_words(different: tuple[str, ...]) -> str:
    if different == ("schedule=constant",):
        return "constant rate"
    return ", ".join(different)


def sees_differences(record: RunRecord) -> bool:
    """Whether the model of a run sees differences of raw features on its edges: its own, or the
    task's."""
    name, options = record.model.name, record.model.options
    if name in READ_DIFFERENCES and options.get("differences", True):
        return True
    given = record.config["task"]["options"].get("edge_inputs", "none") != "none"
    return given and name in READ_EDGE_FEATURES and bool(options.get("edge_features", True))


def summarise(records: Iterable[RunRecord]) -> list[Summary]:
    """Group records by configuration and column; of two runs that differ only in code version the
    later one counts."""
    groups: dict[str, dict[int, RunRecord]] = {}
    for record in records:
        parts = [
            _column(record),
            record.model.name,
            record.options,
            deviations(record),
        ]
        key = json.dumps([*parts, sees_differences(record)], sort_keys=True)
        seeds = groups.setdefault(key, {})
        present = seeds.get(record.seed)
        if present is None or record.timing.get("finished", "") >= present.timing.get(
            "finished", ""
        ):
            seeds[record.seed] = record
    summaries = []
    for seeds in groups.values():
        ordered = tuple(seeds[seed] for seed in sorted(seeds))
        first = ordered[0]
        trained_by = protocol(first)
        summaries.append(
            Summary(
                model=first.model.name,
                family=first.model.family,
                title=first.model.title,
                options=_named_options(first, trained_by),
                all_options=first.model.options,
                column=_column(first),
                deviations=deviations(first),
                records=ordered,
                protocol=trained_by,
                differences=sees_differences(first),
            )
        )
    return summaries


def _named_options(record: RunRecord, trained_by: str) -> dict[str, Any]:
    """The options a configuration names, without those its recipe gives."""
    given = (
        recipe_values(trained_by.removeprefix("recipe "))
        if trained_by.startswith("recipe ")
        else {}
    )
    fixed = given.get("model", {}).get("options", {})
    return {
        key: value
        for key, value in record.config["model"]["options"].items()
        if key not in fixed or fixed[key] != value
    }


def _column(record: RunRecord) -> tuple[str, int | None, str]:
    """Task, level, further options. Differences on the edges are the row's: the graphs and labels
    are the same."""
    options = {
        key: value
        for key, value in record.config["task"]["options"].items()
        if key != "edge_inputs"
    }
    text = options_text(options)
    if record.task.split is not None:
        text = ", ".join(part for part in (f"split {record.task.split}", text) if part)
    return record.task.name, record.task.level, text


def select(candidates: Iterable[Summary]) -> Summary | None:
    """The candidate with the highest mean validation score; the paper's protocol goes before
    deviations from it.

    The first of equals wins, so the order of the candidates (the grid's) decides ties. Test scores
    are never read.
    """
    best: Summary | None = None
    for candidate in candidates:
        if best is None or _merit(candidate) > _merit(best):
            best = candidate
    return best


def _merit(summary: Summary) -> tuple[bool, float]:
    return not summary.deviations, summary.validation
