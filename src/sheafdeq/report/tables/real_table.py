"""Real graphs: mean and standard deviation over the standard splits, published values below."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import mean, stdev
from typing import Any

from sheafdeq.records import RunRecord
from sheafdeq.report.tables.table import Cell, Row, Table

__all__ = ["SplitCell", "published_numbers", "real_table"]

SHEAVES = ("sheaf-cascade", "sheafdeq")
"""The models whose better one is held against the target."""
CHOOSING = 3
"""Splits a configuration needs to be chosen: a grid is run on the first ones, its winner on all."""


@dataclass(frozen=True)
class SplitCell(Cell):
    """Mean and standard deviation over splits, with their number; ``spread`` is mean, min, max."""

    deviation: float | None = None

    def text(self) -> str:
        """``86.5 ± 4.1 (10)``, or why there is nothing."""
        if self.spread is None:
            return self.absent
        shown = format(self.spread[0], self.form)
        if self.deviation is not None:
            shown += f" ± {format(self.deviation, self.form)}"
        return shown if self.seeds is None else f"{shown} ({self.seeds[0]})"


@cache
def published_numbers(name: str) -> dict[str, Any]:
    """Values others have published: ``real``."""
    path = resources.files("sheafdeq.report") / "published" / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def real_table(records: Iterable[RunRecord], *, full: bool = False) -> Table:
    """A pair of rows for each data set: our test scores and what others have published.

    Of one model's configurations the one with the highest mean validation score over the splits
    they share stands in its column; test scores are never compared. Configurations with fewer than
    :data:`CHOOSING` splits compete only where none has more. ``full`` lists every configuration in
    a row of its own.
    """
    known = published_numbers("real")
    tasks = {row["task"] for row in known["rows"]}
    usable = [record for record in records if record.task.name in tasks]
    titles = {record.model.name: record.model.title for record in usable}
    models = [model for model in known["models"] if model in titles]
    columns = [titles[model] for model in models]
    rows: list[Row] = []
    for line in known["rows"]:
        found = {model: _configurations(usable, line["task"], model) for model in models}
        if not any(found.values()):
            continue
        if full:
            rows.extend(_full_rows(line["title"], models, found))
            continue
        cells = [_cell(_chosen(found[model])) for model in models]
        best = max(
            (
                cell.spread[0]
                for cell, model in zip(cells, models, strict=True)
                if model in SHEAVES and cell.spread is not None
            ),
            default=None,
        )
        rows.append(Row(line["title"], "ours", (*cells, Cell(absent=_verdict(line, best)))))
        below = [_published(line["published"].get(model)) for model in models]
        if line["best"] is not None or any(cell.spread is not None for cell in below):
            rows.append(Row("", "published", (*below, Cell(absent=_best(line)))))
    notes = (
        "Mean ± standard deviation of the test score over splits (their number): accuracy, or "
        "ROC-AUC, in per cent. Of the configurations of a model the one with the highest mean "
        "validation score over the splits they share is shown.",
        *known["notes"],
    )
    last = () if full else ("target, best published",)
    return Table(known["title"], (*columns, *last), tuple(rows), notes)


def _configurations(records: Sequence[RunRecord], task: str, model: str) -> list[list[RunRecord]]:
    """Runs of one model on one data set, those of one configuration together, by split; of two
    runs of one split the later counts."""
    groups: dict[str, dict[Any, RunRecord]] = {}
    for record in records:
        if record.task.name != task or record.model.name != model:
            continue
        config = {key: value for key, value in record.config.items() if key != "task"}
        options = {k: v for k, v in record.config["task"]["options"].items() if k != "split"}
        splits = groups.setdefault(json.dumps([config, options], sort_keys=True), {})
        present = splits.get(record.task.split)
        if present is None or record.timing.get("finished", "") >= present.timing.get(
            "finished", ""
        ):
            splits[record.task.split] = record
    return [[splits[key] for key in sorted(splits, key=str)] for splits in groups.values()]


def _chosen(configurations: Sequence[Sequence[RunRecord]]) -> Sequence[RunRecord]:
    """By validation alone, on the splits that all candidates have; of equals the one with more
    splits."""
    enough = min(CHOOSING, max((len(runs) for runs in configurations), default=0))
    candidates = [runs for runs in configurations if len(runs) >= enough]
    splits = [{record.task.split for record in runs} for runs in candidates]
    shared = set.intersection(*splits) if splits else set()
    return max(candidates, key=lambda runs: (_validation(runs, shared), len(runs)), default=())


def _validation(runs: Sequence[RunRecord], splits: Container[Any] | None = None) -> float:
    """Mean over some splits (default: all); minus infinity over none."""
    scores = [r.scores["validation"] for r in runs if splits is None or r.task.split in splits]
    return mean(scores) if scores else -math.inf


def _cell(runs: Sequence[RunRecord], note: str = "") -> SplitCell:
    if not runs:
        return SplitCell(absent="")
    scores = [record.scores["test"] for record in runs]
    return SplitCell(
        (mean(scores), min(scores), max(scores)),
        seeds=(len(runs), 10),
        note=note,
        runs=tuple(record.id for record in runs),
        deviation=stdev(scores) if len(scores) > 1 else None,
    )


def _full_rows(
    title: str, models: Sequence[str], found: dict[str, list[list[RunRecord]]]
) -> list[Row]:
    rows = []
    for place, model in enumerate(models):
        for runs in sorted(found[model], key=_validation, reverse=True):
            cells: list[Cell] = [SplitCell(absent="") for _ in models]
            cells[place] = _cell(runs)
            given = ", ".join(
                f"{key} {value}" for key, value in runs[0].config["model"]["options"].items()
            )
            decay = f"weight decay {runs[0].config['weight_decay']:g}"
            shown = f"validation {_validation(runs):.2f}"
            rows.append(Row(f"{title}: {given}, {decay}, {shown}", "ours", tuple(cells)))
    return rows


def _published(value: float | None) -> SplitCell:
    return SplitCell(absent="") if value is None else SplitCell((value, value, value), ".2f")


def _verdict(line: dict[str, Any], best: float | None) -> str:
    target = line["target"]
    if target is None or best is None:
        return "" if target is None else f"{target:g}"
    gap = best - target
    return f"{target:g}: " + ("reached" if gap >= 0 else f"missed by {-gap:.1f}")


def _best(line: dict[str, Any]) -> str:
    return "" if line["best"] is None else f"{line['best'][0]:.2f} ({line['best'][1]})"
