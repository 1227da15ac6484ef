"""Figures from records. Each is written as SVG, PDF and PNG beside a JSON file with its caption,
the command that makes it and the records it read (with their SHA-256), so every curve has an
origin.

Records read: ``*.json`` below the results folder, told apart by their ``schema``
(``sheafdeq.diagnostics/1``, ``sheafdeq.async/1``, ``sheafdeq.certificate/1`` and ``/2``), and run
records. Runs that became non-finite are in the records and are never part of a median.
"""

from __future__ import annotations

import hashlib
import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from sheafdeq.errors import RecordError
from sheafdeq.printable import mathtext
from sheafdeq.records import (
    RECORD_FILE,
    RunRecord,
    canonical_json,
    read_record,
    read_sealed,
    refuse_unreadable,
    write_bytes,
)
from sheafdeq.regular_file import files_below, read_regular
from sheafdeq.report.style import SEED_LOOKS, Look, look_of, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Drawing", "Source", "draw_all", "read_sources", "verdict_of", "write_drawings"]

DIAGNOSTICS, ASYNC, CERTIFICATE = (
    "sheafdeq.diagnostics/1",
    "sheafdeq.async/1",
    "sheafdeq.certificate/2",
)
CERTIFICATES = ("sheafdeq.certificate/1", CERTIFICATE)


@dataclass(frozen=True)
class Source:
    """One record file."""

    path: Path  # relative to the results folder
    sha256: str
    payload: dict[str, Any]
    run: RunRecord | None = None

    @property
    def schema(self) -> str:
        """Which kind of record this is."""
        return "run" if self.run is not None else str(self.payload.get("schema"))


@dataclass(frozen=True)
class Drawing:
    """One figure, ready to be written."""

    name: str
    figure: Figure
    caption: str
    sources: tuple[Source, ...]


def read_sources(results: str | Path, runs: Iterable[str | Path] = ()) -> list[Source]:
    """All records below ``results`` and the run records below ``runs``, in a fixed order; an
    altered record raises."""
    found: dict[Path, Source] = {}
    folders = [Path(results), *map(Path, runs)]
    for number, root in enumerate(folders):
        if number == 0 and len(folders) > 1 and not root.exists():
            continue  # training curves come from runs alone
        for path in files_below(root, ".json", refuse_unreadable):
            relative = path.relative_to(root)
            is_run = path.name == RECORD_FILE or path.name.endswith(".run.json")
            if is_run:
                source = Source(relative, _sha256(path), {}, read_record(path))
            elif number == 0 and relative.parts[0] in ("diagnostics", "async", "certificates"):
                payload = read_sealed(path)
                if not isinstance(payload, dict):
                    raise RecordError(f"{path}: not a record of a study")
                source = Source(relative, _sha256(path), payload)
            else:
                continue
            found.setdefault(path.resolve(), source)
    return list(found.values())


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error


def draw_all(sources: Sequence[Source], only: Sequence[str] | None = None) -> list[Drawing]:
    """Every figure the records allow, or those of the kinds in ``only``.

    A sealed record that lacks what its schema promises is a :class:`RecordError`.
    """
    try:
        return _draw_all(sources, only)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        StopIteration,
        OverflowError,
    ) as error:
        others = sorted({str(source.path) for source in sources if source.run is None})
        raise RecordError(
            f"a record does not have the shape of its schema ({type(error).__name__}: {error}); "
            f"one of {len(others)}: " + ", ".join(others[:12])
        ) from error


def _draw_all(sources: Sequence[Source], only: Sequence[str] | None) -> list[Drawing]:
    drawings: list[Drawing] = []

    def wanted(kind: str) -> bool:
        return only is None or kind in only

    with style():
        for (_, title), group in _by_task(sources, DIAGNOSTICS).items():
            for kind, draw in (
                ("continued", continued_short),
                ("continued-full", continued_full),
                ("settling", settling),
            ):
                if wanted(kind):
                    drawings.append(draw(group, title))
        for (_, title), group in _by_task(sources, ASYNC).items():
            for study, kind, draw in (
                ("schedules", "async", trajectories),
                ("tau-sweep", "tau-sweep", tau_sweep),
                ("faults", "faults", faults),
            ):
                chosen = [source for source in group if source.payload["study"] == study]
                if chosen and wanted(kind):
                    drawings.append(draw(chosen, title))
        if wanted("frontier"):
            drawings += frontiers(sources)
        if wanted("training"):
            drawings += training_variability(sources)
    return drawings


