"""Every task by name: ``load_task("community", level=7)``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import resources
from typing import Any, get_type_hints

from sheafdeq.data.benchmark_sets import GRAPH_SETS, NODE_SETS
from sheafdeq.data.benchmarks import graph_task, node_task
from sheafdeq.data.chains import counting, sums
from sheafdeq.data.community import community
from sheafdeq.data.coordinates import coordinates
from sheafdeq.data.task import Task
from sheafdeq.data.terrain import mnist_terrain, mnist_terrain_standin
from sheafdeq.errors import InputError, OptionError
from sheafdeq.options import SEED, Limits, OptionType, check_options, option_types, unknown_name

__all__ = ["TaskEntry", "entries", "load_task", "recorded_digests", "task_names"]


@dataclass(frozen=True)
class TaskEntry:
    """What a listing says of a task before it is loaded."""

    name: str
    kind: str
    nodes: int
    stored_edges: int
    graphs: int
    licence: str
    summary: str
    build: Callable[..., Task]
    files: bool = False  # needs files from the data root
    # numbers a generator would hold, from its options
    work: Callable[[Mapping[str, Any]], float] | None = None

    @cached_property
    def types(self) -> dict[str, OptionType]:
        """The values every option takes, from the builder's annotations."""
        builder = self.build.func if isinstance(self.build, partial) else self.build
        return option_types(get_type_hints(builder), self.options, _LIMITS)

    @property
    def options(self) -> dict[str, Any]:
        """Option names with their defaults."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.build).parameters.items()
            if name not in ("root", "download")
        }


GENERATED = "none needed (generated)"
_LIMITS = {
    "seed": SEED,
    "mask_seed": SEED,
    "train_seeds": SEED,
    "test_seeds": SEED,
    "k": Limits(1, 1000),
    **{
        name: Limits(1, 10**6)
        for name in ("nodes", "chains", "length", "graphs", "images", "pixels")
    },
}
_LARGEST_WORK = 2**28

_ENTRIES: dict[str, TaskEntry] = {
    entry.name: entry
    for entry in [
        TaskEntry(
            "community",
            "node classification",
            13_500,
            130_780,
            9,
            GENERATED,
            "three communities, levels 0 (separate) to 10 (every edge crosses)",
            community,
            work=lambda o: (
                o["nodes"] * (o["k"] + 8) * (len(o["train_seeds"]) + len(o["test_seeds"]))
            ),
        ),
        TaskEntry(
            "counting",
            "node regression",
            1_275,
            2_450,
            50,
            GENERATED,
            "chains of 1 to 50 nodes, each node tells the length of its chain",
            counting,
            work=lambda o: 4 * o["chains"] ** (3 if o["features"] == "one-hot" else 2),
        ),
        TaskEntry(
            "sums",
            "node regression",
            100_000,
            196_000,
            2_000,
            GENERATED,
            "chains of 50 random bits, each node tells the sum over its chain",
            sums,
            work=lambda o: 8 * o["chains"] * o["length"],
        ),
        TaskEntry(
            "coordinates",
            "localisation",
            30_000,
            221_818,
            1_500,
            GENERATED,
            "positions in the square from the distances to six neighbours",
            coordinates,
            work=lambda o: o["graphs"] * o["nodes"] * max(o["nodes"], o["k"] + 8),
        ),
        TaskEntry(
            "mnist-terrain",
            "node classification",
            147_800,
            565_838,
            14_780,
            "none stated (MNIST database)",
            "ten pixels of an image agree whether it is a 0 or a 1",
            mnist_terrain,
            files=True,
        ),
        TaskEntry(
            "mnist-terrain-standin",
            "node classification",
            600,
            2_276,
            60,
            GENERATED,
            "rings and bars in place of MNIST, for tests and demonstrations",
            mnist_terrain_standin,
            work=lambda o: o["images"] * max(1024, o["pixels"] ** 2),
        ),
        *(
            TaskEntry(
                source.name,
                kind,
                source.nodes,
                source.stored_edges,
                source.graphs,
                source.licence,
                source.summary,
                partial(build, source),
                files=True,
            )
            for sources, kind, build in (
                (NODE_SETS, "node classification", node_task),
                (GRAPH_SETS, "graph classification", graph_task),
            )
            for source in sources.values()
        ),
    ]
}


@cache
def recorded_digests() -> dict[str, str]:
    """SHA-256 of every default task by its title; those of community tasks need a processor with
    AVX2.

    ``torch.randn`` rounds differently without AVX2 instructions, and the features of community
    graphs come from it.
    """
    text = resources.files("sheafdeq.data").joinpath("digests.json").read_text(encoding="utf-8")
    result: dict[str, str] = json.loads(text)
    return result


def entries() -> list[TaskEntry]:
    """All entries, in listing order."""
    return list(_ENTRIES.values())


def task_names() -> list[str]:
    """All names that :func:`load_task` knows, in listing order."""
    return list(_ENTRIES)


def load_task(
    name: str,
    *,
    level: int | None = None,
    root: Any = None,
    download: bool = False,
    split: int | str | None = None,
    **options: Any,
) -> Task:
    """Build the task ``name``; unknown names and options raise with the list of known ones.

    ``level`` is the heterophily level of community tasks, ``split`` the number (0 to 9) of a
    standard split. ``root`` is the data folder (default: ``SHEAFDEQ_DATA``, else
    ``~/.cache/sheafdeq``); nothing is fetched from the network unless ``download`` is true.
    Generated tasks read no files.
    """
    if name not in _ENTRIES:
        raise unknown_name("there is no task", name, _ENTRIES)
    entry = _ENTRIES[name]
    for key, value in (("level", level), ("split", split)):
        if value is not None:
            options[key] = value
    check_options(options, entry.types, f"task {name!r}")
    if entry.work is not None:
        work = entry.work({**entry.options, **options})
        if work > _LARGEST_WORK:
            raise OptionError(
                f"task {name!r} of this size would hold about {work:,.0f} numbers, more than "
                f"{_LARGEST_WORK:,}: "
                "choose smaller sizes"
            )
    if entry.files:
        options.update(root=root, download=download)
    try:
        return entry.build(**options)
    except OptionError:
        raise
    except InputError as error:  # generators and splits refuse what their options ask for
        raise OptionError(f"task {name!r}: {error}") from error
