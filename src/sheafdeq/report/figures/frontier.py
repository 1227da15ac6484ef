"""Accuracy against trust: test score against the residual after long iteration, with the verdict of
the certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sheafdeq.printable import mathtext
from sheafdeq.records import CERTIFICATE_SCHEMAS, DIAGNOSIS_SCHEMA, RunRecord, verdict_of
from sheafdeq.report.figures.picture import Drawing, file_stem, floor_of
from sheafdeq.report.figures.source import Source, model_rank
from sheafdeq.report.style import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FRONTIER_LEVEL",
    "frontier",
    "frontier_points",
    "frontiers",
]


FRONTIER_LEVEL = 10

_VERDICTS = {
    "certified": "o",
    "not certified": "s",
    "two candidates": "P",
    "refuted": "X",
    None: "d",
}


@dataclass(frozen=True)
class _Point:
    """One run: where it is after long iteration, what is proved about it, and how many starts agree
    with the default one."""

    text: str
    name: str
    residual: float
    score: float
    verdict: str | None
    agreeing: tuple[int, int] | None
    diagnosed: bool  # else residual and score come from the certificate and the run record


def frontiers(sources: Sequence[Source]) -> list[Drawing]:
    """Score against residual for every task with certificates, and for community level 10."""
    titles: dict[str, None] = {}
    for source in sources:
        if (
            source.schema == DIAGNOSIS_SCHEMA
            and source.payload["task"].get("level") == FRONTIER_LEVEL
        ):
            titles[source.payload["task"]["title"]] = None
        elif source.schema in CERTIFICATE_SCHEMAS and source.payload.get("run"):
            titles[source.payload["task"]] = None
    drawings = (frontier(sources, title) for title in sorted(titles))
    return [drawing for drawing in drawings if drawing is not None]


def frontier(sources: Sequence[Source], title: str) -> Drawing | None:
    """Test score at the end of continued iteration against the largest relative residual there;
    shapes tell the verdict."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    points, used = frontier_points(sources, title)
    if not points:
        return None
    figure, axis = plt.subplots(figsize=(8.6, 4.4))
    floor = floor_of([[point.residual for point in points]])
    axis.set_xscale("log")
    # sets the limits
    axis.plot(
        [max(point.residual, floor) for point in points],
        [point.score for point in points],
        linestyle="",
    )
    score = _score_of(used)
    scores = [point.score for point in points]
    percent = score.endswith("(%)") and min(scores) >= 0
    if percent:
        axis.set_yscale("function", functions=(_stretched, _unstretched))
        ticks = [0, 20, 40, 60, 80, 90, 95, 97, 98, 98.5, 99, 99.5, 100]
        low = max((tick for tick in ticks if tick <= min(scores)), default=0)
        high = min((tick for tick in ticks if tick >= max(scores)), default=100)
        shown = [tick for tick in ticks if low <= tick <= high]
        axis.set_yticks(shown, [f"{tick:g}" for tick in shown])
        axis.minorticks_off()
        bottom, top = float(_stretched(low)), float(_stretched(high))
        axis.set_ylim(
            *(
                float(_unstretched(limit))
                for limit in (bottom - 0.05 * (top - bottom) - 0.01, top + 0.03 * (top - bottom))
            )
        )
    else:
        axis.margins(y=0.15)
    left, right = axis.get_xlim()
    axis.set_xlim(left / 3, right * 3)
    axis.set_xlabel(
        "largest relative residual of a node, default start, after the recorded iterations"
    )
    axis.set_ylabel(
        f"test {mathtext(score)} at the end" + (", axis stretched towards 100" if percent else "")
    )
    _number_points(figure, axis, points, floor)
    present = [
        verdict for verdict in _VERDICTS if any(point.verdict == verdict for point in points)
    ]
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=_VERDICTS[verdict],
            color="0.35",
            label=verdict or "no certificate record",
        )
        for verdict in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    hollow = (
        ""
        if all(point.diagnosed for point in points)
        else (
            " Hollow: no diagnose record; test score at the trained horizon, residual where the "
            "certificate's own iteration came to rest "
            "(float64, one graph)."
        )
    )
    caption = (
        f"Accuracy against trust, {title}: one point a run (damped iteration of it another), test "
        "score against the largest "
        "relative residual after the recorded number of iterations from the default start "
        "(further left: closer to rest). "
        "Shape: verdict of the certificate on one test graph. In brackets: how many of the starts "
        "(scales 1e-3 to 1e3) end in "
        f"the state of the default start.{hollow}"
    )
    return Drawing(file_stem("frontier", title), figure, caption, tuple(used))


def _score_of(sources: Sequence[Source]) -> str:
    """Name of the task's score, from the first record that has one."""
    for source in sources:
        if source.run is not None:
            return source.run.task.score
        if source.schema == DIAGNOSIS_SCHEMA:
            return str(source.payload["task"]["score"])
    return "score"


def _stretched(score: Any) -> Any:
    import numpy

    return -numpy.log10(numpy.maximum(100.6 - numpy.asarray(score, dtype=float), 1e-9))


def _unstretched(value: Any) -> Any:
    import numpy

    return 100.6 - numpy.power(10.0, -numpy.asarray(value, dtype=float))