def write_drawings(drawings: Sequence[Drawing], out: str | Path, command: str) -> list[Path]:
    """SVG, PDF, PNG and the JSON with caption, command and records; returns the paths."""
    import matplotlib.pyplot as plt

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for drawing in drawings:
        with style():
            for suffix, metadata in (
                ("svg", {"Date": None}),
                ("pdf", {"CreationDate": None}),
                ("png", {"Software": None}),
            ):
                path = folder / f"{drawing.name}.{suffix}"
                drawn = io.BytesIO()
                drawing.figure.savefig(drawn, format=suffix, metadata=metadata)
                write_bytes(path, drawn.getvalue())
                written.append(path)
        plt.close(drawing.figure)
        path = folder / f"{drawing.name}.json"
        facts = {
            "figure": drawing.name,
            "caption": drawing.caption,
            "command": command,
            "records": [
                {"file": str(s.path), "sha256": s.sha256, "run": _run_of(s)}
                for s in drawing.sources
            ],
        }
        write_bytes(path, canonical_json(facts) + b"\n")
        written.append(path)
    return written


def _run_of(source: Source) -> str | None:
    return source.run.id if source.run is not None else source.payload.get("run")


# ---------------------------------------------------------------------- common pieces


def _by_task(sources: Sequence[Source], schema: str) -> dict[tuple[str, str], list[Source]]:
    """Records of one schema, grouped by task; inside a group in the order models are always shown
    in."""
    groups: dict[tuple[str, str], list[Source]] = defaultdict(list)
    for source in sources:
        if source.schema == schema:
            task = source.payload["task"]
            groups[(task["name"], task["title"])].append(source)
    for group in groups.values():
        group.sort(
            key=lambda s: (
                _rank(s.payload["model"]["name"]),
                s.payload.get("label") or "",
                str(s.path),
            )
        )
    return dict(sorted(groups.items()))


_ORDER = (
    "sheafdeq",
    "sheafdeq-no-norm",
    "sheaf-cascade",
    "strong-sheaf",
    "loop-transformer",
    "graph-attn-deq",
    "ignn",
    "eignn",
)


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _labelled(group: Sequence[Source]) -> list[tuple[Source, str, Look]]:
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


def _file_stem(kind: str, title: str) -> str:
    return kind + "-" + "-".join("".join(c if c.isalnum() else " " for c in title).split()).lower()


def _plottable(values: Sequence[float | None], *, floor: float | None = None) -> list[float]:
    """Nulls become gaps; on a logarithmic axis zeros are drawn at the floor."""
    shown = [math.nan if value is None else value for value in values]
    return (
        shown
        if floor is None
        else [max(value, floor) if value == value else value for value in shown]
    )


def _floor(curves: Iterable[Sequence[float | None]]) -> float:
    """The smallest positive value of several curves: where zeros are drawn."""
    return min((value for curve in curves for value in curve if value), default=1e-12)


def _letter(axes: Sequence[Axes]) -> None:
    for letter, axis in zip("abcdefgh", axes, strict=False):
        axis.set_title(f"({letter})", loc="left", fontweight="bold")


def _legend_below(figure: Figure, axis: Axes, columns: int = 3) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns, max(len(labels), 1)),
        frameon=False,
    )


def _counted(group: Sequence[Source]) -> str:
    left_out = sum(
        len(source.payload["continued"]["trajectories"]) - source.payload["continued"]["counted"]
        for source in group
    )
    return f" {left_out} non-finite starts are left out of the medians." if left_out else ""


# ---------------------------------------------------------------------- continued iteration

_PANELS = {
    "update": "relative update",
    "state_discrepancy": "state discrepancy",
    "prediction_discrepancy": "prediction discrepancy",
}


def continued_short(group: Sequence[Source], title: str) -> Drawing:
    """Two panels: relative update, and score under continued recurrence."""
    return _continued(group, title, ("update", "score"), "continued")


