"""``sheafdeq certify RUN --predictions``: which labels of a trained run are proved."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import real_number, whole_number
from sheafdeq.cli.data_options import data_choice
from sheafdeq.errors import UsageError

if TYPE_CHECKING:
    from sheafdeq.cli.subject import Subject
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.predictions import Predictions

SCHEMA = "sheafdeq.predictions/1"
ASCENTS = 4
"""Moves of a restart of the attack."""


def add_prediction_options(parser: Any) -> None:
    """The options ``certify`` has for predictions."""
    group = parser.add_argument_group("predictions (docs/predictions.md)")
    group.flag(
        "--predictions",
        "prove the labels of RUN: at its exact equilibrium, under every bounded delay",
    )
    group.add_argument(
        "--radius",
        type=real_number(0.0),
        nargs="+",
        metavar="R",
        help="with --predictions: for all node features within R (maximum norm); several R make a "
        "curve (default 0)",
    )
    group.value(
        "--attack",
        whole_number(1, 10_000),
        "with --predictions and R > 0: gradient ascent against every node, beside the proof",
        metavar="RESTARTS",
    )
    group.value(
        "--groups",
        whole_number(1, 10_000),
        "with --attack: every restart divides the nodes into G groups and attacks each",
        metavar="G",
    )
    group.add_argument(
        "--form",
        choices=["boxes", "sheared"],
        help="with --predictions and R > 0: absolute values once a level (the default), or first "
        "order exactly (cascades; larger radii, minutes and gigabytes)",
    )
    group.add_argument(
        "--largest-radius",
        action="store_true",
        default=None,
        help="with --predictions: the largest radius proved for each node, by bisection",
    )
    group.value(
        "--schedules",
        whole_number(1, 10_000),
        "with --predictions: run N drawn schedules with delays up to 64 and compare labels",
        metavar="N",
    )


def refused_or_wanted(options: Any) -> bool:
    """Whether predictions are asked for; options that only they have are refused without."""
    if not options.predictions:
        for name in ("radius", "attack", "groups", "form", "largest_radius", "schedules"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} belongs to --predictions")
        return False
    if options.groups is not None and options.attack is None:
        raise UsageError("--groups belongs to --attack")
    if options.subject is None:
        raise UsageError("--predictions examines one trained RUN: name its directory")
    return True


def run_predictions(options: Any) -> int:
    """Prove, print, and write what is asked for."""
    from sheafdeq.cli.subject import load_subject, write_record
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.predictions import Prover, largest_radius, prediction_figures
    from sheafdeq.records import RECORD_FILE

    path = Path(options.subject)
    if not (path / RECORD_FILE).is_file():
        raise UsageError(f"{path}: --predictions needs a run directory, with its record and model")
    if options.task is not None or options.level is not None:
        raise UsageError("--predictions examines a run on its own task: leave --task, --level out")
    data = data_choice(options)
    subject = load_subject(path, options.split, options.graph, data=data)
    if subject.task.objective.kind != "node classification":
        raise UsageError(
            f"{path}: {subject.task.title} asks for {subject.task.objective.kind}, and only labels "
            "of nodes are proved"
        )
    radii = sorted(set(options.radius or [0.0]))
    model = subject.model
    assert isinstance(model, EquilibriumModel)  # load_subject lets no other pass
    rows: list[dict[str, Any]] = []
    results: list[Predictions] = []
    payload: dict[str, Any] = {}
    prover = Prover(model, subject.split.graph, form=options.form or "boxes")
    for radius in radii:
        result = prover.at(radius)
        row = _row(subject, model, result, options)
        results.append(result)
        rows.append(row)
        if not options.json:
            print(result.report())
            print(_line(row), flush=True)
        payload = {
            "schema": SCHEMA,
            **subject.facts(),
            "command": _command(subject, options),
            "threads": options.threads,
            "curve": rows,
            "predictions": [result.to_json() for result in results],
        }
        if options.out:  # after every radius: what is proved is not lost with what follows
            written = write_record(options.out, f"{subject.file_name}-{_part(subject)}", payload)
            for figure in prediction_figures(payload, results, subject.split, written):
                print(f"wrote {figure}", file=sys.stderr)
    if options.largest_radius:
        found = largest_radius(prover.at)
        payload["largest_radius"] = found.to_json()
        if not options.json:
            print(_radii(payload["largest_radius"]))
        if options.out:
            write_record(options.out, f"{subject.file_name}-{_part(subject)}", payload)
    if options.json:
        print(json.dumps(payload))
    return 0


def _radii(found: dict[str, Any]) -> str:
    low, first, middle, third, high = found["quartiles"]
    return (
        f"  largest proved radius of a node: {low:.2g} to {high:.2g}, median {middle:.2g} "
        f"(quartiles {first:.2g}, {third:.2g}; {len(found['tried'])} radii tried)"
    )


def _part(subject: Subject) -> str:
    """test, or test-0: fit for a file name."""
    return subject.graph_label.replace("[", "-").replace("]", "")


def _row(
    subject: Subject, model: EquilibriumModel, result: Predictions, options: Any
) -> dict[str, Any]:
    from sheafdeq.predictions import attack, drawn_schedules, under_schedules

    split = subject.split
    scores = result.scores(split.target, split.mask)
    row = {"radius": result.radius, **scores.to_json(), "seconds": result.seconds}
    row["processor_seconds"] = result.processor_seconds
    if options.attack is not None and result.radius > 0:
        found = attack(
            model,
            split.graph,
            result.radius,
            restarts=options.attack,
            ascents=ASCENTS,
            horizon=max(1, model.steps // 4),
            seed=options.seed,
            groups=options.groups,
        )
        row["attack"] = {
            "restarts": found.restarts,
            "groups": options.groups,
            "ascents": found.ascents,
            "accuracy": found.accuracy(split.target, split.mask),
            "labels_changed": int(found.changed.sum()),
            "proved_labels_changed": int((found.changed & result.proved).sum()),
        }
    if options.schedules is not None and result.radius == 0:
        late = under_schedules(model, split.graph, result, drawn_schedules(options.schedules))
        row["schedules"] = late.to_json()
    return row


def _line(row: dict[str, Any]) -> str:
    text = (
        f"  scored nodes: {row['proved']} of {row['nodes']} proved ({100 * row['share']:.2f} %), "
        f"{row['proved_right']} of them right; {row['right']} right in all; "
        f"{row['seconds']:.1f} s ({row['processor_seconds']:.1f} s of a processor)"
    )
    if "attack" in row:
        found = row["attack"]
        text += (
            f"\n  attack ({found['restarts']} restarts): {100 * found['accuracy']:.2f} % right "
            f"under it, {found['labels_changed']} labels changed, "
            f"{found['proved_labels_changed']} of them proved"
        )
    if "schedules" in row:
        late = row["schedules"]
        text += (
            f"\n  {late['schedules']} schedules with delays up to {late['longest_delay']}: "
            f"{late['differing']} proved labels differ from those reached"
        )
    return text


def _command(subject: Subject, options: Any) -> str:
    from sheafdeq.cli.subject import command_line, given

    return command_line(
        "certify",
        subject,
        data_choice(options),
        predictions=True,
        split=None if options.split == "test" else options.split,
        **given(options, "graph radius attack groups form largest_radius schedules"),
    )
