"""One picture and one curve: who is proved, and how the share proved falls with the radius."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sheafdeq.data.task import Split
    from sheafdeq.predictions.predictions import Predictions

__all__ = ["Shown", "draw_curve", "draw_graph", "prediction_figures", "redraw"]

COLOURS = {"proved": "#0072B2", "not proved": "#E69F00", "wrong": "#D55E00"}


def prediction_figures(
    payload: Mapping[str, Any], results: Sequence[Predictions], split: Split, record: Path
) -> list[Path]:
    """The picture of the first result, from the second on the curve, beside their record."""
    if len(results) > 1:
        path = record.with_name(f"{record.stem}-radius.png")
        draw_curve(payload, path)
    else:
        path = record.with_suffix(".png")
        facts = (payload["model"]["title"], payload["task"]["title"], payload["graph"])
        draw_graph(results[0], split, path, ", ".join(map(str, facts)))
    return [path]


@dataclass(frozen=True, eq=False)
class Shown:
    """What a picture shows of a result."""

    label: Tensor
    proved: Tensor
    radius: float


def redraw(payload: Mapping[str, Any], split: Split, folder: Path, name: str) -> list[Path]:
    """The pictures of a stored record again: the graph at its smallest radius, and the curve.

    ``split`` is the part of the task the record is about, on the same graph.
    """
    first = payload["predictions"][0]
    shown = Shown(torch.tensor(first["label"]), torch.tensor(first["is_proved"]), first["radius"])
    title = ", ".join((payload["model"]["title"], payload["task"]["title"], payload["graph"]))
    paths = [folder / f"{name}.png"]
    draw_graph(shown, split, paths[0], title)
    if sum(row["radius"] > 0 for row in payload["curve"]) > 1:
        paths.append(folder / f"{name}-radius.png")
        draw_curve(payload, paths[1])
    return paths


def draw_graph(result: Predictions | Shown, split: Split, path: Path, title: str) -> None:
    """Every node at its first two features: proved, not proved, or wrong (proved or not)."""
    import matplotlib.pyplot as plt
    from matplotlib.collections import LineCollection

    from sheafdeq.report.style import style

    graph = split.graph
    x = graph.x.double()
    places = x[:, :2] if x.shape[1] > 1 else x[:, :1].repeat(1, 2)
    right = result.label == split.target
    groups = {
        "proved": result.proved & right,
        "not proved": ~result.proved & right,
        "wrong": ~right,
    }
    with style():
        figure, axis = plt.subplots(figsize=(6.0, 5.4))
        ends = places[graph.edge_index.T].numpy()
        axis.add_collection(LineCollection(list(ends), colors="0.85", linewidths=0.15, zorder=0))
        for (name, chosen), marker in zip(groups.items(), ("o", "s", "X"), strict=True):
            points = places[chosen]
            label = f"{name} ({int(chosen.sum())})"
            if name == "wrong":
                label = f"wrong ({int(chosen.sum())}, {int((chosen & result.proved).sum())} proved)"
            axis.scatter(
                points[:, 0],
                points[:, 1],
                s=7 if name == "proved" else 22,
                c=COLOURS[name],
                marker=marker,
                linewidths=0,
                label=label,
                zorder=1 if name == "proved" else 2,
            )
        axis.set_xlabel("feature 1")
        axis.set_ylabel("feature 2")
        axis.set_title(f"{title}, radius {result.radius:g}")
        axis.legend(loc="upper right", fontsize=8)
        figure.savefig(path, dpi=110)  # thousands of edges: at 200 a picture has half a megabyte
        plt.close(figure)


def _with_gaps(radii: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """The points of a curve, broken where more than a decade between two radii was not tried."""
    points: list[tuple[float, float]] = []
    for radius, value in zip(radii, values, strict=True):
        if points and radius > 10.5 * points[-1][0]:
            points.append((radius, math.nan))
        points.append((radius, value))
    return [radius for radius, _ in points], [value for _, value in points]


def draw_curve(payload: Mapping[str, Any], path: Path) -> None:
    """Share proved (and right) against the radius; accuracy under attack beside it."""
    import matplotlib.pyplot as plt

    from sheafdeq.report.style import style

    rows = [row for row in payload["curve"] if row["radius"] > 0]
    radii = [row["radius"] for row in rows]
    with style():
        figure, axis = plt.subplots(figsize=(6.0, 3.6))
        axis.plot(
            *_with_gaps(radii, [100 * row["share"] for row in rows]),
            "o-",
            label="proved",
            color="#0072B2",
        )
        right = [100 * row["proved_right"] / max(1, row["nodes"]) for row in rows]
        axis.plot(*_with_gaps(radii, right), "s--", label="proved and right", color="#009E73")
        hit = [(row["radius"], 100 * row["attack"]["accuracy"]) for row in rows if "attack" in row]
        if hit:
            tried, kept = (list(column) for column in zip(*hit, strict=True))
            attacked = _with_gaps(tried, kept)
            axis.plot(*attacked, "X:", label="right under attack", color="#D55E00")
        axis.set_xscale("log")
        axis.set_ylim(-2, 102)
        axis.set_xlabel("radius of the feature noise (maximum norm)")
        axis.set_ylabel("% of the scored nodes")
        axis.set_title(f"{payload['model']['title']}, {payload['task']['title']}")
        axis.legend(fontsize=8)
        figure.savefig(path)
        plt.close(figure)
