"""One figure ready to be written, and the pieces all figures share: names, floors, legends, looks.

A figure is a picture beside a JSON file with its caption, the command that makes it and the records
it read (with their SHA-256), so every curve has an origin.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.records import canonical_json, write_bytes
from sheafdeq.report.figures.source import Source, run_of
from sheafdeq.report.style import Look, look_of, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS",
    "Drawing",
    "accuracy_by_level",
    "file_stem",
    "floor_of",
    "graphs",
    "labelled",
    "legend_below",
    "letter",
    "plottable",
    "score_label",
    "write_drawings",
]


@dataclass(frozen=True)
class Drawing:
    """One figure, ready to be written."""

    name: str
    figure: Figure
    caption: str
    sources: tuple[Source, ...]


FORMATS = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
"""Kinds of picture, each with the metadata that would differ between two drawings of the same."""


def write_drawings(
    drawings: Sequence[Drawing],
    out: str | Path,
    command: str,
    formats: Sequence[str] = ("png",),
) -> list[Path]:
    """Each drawing in every format, and the JSON with caption, command and records; returns the
    paths."""
    import matplotlib.pyplot as plt

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in drawings:
        with style():
            for suffix in formats:
                path = folder / f"{drawing.name}.{suffix}"
                drawn = io.BytesIO()
                drawing.figure.savefig(drawn, format=suffix, metadata=FORMATS[suffix])
                write_bytes(path, drawn.getvalue())
                written.append(path)
        plt.close(drawing.figure)
        path = folder / f"{drawing.name}.json"
        facts = {
            "figure": drawing.name,
            "caption": drawing.caption,
            "command": command,
            "records": [
                {"file": str(s.path), "sha256": s.sha256, "run": run_of(s)} for s in drawing.sources
            ],
        }
        write_bytes(path, canonical_json(facts) + b"\n")
        written.append(path)
    return written


def labelled(group: Sequence[Source]) -> list[tuple[Source, str, Look]]:
    """Each record with its legend text and look; several records of one model keep its colour and
    are told apart by line."""
    counts: dict[str, int] = defaultdict(int)
    names = [source.payload["model"]["name"] for source in group]
    texts = []
    for source, name in zip(group, names, strict=True):
        text = source.payload.get("label") or source.payload["model"]["title"]
        if names.count(name) > 1 and not source.payload.get("label"):
            text += f", seed {source.payload['seed']}"
        texts.append(text)
    result = []
    for source, name, text in zip(group, names, texts, strict=True):
        several = texts.count(text) > 1 and source.payload.get("run")
        result.append(
            (
                source,
                f"{text} ({source.payload['run'][:8]})" if several else text,
                look_of(name, counts[name]),
            )
        )
        counts[name] += 1
    return result


def file_stem(kind: str, title: str) -> str:
    """Name of a figure's files: its kind, and what it is about in small letters."""
    return kind + "-" + "-".join("".join(c if c.isalnum() else " " for c in title).split()).lower()


def plottable(values: Sequence[float | None], *, floor: float | None = None) -> list[float]:
    """Nulls become gaps; on a logarithmic axis zeros are drawn at the floor."""
    shown = [math.nan if value is None else value for value in values]
    return (
        shown
        if floor is None
        else [max(value, floor) if value == value else value for value in shown]
    )


def floor_of(curves: Iterable[Sequence[float | None]]) -> float:
    """The smallest positive value of several curves: where zeros are drawn."""
    return min((value for curve in curves for value in curve if value), default=1e-12)


def letter(axes: Sequence[Axes]) -> None:
    """(a), (b), ... above the panels."""
    for letter, axis in zip("abcdefgh", axes, strict=False):
        axis.set_title(f"({letter})", loc="left", fontweight="bold")


def legend_below(figure: Figure, axis: Axes, columns: int = 3) -> None:
    """The legend of one panel below the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns, max(len(labels), 1)),
        frameon=False,
    )


def accuracy_by_level(axis: Axes, levels: Sequence[Any], *, below: float, columns: int) -> None:
    """Ticks, limits and a legend below a panel of test accuracies of the community task."""
    axis.set_xticks(range(len(levels)), [f"level {level}" for level in levels])
    axis.set_ylabel("test accuracy (%)")
    axis.set_ylim(30, 102)
    axis.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -below),
        ncols=columns,
        frameon=False,
        fontsize="small",
    )


def score_label(group: Sequence[Source]) -> str:
    """Which split, and the name of the task's score."""
    payload = group[0].payload
    return f"{payload['graph'].split('[')[0]} {payload['task']['score']}"


def graphs(group: Sequence[Source]) -> str:
    """Which graphs: one name, or one for each model where they differ."""
    names = [source.payload["graph"] for source in group]
    if len(set(names)) == 1:
        return f"graphs: {names[0]}"
    return "graphs: " + ", ".join(
        f"{text} {name}" for (_, text, _), name in zip(labelled(group), names, strict=True)
    )