def frontier_points(sources: Sequence[Source], title: str) -> tuple[list[_Point], list[Source]]:
    """One point for each run of a task with a diagnose or a certificate record, and the records
    they come from."""
    runs = {source.run.id: source for source in sources if source.run is not None}
    certificates = {
        source.payload["run"]: source
        for source in sources
        if source.schema in CERTIFICATE_SCHEMAS
        and source.payload["task"] == title
        and source.payload.get("run")
    }
    # damped iteration of a run is a point of its own
    diagnosed: dict[tuple[str, float], Source] = {}
    for source in sources:
        payload = source.payload
        if source.schema != DIAGNOSIS_SCHEMA or payload["task"]["title"] != title:
            continue
        key = (payload["run"], payload.get("damping", 1.0))
        before = diagnosed.get(key)
        if (
            before is None
            or before.payload["continued"]["iterations"] < payload["continued"]["iterations"]
        ):
            diagnosed[key] = source
    # A certificate's own iteration (float64, one graph) is not comparable: it stands in only where
    # nothing else was measured.
    keys = set(diagnosed) or {(run, 1.0) for run in certificates}
    points: list[_Point] = []
    used: list[Source] = []
    shown: list[str] = []
    for run, damping in sorted(keys, key=lambda key: _frontier_rank(key, certificates, diagnosed)):
        certificate, diagnosis, record = (
            certificates.get(run),
            diagnosed.get((run, damping)),
            runs.get(run),
        )
        penalised = record is not None and _is_penalised(record.run)
        verdict = None if certificate is None else verdict_of(certificate.payload["certificate"])
        if diagnosis is not None:
            payload, continued = diagnosis.payload, diagnosis.payload["continued"]
            default = continued["trajectories"][0]
            residual, score = default["update"][-1], default["score"][-1]
            name, text = payload["model"]["name"], payload.get("label") or payload["model"]["title"]
            groups, starts = continued["agreement"]["groups"], continued["agreement"]["starts"]
            agreeing = (
                (len(next(group for group in groups if default["start"] in group)), len(starts))
                if len(starts) > 1
                else None
            )
        elif certificate is not None and record is not None and record.run is not None:
            residual = certificate.payload["certificate"]["observations"].get("residual")
            score, name, text = (
                record.run.scores.get("test"),
                record.run.model.name,
                record.run.model.title,
            )
            agreeing = None
        else:
            continue
        if residual is None or score is None or isinstance(residual, str):
            continue  # lost to infinity
        labelled = diagnosis is not None and bool(diagnosis.payload.get("label"))
        text += ", with penalties" if penalised and not labelled else ""
        points.append(_Point(text, name, residual, score, verdict, agreeing, diagnosis is not None))
        used += [source for source in (diagnosis, certificate, record) if source is not None]
        shown.append(run)
    texts = [point.text for point in points]
    for i, run in enumerate(shown):  # runs that would read the same are told apart by their number
        if texts.count(texts[i]) > 1:
            points[i] = replace(points[i], text=f"{texts[i]} {run[:8]}")
    return points, used


def _frontier_rank(
    key: tuple[str, float],
    certificates: dict[str, Source],
    diagnosed: dict[tuple[str, float], Source],
) -> tuple[Any, ...]:
    name = (
        diagnosed[key].payload["model"]["name"]
        if key in diagnosed
        else certificates[key[0]].payload["model"]
    )
    return (*model_rank(name), key)


def _is_penalised(record: RunRecord | None) -> bool:
    penalties = {} if record is None else record.config.get("penalties") or {}
    return any(bool(value) for key, value in penalties.items() if key.endswith("weight"))


def _number_points(figure: Figure, axis: Axes, points: Sequence[_Point], floor: float) -> None:
    """Markers where they belong, a number beside each, and the names in a list beside the axes.

    A number takes the nearest free place around its marker; only in a crowd does a short line lead
    to it.
    """
    from matplotlib.lines import Line2D

    to_axes = axis.transData + axis.transAxes.inverted()
    order = sorted(points, key=lambda point: (-point.score, point.residual))
    corners = [to_axes.transform((max(point.residual, floor), point.score)) for point in order]
    places = [(float(x), float(y)) for x, y in corners]
    taken = list(places)  # neither a marker nor another number may be covered
    handles = []
    for number, (point, (x, y)) in enumerate(zip(order, places, strict=True), 1):
        look = look_of(point.name)
        face = look.colour if point.diagnosed else "white"
        shape: dict[str, Any] = {
            "marker": _VERDICTS[point.verdict],
            "color": look.colour,
            "markerfacecolor": face,
            "linestyle": "",
        }
        axis.plot(
            [x], [y], markersize=6, alpha=0.85, transform=axis.transAxes, clip_on=False, **shape
        )
        spots = [
            (x + ring * math.cos(angle), y + 1.6 * ring * math.sin(angle), ring)
            for ring in (0.026, 0.045, 0.065, 0.085, 0.11, 0.14)
            for angle in (math.radians(turn) for turn in range(0, 360, 30))
        ]
        free = (
            spot
            for spot in spots
            if all(abs(spot[0] - a) > 0.021 or abs(spot[1] - b) > 0.042 for a, b in taken)
        )
        at = next(free, spots[0])
        taken.append(at[:2])
        thin: dict[str, Any] = {
            "arrowstyle": "-",
            "color": "0.5",
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 2,
        }
        line = thin if at[2] > 0.03 else None
        axis.annotate(
            str(number),
            (x, y),
            at[:2],
            xycoords="axes fraction",
            textcoords="axes fraction",
            ha="center",
            va="center",
            fontsize=7.5,
            fontweight="bold",
            arrowprops=line,
            annotation_clip=False,
        )
        agreeing = (
            "" if point.agreeing is None else (f" [{point.agreeing[0]} of {point.agreeing[1]}]")
        )
        handles.append(
            Line2D(
                [], [], markersize=6, label=mathtext(f"{number}  {point.text}{agreeing}"), **shape
            )
        )
    figure.legend(
        handles=handles, loc="outside right upper", frameon=False, fontsize=7, handletextpad=0.3
    )
