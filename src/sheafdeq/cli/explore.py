"""``sheafdeq explore``: watch a trained model iterate on its graph, in the browser."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import (
    Parser,
    output_file,
    real_number,
    schedule_words,
    seed_number,
    whole_number,
)
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from sheafdeq.asynchronous import Schedule
    from sheafdeq.cli.subject import Subject
    from sheafdeq.data import Split, Task
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.explorer import Scene


HELP = "make a page on which a trained model iterates before your eyes"


def configure(parser: Parser) -> None:
    """One page, opened from disk: the graph coloured by class, prediction, residual or
    disagreement, a slider over the iterations, two models or two starts or fresh and late messages
    side by side, and every node's state, neighbours and maps."""
    add_runs(
        parser,
        "runs",
        several=True,
        help="one run (its directory, or the beginning of its id), or two on the same graph",
    )
    parser.value("--graph", str, "number of one graph of the split, or 'all'", "0")
    add_data_options(parser, parts=PARTS)
    parser.value("--iterations", whole_number(1, 10**6), "", 200)
    parser.value("--scale", real_number(0, above=True), "scale of the random start", 10.0)
    parser.value(
        "--schedule", schedule_words, "update window and largest delay", "5,2", metavar="S,TAU"
    )
    parser.value("--seed", seed_number, "of the schedule", 0)
    parser.value("--megabytes", real_number(0, 1e6, above=True), "largest page", 4.9)
    parser.value("--out", output_file(".html"), "default explore-RUN.html", metavar="FILE")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Film, write, say where."""
    from sheafdeq.cli.subject import load_subject

    start = time.monotonic()
    data, schedule = data_choice(options), schedule_from(options.schedule, options.seed)
    subjects = [
        load_subject(Path(name), options.split, options.graph, data=data) for name in options.runs
    ]
    out = Path(options.out or f"explore-{subjects[0].record.id[:8]}.html")
    path = write_explorer(
        subjects,
        out,
        iterations=options.iterations,
        scale=options.scale,
        schedule=schedule,
        limit=int(1e6 * options.megabytes),
    )
    print(f"{path.stat().st_size / 1e6:.1f} MB in {time.monotonic() - start:.0f} s: open {path}")
    return 0


def schedule_from(text: str, seed: int = 0) -> Schedule:
    """``"5,2"`` as a schedule."""
    from sheafdeq.asynchronous import Schedule

    window, separator, delay = text.partition(",")
    if not separator or not window.strip().isdecimal() or not delay.strip().isdecimal():
        raise UsageError(f"--schedule must be WINDOW,DELAY such as 5,2, got {text!r}")
    return Schedule(int(window), int(delay), seed=seed)


def write_explorer(
    subjects: Sequence[Subject],
    out: Path,
    *,
    iterations: int = 200,
    scale: float = 10.0,
    schedule: Schedule | None = None,
    back: str = "",
    limit: int = 4_900_000,
) -> Path:
    """The explorer page of one or two runs on one graph."""
    import torch

    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.explorer import Actor, explore

    first = subjects[0].split.graph
    for subject in subjects[1:]:
        other = subject.split.graph
        if not (
            torch.equal(first.source, other.source) and torch.equal(first.target, other.target)
        ):
            raise UsageError(
                f"{subject.path}: not on the graph of {subjects[0].path}; give runs "
                "of one task and level"
            )
    actors = []
    for subject in subjects:
        assert isinstance(subject.model, EquilibriumModel)
        title = f"{subject.record.model.title} {subject.record.id[:8]}"
        actors.append(Actor(title, subject.model, subject.score, subject.exposed))
    scene = scene_of(subjects[0].task, subjects[0].split, subjects[0].graph_label)
    return explore(
        scene,
        actors,
        out,
        iterations=iterations,
        scale=scale,
        schedule=schedule,
        back=back,
        limit=limit,
    )


def explore_models(
    entries: Sequence[tuple[str, EquilibriumModel]],
    task: Task,
    split: Split,
    out: Path,
    *,
    iterations: int = 60,
) -> Path:
    """The explorer page of models just trained, on one split of their task; for commands that have
    no run directory."""
    from sheafdeq.explorer import Actor, explore

    def score(outputs: Tensor) -> float:
        return task.score(task.metrics(outputs, split))

    actors = [Actor(title, model, score) for title, model in entries]
    return explore(
        scene_of(task, split, "first test"),
        actors,
        out,
        iterations=iterations,
        schedule=schedule_from("1,1"),
    )


def scene_of(task: Task, split: Split, label: str) -> Scene:
    """What is drawn: the graph of a split, with its classes or values where every node has one."""
    from sheafdeq.data.objective import Classification
    from sheafdeq.explorer import Scene

    n = split.graph.num_nodes
    target, classes = None, None
    if isinstance(task.objective, Classification):
        classes = task.objective.classes
        if split.target.shape[0] == n:
            target = split.target
    elif split.target.shape[0] == n:
        target = split.target.reshape(n, -1)[:, 0]
    return Scene(f"{task.title}, {label} graph", split.graph, target, classes, task.score_name)