def continued_full(group: Sequence[Source], title: str) -> Drawing:
    """Four panels: update, state and prediction discrepancy, score."""
    return _continued(
        group,
        title,
        ("update", "state_discrepancy", "prediction_discrepancy", "score"),
        "continued-full",
    )


def _continued(group: Sequence[Source], title: str, panels: Sequence[str], kind: str) -> Drawing:
    import matplotlib.pyplot as plt

    rows = 1 if len(panels) == 2 else 2
    figure, grid = plt.subplots(rows, 2, figsize=(7.2, 3.1 * rows), squeeze=False)
    axes = list(grid.flat)
    for axis, panel in zip(axes, panels, strict=True):
        _continued_panel(axis, group, panel)
    _letter(axes)
    _legend_below(figure, axes[0])
    last = max(source.payload["continued"]["iterations"] for source in group)
    graph = _graphs(group)
    caption = (
        f"Continued iteration, {title} ({graph}): medians over the starts with interquartile "
        "bands, reference: the "
        "default start "
        f"after {last} iterations (not assumed to be an equilibrium). Models whose state is not "
        "exposed are judged by the "
        "updates of "
        "their outputs from their own start, without band. Dashed lines mark trained horizons. "
        "Zeros are drawn at the smallest "
        f"positive value.{_long_text(group)}{_counted(group)}"
    )
    return Drawing(_file_stem(kind, title), figure, caption, tuple(group))


def _long_text(group: Sequence[Source]) -> str:
    common = _common_length(group)
    return (
        "" if common is None else (f" Beyond {common} iterations (shaded) the axis is logarithmic.")
    )


def _continued_panel(axis: Axes, group: Sequence[Source], panel: str) -> None:
    logarithmic = panel != "score"
    curves = [source.payload["continued"]["bands"][panel] for source in group]
    floor = _floor(curve["median"] for curve in curves) if logarithmic else None
    for (source, label, look), curve in zip(_labelled(group), curves, strict=True):
        middle = _plottable(curve["median"], floor=floor)
        if not middle:
            axis.plot([], [], label=mathtext(label), **look.options())
            continue
        first = 1 if panel == "update" else 0  # the update from k to k + 1 is drawn at k + 1
        k = range(first, first + len(middle))
        axis.plot(k, middle, label=mathtext(label), **look.options(points=len(middle)))
        if source.payload["continued"]["counted"] > 1:
            lower, upper = (_plottable(curve[name], floor=floor) for name in ("lower", "upper"))
            axis.fill_between(k, lower, upper, color=look.colour, alpha=0.18, linewidth=0)
    _shorten_long_runs(axis, group)
    _mark_horizons(axis, sorted({source.payload["continued"]["horizon"] for source in group}))
    axis.set_xlabel("iteration")
    if logarithmic:
        axis.set_yscale("log")
        axis.set_ylabel(f"{_PANELS[panel]} (median)")
    else:
        axis.set_ylabel(mathtext(_score_label(group)))


def _common_length(group: Sequence[Source]) -> int | None:
    """The length most runs have, where one is so much longer that it would squeeze the others; else
    None."""
    lengths = sorted(source.payload["continued"]["iterations"] for source in group)
    common = int(median(lengths))
    return common if lengths[-1] > 1.5 * common else None


def _shorten_long_runs(axis: Axes, group: Sequence[Source]) -> None:
    """Linear up to the common length, logarithmic beyond it, so that one long run takes a quarter
    of the axis at most."""
    common = _common_length(group)
    if common is None:
        return
    longest = max(source.payload["continued"]["iterations"] for source in group)
    decades = math.log10(longest / common)
    axis.set_xscale("symlog", linthresh=common, linscale=3 * decades)
    axis.set_xlim(-0.02 * common, longest * 1.03)
    ticks = [round(common * part / 4) for part in range(5)]
    doubled = common * 2
    while doubled < longest * 0.75:
        ticks.append(doubled)
        doubled *= 2
    axis.set_xticks([*ticks, longest], [str(tick) for tick in [*ticks, longest]])
    axis.minorticks_off()
    axis.axvspan(common, longest * 1.03, color="0.5", alpha=0.06, linewidth=0)


