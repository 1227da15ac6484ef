"""The page: scene, films and the script that shows them, in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from sheafdeq.asynchronous.schedule import Schedule
from sheafdeq.errors import InputError
from sheafdeq.explorer.encode import (
    RESIDUAL_DECADES,
    RESIDUAL_FLOOR,
    linear_levels,
    packed,
    packed_over_time,
    residual_levels,
)
from sheafdeq.explorer.film import Actor, Film, Scene, film, film_late, key_frames
from sheafdeq.explorer.layout import layouts
from sheafdeq.report.site.environment import environment, script_json
from sheafdeq.report.site.words import clip

__all__ = ["LIMIT", "explore", "write_page"]

LIMIT = 4_900_000
"""Bytes of a page at most. Whole states and maps take what the colours of all frames leave."""

_STATE_FRAMES = (48, 32, 24, 16, 12, 8, 5, 3, 2, 1)
_MAP_FRAMES = (24, 16, 12, 8, 6, 4, 3, 2, 1)
_STATE_LEVELS, _MAP_LEVELS = 64, 31


def explore(
    scene: Scene,
    actors: Sequence[Actor],
    out: str | Path,
    *,
    iterations: int = 200,
    scale: float = 10.0,
    schedule: Schedule | None = None,
    back: str = "",
    limit: int = LIMIT,
) -> Path:
    """Film every actor from its default start, from a random start, and with late messages, and
    write the page."""
    films: list[Film] = []
    for actor in actors:
        films.append(film(scene, actor, iterations=iterations))
        if actor.exposed:
            films.append(film(scene, actor, iterations=iterations, scale=scale))
        if hasattr(actor.model, "local_step"):
            films.append(film_late(scene, actor, schedule, iterations=iterations))
    return write_page(scene, films, out, back=back, limit=limit)


def write_page(
    scene: Scene, films: Sequence[Film], out: str | Path, *, back: str = "", limit: int = LIMIT
) -> Path:
    """Write one self-contained page of at most ``limit`` bytes. ``back`` is the address of a page
    to return to."""
    if not films:
        raise InputError("no film to show: give at least one")
    frame = _render(scene, {"films": []}, back)
    data = _scene_data(scene)
    for coarse in (1, 2, 4, 8):  # where colours alone are too much, fewer of them
        data["films"] = [_film_data(shot, scene, coarse) for shot in films]
        room = limit - len(frame) - len(script_json(data))
        if room >= 0:
            break
    else:
        size = (limit - room) / 1e6
        raise InputError(
            f"{len(films)} films of {films[0].length} frames and {scene.graph.num_nodes} nodes "
            f"take {size:.1f} MB, more than "
            f"{limit / 1e6:.1f} MB: show fewer iterations"
        )
    for number, (shot, entry) in enumerate(zip(films, data["films"], strict=True)):
        share = room // (len(films) - number)  # what earlier films leave goes to the later ones
        room -= _add_states(shot, entry, share)
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_render(scene, data, back), encoding="utf-8")
    return path


# ---------------------------------------------------------------------- data


def _scene_data(scene: Scene) -> dict[str, Any]:
    graph = scene.graph
    n = graph.num_nodes
    source, target = graph.source.numpy(), graph.target.numpy()
    classes = (
        scene.target.numpy().astype(numpy.int64)
        if scene.target is not None and scene.classes is not None
        else None
    )
    places = layouts(
        source, target, n, classes, graph.x.double().numpy() if graph.x.shape[1] == 2 else None
    )
    index = numpy.uint16 if n <= 65536 else numpy.uint32
    data: dict[str, Any] = {
        "title": clip(scene.title, 200),
        "nodes": n,
        "edges": len(source),
        "wide": index is numpy.uint32,
        "source": packed(source.astype(index)),
        "target": packed(target.astype(index)),
        "layouts": [
            {"name": name, "points": packed(numpy.rint(points * 65535).astype(numpy.uint16))}
            for name, points in places.items()
        ],
        "classes": scene.classes,
        "classNames": [clip(name, 40) for name in scene.class_names],
        "score": clip(scene.score_name, 60),
        "residualFloor": RESIDUAL_FLOOR,
        "residualDecades": RESIDUAL_DECADES,
        "truth": None,
        "range": None,
    }
    if scene.target is not None:
        if scene.classes is not None:
            data["truth"] = packed(scene.target.numpy().astype(numpy.uint8))
        else:
            low, high = _range(scene.target.double().numpy())
            data["range"] = [low, high]
            data["truth"] = packed(linear_levels(scene.target.double().numpy(), low, high))
    return data


def _film_data(shot: Film, scene: Scene, coarse: int) -> dict[str, Any]:
    """The colours of all frames; residual and disagreement in steps of ``coarse`` of their 64
    levels."""
    if scene.classes is not None:
        prediction = shot.prediction.astype(numpy.uint8)
    else:
        known = scene.target.double().numpy() if scene.target is not None else shot.prediction
        prediction = linear_levels(shot.prediction, *_range(known))
    middle = numpy.median(shot.residual, axis=1)
    entry: dict[str, Any] = {
        "title": clip(shot.title, 160),
        "actor": clip(shot.actor, 120),
        "kind": shot.kind,
        "frames": shot.length,
        "horizon": shot.horizon,
        "note": clip(shot.note, 300),
        "score": shot.score,
        "largest": [float(f"{value:.3g}") for value in shot.residual.max(axis=1)]
        if shot.residual.size
        else [],
        "median": [float(f"{value:.3g}") for value in middle] if shot.residual.size else [],
        "prediction": packed_over_time(prediction),
        "residual": packed_over_time(_rounded(residual_levels(shot.residual), coarse)),
        "disagreement": packed_over_time(
            _rounded(linear_levels(shot.disagreement, 0.0, 1.0), coarse)
        ),
        "delays": None if shot.delays is None else packed(shot.delays),
        "shape": list(shot.shape),
        "states": None,
        "maps": None,
    }
    return entry


def _rounded(levels: NDArray[numpy.uint8], coarse: int) -> NDArray[numpy.uint8]:
    return (
        levels
        if coarse == 1
        else numpy.minimum(levels // coarse * coarse + coarse // 2, 63).astype(numpy.uint8)
    )


def _add_states(shot: Film, entry: dict[str, Any], share: int) -> int:
    """Whole states, then maps, for as many frames as fit into the share; returns what they take."""
    used = 0
    low, high = _range(shot.states[len(shot.states) // 2 :], 0.002)
    found = _as_many_as_fit(
        shot.frames,
        lambda chosen: linear_levels(shot.states[chosen], low, high, _STATE_LEVELS),
        _STATE_FRAMES,
        int((0.6 if shot.matrices else 1.0) * share),
    )
    if found is not None:
        frames, text = found
        entry["states"] = {
            "frames": frames,
            "low": low,
            "high": high,
            "levels": _STATE_LEVELS,
            "data": text,
        }
        used += len(text)
    if shot.matrices:
        size = float(numpy.quantile(numpy.abs(shot.matrices[-1]), 0.999)) or 1.0
        found = _as_many_as_fit(
            shot.frames,
            lambda chosen: linear_levels(
                numpy.stack([shot.matrices[place] for place in chosen]), -size, size, _MAP_LEVELS
            ),
            _MAP_FRAMES,
            share - used - 2000,
        )
        if found is not None:
            frames, text = found
            facts = {
                "size": size,
                "levels": _MAP_LEVELS,
                "dim": shot.matrices[0].shape[-1],
                "names": list(shot.matrix_names),
            }
            entry["maps"] = {**facts, "frames": frames, "data": text}
            used += len(text)
    return used


def _as_many_as_fit(
    frames: Sequence[int],
    levels_of: Callable[[list[int]], NDArray[numpy.uint8]],
    counts: Sequence[int],
    room: int,
) -> tuple[list[int], str] | None:
    """Frames and their text, for the largest count whose text fits; what one frame takes tells
    where to begin."""
    each = len(packed(levels_of([len(frames) - 1])))
    for count in counts:
        chosen = _subset(frames, count)
        if len(chosen) > 4 and each * len(chosen) > 6 * room:
            continue  # hopeless even if differences take a sixth of whole frames
        text = packed_over_time(levels_of(chosen))
        if len(text) <= room:
            return [frames[place] for place in chosen], text
        each = min(each, len(text) // len(chosen))
        if len(chosen) > 2 and each * 0.8 > room:
            return None
    return None


def _subset(frames: Sequence[int], count: int) -> list[int]:
    """Places of at most ``count`` of the kept frames; the first stays, and for more than one the
    last."""
    if count == 1:
        return [len(frames) - 1]
    return key_frames(len(frames), count) if len(frames) > count else list(range(len(frames)))


def _range(values: NDArray[Any], tail: float = 0.01) -> tuple[float, float]:
    """Low and high without the outermost tails, so that one large entry does not flatten all
    others."""
    if values.size == 0:
        return 0.0, 1.0
    low, high = (float(value) for value in numpy.quantile(values, (tail, 1 - tail)))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


# ---------------------------------------------------------------------- the file


def _asset(package: str, name: str) -> str:
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return (
        "'sha256-"
        + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        + "'"
    )


def _render(scene: Scene, data: dict[str, Any], back: str) -> str:
    """The template with style, script and data inside; the policy admits these two texts by their
    digests and nothing else."""
    from markupsafe import Markup

    made = environment()
    made.loader = _loader()
    style = (
        "\n"
        + _asset("sheafdeq.report.site", "site.css")
        + _asset("sheafdeq.explorer", "explorer.css")
    )
    script = (
        "\n"
        + _asset("sheafdeq.report.site", "chart.js")
        + _asset("sheafdeq.explorer", "explorer.js")
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return made.get_template("explorer.html").render(
        policy=policy,
        title=clip(scene.title, 200),
        back=back,
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json(data)),
    )


def _loader() -> Any:
    from jinja2 import PackageLoader

    return PackageLoader("sheafdeq.explorer")
