"""Curves of a run as data for the page's own chart script: thinned, finite, named.

A chart is ``{"title", "x", "y", "log", "series": [{"name", "colour", "dash", "x": [...], "y":
[...]}], "marks": [[x, text]]}``; ``null`` in ``y`` is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from sheafdeq.records import RunRecord
from sheafdeq.report.figures.staleness import median_curve
from sheafdeq.report.site.words import clip
from sheafdeq.report.style import SEED_LOOKS, look_of_model

__all__ = ["POINTS", "charts_of", "thinned"]

POINTS = 320
"""Points a curve keeps at most."""

_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")


def thinned(
    values: Sequence[Any], first: int = 0, points: int = POINTS
) -> tuple[list[int], list[float | None]]:
    """x and y of a curve with at most ``points`` points: the lowest and the highest value of each
    stretch stay, in order."""
    if len(values) <= points:
        return list(range(first, first + len(values))), [_finite(value) for value in values]
    y = numpy.array([_plain(value) for value in values])
    stretch = math.ceil(2 * len(y) / points)
    padded = numpy.full(-(-len(y) // stretch) * stretch, numpy.nan)
    padded[: len(y)] = y
    rows = padded.reshape(-1, stretch)
    start = numpy.arange(len(rows)) * stretch
    low = start + numpy.where(numpy.isnan(rows), numpy.inf, rows).argmin(1)
    high = start + numpy.where(numpy.isnan(rows), -numpy.inf, rows).argmax(1)
    # a stretch without a number keeps its first place: a gap
    kept = sorted({*low.tolist(), *high.tolist(), len(y) - 1})
    return [first + index for index in kept], [_finite(float(y[index])) for index in kept]


def _plain(value: Any) -> float:
    """A number, or NaN for everything else that a record can hold."""
    usable = type(value) is float or (
        isinstance(value, int | float) and not isinstance(value, bool)
    )
    return value if usable and math.isfinite(value) else math.nan


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def charts_of(
    record: RunRecord,
    diagnostics: Sequence[Mapping[str, Any]],
    studies: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """All charts of one run that its records allow, by name."""
    charts: dict[str, dict[str, Any]] = {}
    score = clip(record.task.score, 60)
    colour = look_of_model(record.model.name).colour
    best = [[record.best.epoch, "kept"]]
    scores = []
    if record.curves.get("validation"):
        scores.append(_series("validation", colour, 0, *thinned(record.curves["validation"])))
    if record.curves.get("test"):
        pairs = [
            pair
            for pair in record.curves["test"]
            if isinstance(pair, list | tuple) and len(pair) == 2
        ]
        if pairs:
            scores.append(
                _series(
                    "test (never selected on)",
                    colour,
                    1,
                    [p[0] for p in pairs],
                    [_finite(p[1]) for p in pairs],
                )
            )
    if scores:
        charts["validation"] = _chart("Score while training", "epoch", score, scores, marks=best)
    if record.curves.get("loss"):
        loss = _series("loss", colour, 0, *thinned(record.curves["loss"]))
        charts["loss"] = _chart("Training loss", "epoch", "loss", [loss], log=True, marks=best)
    for payload in diagnostics[:1]:  # further ones (damped iteration) are tables on the page
        charts.update(_continued(payload, score))
    for payload in studies:
        if payload.get("study") == "schedules" and "staleness" not in charts:
            charts.update(_staleness(payload))
    return charts


def _continued(payload: Mapping[str, Any], score: str) -> dict[str, dict[str, Any]]:
    continued = payload["continued"]
    horizon = [[continued["horizon"], "trained horizon"]]
    charts = {}
    for name, title, text, log, first in (
        (
            "update",
            "Residual under continued iteration",
            "largest relative change of a node",
            True,
            1,
        ),
        (
            "state_discrepancy",
            "Distance from where the default start ended",
            "largest relative difference of a node",
            True,
            0,
        ),
        ("score", "Score under continued iteration", score, False, 0),
    ):
        series = []
        for position, trajectory in enumerate(continued["trajectories"]):
            values = trajectory.get(name) or []
            look = SEED_LOOKS[position % len(SEED_LOOKS)]
            start = trajectory["start"]
            label = (
                "default start"
                if start == "default"
                else (f"random start, scale {clip(start, 20)}")
            )
            if values:
                series.append(_series(label, look.colour, position, *thinned(values, first)))
        if series:
            charts[name] = _chart(title, "iteration", text, series, log=log, marks=horizon)
    return charts


def _staleness(payload: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    series = []
    for position, condition in enumerate(payload["conditions"]):
        samples = [
            s
            for s in condition["trajectories"]
            if s["d_out"] and all(value is not None for value in s["d_out"])
        ]
        if samples:
            work, value = median_curve(samples)
            look = SEED_LOOKS[position % len(SEED_LOOKS)]
            y = [_finite(entry) for entry in value]
            series.append(_series(clip(condition["label"], 60), look.colour, position, work, y))
    title = "Distance from synchronous inference, by (update window, largest delay)"
    return (
        {"staleness": _chart(title, "work (updates per node)", "d_out, median", series, log=True)}
        if series
        else {}
    )


def _series(
    name: str, colour: str, dash: int, x: Sequence[float], y: Sequence[float | None]
) -> dict[str, Any]:
    return {
        "name": name,
        "colour": colour,
        "dash": _DASHES[dash % len(_DASHES)],
        "x": list(x),
        "y": list(y),
    }


def _chart(
    title: str,
    x: str,
    y: str,
    series: list[dict[str, Any]],
    *,
    log: bool = False,
    marks: Sequence[Any] = (),
) -> dict[str, Any]:
    return {"title": title, "x": x, "y": y, "log": log, "series": series, "marks": list(marks)}