def _mark_horizons(axis: Axes, horizons: Sequence[int]) -> None:
    """Dashed lines; numbers above them, those that would overprint one another in one text."""
    to_axes = axis.transData + axis.transAxes.inverted()
    groups: list[list[tuple[float, int]]] = []
    for horizon in horizons:
        axis.axvline(horizon, color="0.4", linestyle="--", linewidth=0.8)
        place = float(to_axes.transform((horizon, axis.get_ylim()[1]))[0])
        if groups and place - groups[-1][-1][0] < 0.09:
            groups[-1].append((place, horizon))
        else:
            groups.append([(place, horizon)])
    for members in groups:
        middle = sum(place for place, _ in members) / len(members)
        text = ", ".join(str(horizon) for _, horizon in members)
        axis.text(
            middle,
            1.0,
            text,
            transform=axis.transAxes,
            ha="center",
            va="bottom",
            fontsize=7,
            color="0.3",
        )


def _score_label(group: Sequence[Source]) -> str:
    payload = group[0].payload
    return f"{payload['graph'].split('[')[0]} {payload['task']['score']}"


def settling(group: Sequence[Source], title: str) -> Drawing:
    """How many nodes came to rest when, from the default start."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    longest = max(source.payload["continued"]["iterations"] for source in group)
    for source, label, look in _labelled(group):
        result = source.payload["continued"]["trajectories"][0]["settling"]
        nodes = sum(result["counts"]) + result["unsettled"]
        share = [100 * count / max(nodes, 1) for count in accumulate(result["counts"])]
        # a node at rest from the start counts as settled at 1: the axis is logarithmic
        rest, end = share[1:] or share, len(share)
        middle = (
            "more than half never" if result["median"] is None else (f"median {result['median']}")
        )
        axis.step(
            range(1, len(rest) + 1),
            rest,
            where="post",
            label=mathtext(f"{label}: {middle}"),
            color=look.colour,
            linestyle=look.line,
        )
        axis.plot([end], rest[-1:], look.marker, color=look.colour, markersize=6, clip_on=False)
    axis.set_xscale("log")
    axis.set_xlim(1, longest * 1.15)
    axis.set_ylim(-2, 102)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if tick <= longest]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("iteration; the marker stands where the run ends")
    axis.set_ylabel("nodes at rest for good (%)")
    _legend_below(figure, axis, columns=2)
    tolerance = group[0].payload["continued"]["trajectories"][0]["settling"]["tolerance"]
    caption = (
        f"Settling times, {title}: the share of nodes whose row changes by at most {tolerance:g} "
        "(relative) from this iteration to the "
        "end, from the default start. What is missing to 100 % at the marker was still moving in "
        "the last iteration; the rise "
        "in a run's very last iterations counts nodes that had no time left to move again."
    )
    return Drawing(_file_stem("settling", title), figure, caption, tuple(group))


# ---------------------------------------------------------------------- bounded staleness


def _graphs(group: Sequence[Source]) -> str:
    """Which graphs: one name, or one for each model where they differ."""
    names = [source.payload["graph"] for source in group]
    if len(set(names)) == 1:
        return f"graphs: {names[0]}"
    return "graphs: " + ", ".join(
        f"{text} {name}" for (_, text, _), name in zip(_labelled(group), names, strict=True)
    )


def _conditions(group: Sequence[Source]) -> list[str]:
    labels: list[str] = []
    for source in group:
        labels += [c["label"] for c in source.payload["conditions"] if c["label"] not in labels]
    return labels


def _condition(source: Source, label: str) -> dict[str, Any] | None:
    return next((c for c in source.payload["conditions"] if c["label"] == label), None)


def median_curve(samples: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Median over samples of their i-th recorded point; a run that became stationary keeps its last
    value."""
    length = max(len(sample["work"]) for sample in samples)
    work, value = [], []
    for i in range(length):
        reached = [sample for sample in samples if len(sample["work"]) > i]
        work.append(median(sample["work"][i] for sample in reached))
        value.append(
            median(sample["d_out"][min(i, len(sample["d_out"]) - 1)] for sample in samples)
        )
    return work, value


def trajectories(group: Sequence[Source], title: str) -> Drawing:
    """d_out against work: one panel for each condition, thin curves for schedules, thick for their
    median."""
    import matplotlib.pyplot as plt

    labels = _conditions(group)
    columns = min(len(labels), 4)
    rows = -(-len(labels) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(2.3 * columns, 4.0) + 0.6, 2.9 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    floor = _floor(
        sample["d_out"]
        for source in group
        for condition in source.payload["conditions"]
        for sample in condition["trajectories"]
    )
    for axis, label in zip(grid.flat, labels, strict=False):
        for source, text, look in _labelled(group):
            condition = _condition(source, label)
            samples = (
                [] if condition is None else [s for s in condition["trajectories"] if _counts(s)]
            )
            if not samples:
                axis.plot([], [], label=mathtext(text), **look.options())
                continue
            for sample in samples:
                axis.plot(
                    sample["work"],
                    _plottable(sample["d_out"], floor=floor),
                    color=look.colour,
                    linewidth=0.5,
                    alpha=0.35,
                )
            work, value = median_curve(samples)
            axis.plot(
                work,
                _plottable(value, floor=floor),
                label=mathtext(text),
                **{**look.options(points=len(work)), "linewidth": 2.0},
            )
        axis.set_title(rf"$(s_\mathrm{{upd}}, \tau_\max)$ = {mathtext(label)}", fontsize=8)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_yscale("log")
        axis.set_xlabel("work (updates per node)")
    for axis in list(grid.flat)[len(labels) :]:
        axis.set_visible(False)
    for axis in grid[:, 0]:
        axis.set_ylabel(r"$d_\mathrm{out}$ from the reference")
    _legend_below(figure, grid.flat[0])
    caption = (
        f"Asynchronous inference, {title} ({group[0].payload['graph']}): relative Frobenius "
        "discrepancy of the outputs from the "
        "synchronous "
        "reference against mean updates per node. Thin: sampled schedules; thick: their median; "
        "points at observed work, "
        "not interpolated; a curve ends where its run no longer changes. "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(_file_stem("async", title), figure, caption, tuple(group))


def _counts(sample: dict[str, Any]) -> bool:
    return sample["status"] not in ("non-finite", "diverged") and all(
        value is not None for value in sample["d_out"]
    )


def _reference_text(group: Sequence[Source]) -> str:
    parts = []
    for source, text, _ in _labelled(group):
        reference = source.payload["reference"]
        residual = "-" if reference["residual"] is None else f"{reference['residual']:.1e}"
        parts.append(
            f"{text}: {reference['steps']} iterations, {reference['status']}, residual {residual}"
        )
    return "References: " + "; ".join(parts) + "."


def _work_text(group: Sequence[Source]) -> str:
    """One number of updates for all, or each model's own."""
    works = {text: source.payload["work"] for source, text, _ in _labelled(group)}
    if len(set(works.values())) == 1:
        return f"{next(iter(works.values())):g} mean updates per node"
    return "mean updates per node of " + ", ".join(
        f"{work:g} ({text})" for text, work in works.items()
    )


def _zeros_text(group: Sequence[Source]) -> str:
    """A logarithmic axis has no zero, and the synchronous control of a finite-horizon model is
    exactly there."""
    medians = (
        c["d_out"]["median"]
        for source in group
        for c in source.payload["conditions"]
        if c["d_out"] is not None
    )
    return (
        " Exact zeros are drawn at the smallest positive value."
        if any(median == 0 for median in medians)
        else ""
    )


def _left_out(group: Sequence[Source]) -> str:
    count = sum(
        c["samples"] - c["counted"] for source in group for c in source.payload["conditions"]
    )
    return f" {count} runs that diverged or became non-finite are left out." if count else ""


def tau_sweep(group: Sequence[Source], title: str) -> Drawing:
    """d_out and score against the largest delay."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
    delays = sorted({c["max_delay"] for source in group for c in source.payload["conditions"]})
    ticks = [math.log2(1 + delay) for delay in delays]
    floor = _floor(
        [c["d_out"][key] for key in ("min", "median")]
        for s in group
        for c in s.payload["conditions"]
        if c["d_out"]
    )
    for source, text, look in _labelled(group):
        for axis, key in ((left, "d_out"), (right, "score")):
            conditions = [c for c in source.payload["conditions"] if c[key] is not None]
            x = [math.log2(1 + c["max_delay"]) for c in conditions]
            low, middle, high = (
                _plottable(
                    [c[key][name] for c in conditions], floor=floor if key == "d_out" else None
                )
                for name in ("min", "median", "max")
            )
            axis.plot(x, middle, label=mathtext(text), **look.options(every=1))
            axis.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    for axis in (left, right):
        axis.set_xticks(ticks, [str(delay) for delay in delays])
        axis.set_xlabel(r"largest delay $\tau_\max$ (slots)")
    left.set_yscale("log")
    left.set_ylabel(r"$d_\mathrm{out}$ from the reference")
    right.set_ylabel(mathtext(_score_label(group)))
    _letter([left, right])
    _legend_below(figure, left)
    caption = (
        f"Sweep over the largest delay, {title} ({group[0].payload['graph']}), every node "
        "updating in every slot: median and "
        "range over "
        f"sampled schedules after {_work_text(group)} (finite-horizon models: their own number of "
        "loops). "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(_file_stem("tau-sweep", title), figure, caption, tuple(group))


def faults(group: Sequence[Source], title: str) -> Drawing:
    """d_out under loss, duplication, reordering and sleep."""
    import matplotlib.pyplot as plt

    labels = _conditions(group)
    shown = _labelled(group)
    figure, axis = plt.subplots(figsize=(7.2, 1.2 + 0.38 * len(labels)))
    floor = _floor(
        [c["d_out"]["min"]] for s in group for c in s.payload["conditions"] if c["d_out"]
    )
    for position, (source, text, look) in enumerate(shown):
        offset = 0.7 * ((position + 0.5) / len(shown) - 0.5)
        for row, label in enumerate(labels):
            condition = _condition(source, label)
            if condition is None or condition["d_out"] is None:
                continue
            low, middle, high = (
                max(condition["d_out"][name], floor) for name in ("min", "median", "max")
            )
            y = row + offset
            axis.plot([low, high], [y, y], color=look.colour, linewidth=1.2)
            axis.plot(
                [middle],
                [y],
                look.marker,
                color=look.colour,
                markersize=5,
                label=mathtext(text) if row == 0 else None,
            )
    axis.set_yticks(range(len(labels)), [_fault_text(group, label) for label in labels])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel(r"$d_\mathrm{out}$ from the reference (median and range)")
    _legend_below(figure, axis)
    caption = (
        f"Unreliable communication, {title} ({group[0].payload['graph']}), update window and "
        "delay (5, 2): median and range of "
        "d_out over "
        "sampled schedules; in brackets the largest staleness that was observed, in slots. "
        f"{_reference_text(group)}{_zeros_text(group)}{_left_out(group)}"
    )
    return Drawing(_file_stem("faults", title), figure, caption, tuple(group))


def _fault_text(group: Sequence[Source], label: str) -> str:
    found = [c for source in group if (c := _condition(source, label)) is not None]
    worst = max(c["staleness"]["max"] for c in found)
    text = mathtext(label).removeprefix("(5, 2)").removeprefix(", ")
    return "\n".join(textwrap.wrap(f"{text or 'independent delays'} [{worst}]", width=34))


# ---------------------------------------------------------------------- accuracy against trust

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
        if source.schema == DIAGNOSTICS and source.payload["task"].get("level") == FRONTIER_LEVEL:
            titles[source.payload["task"]["title"]] = None
        elif source.schema in CERTIFICATES and source.payload.get("run"):
            titles[source.payload["task"]] = None
    drawings = (frontier(sources, title) for title in sorted(titles))
    return [drawing for drawing in drawings if drawing is not None]


def frontier(sources: Sequence[Source], title: str) -> Drawing | None:
    """Test score at the end of continued iteration against the largest relative residual there;
    shapes tell the verdict."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    points, used = _frontier_points(sources, title)
    if not points:
        return None
    figure, axis = plt.subplots(figsize=(8.6, 4.4))
    floor = _floor([[point.residual for point in points]])
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
    return Drawing(_file_stem("frontier", title), figure, caption, tuple(used))


def _score_of(sources: Sequence[Source]) -> str:
    """Name of the task's score, from the first record that has one."""
    for source in sources:
        if source.run is not None:
            return source.run.task.score
        if source.schema == DIAGNOSTICS:
            return str(source.payload["task"]["score"])
    return "score"


def _stretched(score: Any) -> Any:
    import numpy

    return -numpy.log10(numpy.maximum(100.6 - numpy.asarray(score, dtype=float), 1e-9))


def _unstretched(value: Any) -> Any:
    import numpy

    return 100.6 - numpy.power(10.0, -numpy.asarray(value, dtype=float))


def verdict_of(certificate: dict[str, Any]) -> str:
    """Records of the first scheme called two states refuted without a proof; they are two
    candidates."""
    witness = certificate.get("witness")
    unproved = witness is not None and not witness["proved"]
    return (
        "two candidates"
        if certificate["verdict"] == "refuted" and unproved
        else certificate["verdict"]
    )


def _frontier_points(sources: Sequence[Source], title: str) -> tuple[list[_Point], list[Source]]:
    """One point for each run of a task with a diagnose or a certificate record, and the records
    they come from."""
    runs = {source.run.id: source for source in sources if source.run is not None}
    certificates = {
        source.payload["run"]: source
        for source in sources
        if source.schema in CERTIFICATES
        and source.payload["task"] == title
        and source.payload.get("run")
    }
    # damped iteration of a run is a point of its own
    diagnosed: dict[tuple[str, float], Source] = {}
    for source in sources:
        payload = source.payload
        if source.schema != DIAGNOSTICS or payload["task"]["title"] != title:
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
    return (*_rank(name), key)


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


# ---------------------------------------------------------------------- training variability


def training_variability(sources: Sequence[Source]) -> list[Drawing]:
    """Validation and test curves of every configuration that was trained from at least two seeds
    with test curves."""
    groups: dict[tuple[str, str, bytes], list[Source]] = defaultdict(list)
    for source in sources:
        if (
            source.run is not None
            and source.run.curves.get("test")
            and len(source.run.curves["test"]) > 1
        ):
            record = source.run
            groups[
                (record.task.title, record.model.name, canonical_json(record.model.options))
            ].append(source)
    drawings, used = [], set()
    for (title, name, _), group in sorted(groups.items()):
        if len({source.run.seed for source in group if source.run is not None}) < 2:
            continue
        stem = _file_stem("training", f"{title} {name}")
        while stem in used:
            stem += "-b"
        used.add(stem)
        drawings.append(_training(group, title, stem))
    return drawings


def _training(group: Sequence[Source], title: str, stem: str) -> Drawing:
    import matplotlib.pyplot as plt

    records = sorted(
        (source.run for source in group if source.run is not None), key=lambda record: record.seed
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), sharex=True, sharey=True)
    for i, record in enumerate(records):
        look = SEED_LOOKS[i % len(SEED_LOOKS)]
        validation = _plottable(record.curves["validation"])
        epochs, test = zip(*record.curves["test"], strict=True)
        text = f"seed {record.seed}"
        left.plot(
            range(len(validation)),
            validation,
            label=text,
            **look.options(points=len(validation)),
            linewidth=1.0,
        )
        right.plot(
            epochs, _plottable(test), label=text, **look.options(points=len(epochs)), linewidth=1.0
        )
        for axis in (left, right):
            axis.axvline(record.best.epoch, color=look.colour, linestyle=(0, (4, 3)), linewidth=0.8)
    score = records[0].task.score
    left.set_ylabel(f"validation {mathtext(score)}")
    right.set_ylabel(f"test {mathtext(score)}")
    for axis in (left, right):
        axis.set_xlabel("epoch")
        axis.tick_params(labelleft=True)
    _letter([left, right])
    _legend_below(figure, left, columns=6)
    options = ", ".join(f"{key} {value}" for key, value in sorted(records[0].model.options.items()))
    caption = (
        f"Training variability, {records[0].model.title} ({options}), {title}: (a) validation and "
        "(b) test scores while "
        "training from "
        f"{len(records)} seeds. Vertical dashed lines mark the epoch of the best validation "
        "score, which is the checkpoint that "
        "is used."
    )
    return Drawing(stem, figure, caption, tuple(group))


def check_sources(sources: Sequence[Source]) -> None:
    """Nothing to draw is an error with a remedy, not an empty folder."""
    if not sources:
        raise RecordError(
            "no records found: make some with `sheafdeq diagnose RUN --out results/diagnostics`"
        )
