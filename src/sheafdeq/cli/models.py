"""``sheafdeq models``: the paper's architecture table and its parameter counts, made from the
code."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from sheafdeq.cli.arguments import Parser
from sheafdeq.report.grid import cells, fitted, terminal_width, wrapped

__all__ = ["configure", "run", "table"]

NOTES = {
    "sheafdeq": "the text gives 10,798; the printed 11,045 is that with W_1 q x q, not d x d",
    "dnsd": "printed without the gate that the prose describes; with it 12,087 and 26,055",
    "energygnn": "the state width is not printed; 7 is one of several readings that give 340",
}


HELP = "list the models with their parameter counts"


def configure(parser: Parser) -> None:
    """List every model: parameters in the community configuration (c = 48, d = 3, q = 16, K = 20, 3
    classes) for three input features, which the paper's printed counts need, and for the real two;
    propagation, what makes it well-posed, gradient and inference. Give names to see their
    options."""
    words = "only these models, with their options and the paper's grid"
    parser.named("names", words, model_names, nargs="*")
    parser.flag("--wide", "every column, however wide the terminal is")
    parser.answers(run)


def model_names() -> list[str]:
    """Every name, for the shell."""
    from sheafdeq.registry import MODELS
    from sheafdeq.user_models import installed_names

    return [*MODELS, *(name for name in installed_names() if name not in MODELS)]


def table(names: list[str] | None = None) -> list[dict[str, Any]]:
    """One row for each model and map type, in the order of the registry."""
    from sheafdeq.registry import COMMUNITY, build_model, model_spec

    rows = []
    for spec in [model_spec(name) for name in model_names() if not names or name in names] + [
        model_spec(name) for name in names or () if name not in model_names()
    ]:
        kinds = list(
            dict.fromkeys(options["maps"] for options in spec.grid if "maps" in options)
        ) or [""]
        for kind in kinds:
            options = {"maps": kind} if kind else {}
            at_three, at_two = (
                build_model(
                    spec.name, replace(COMMUNITY, in_channels=f), **options
                ).num_parameters()
                for f in (3, 2)
            )
            rows.append(
                {
                    "name": spec.name,
                    "title": f"{spec.title}, {kind}" if kind else spec.title,
                    "parameters_f3": at_three,
                    "parameters_f2": at_two,
                    "parameters_paper": spec.printed_parameters.get(kind),
                    "in_paper": spec.in_paper,
                    "propagation": spec.propagation,
                    "well_posedness": spec.well_posedness,
                    "gradient": spec.gradient,
                    "inference": spec.inference,
                    "options": dict(spec.options),
                    "settings": list(spec.build.settings),
                    "grid": [dict(entry) for entry in spec.grid],
                }
            )
    return rows


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    from sheafdeq.registry import MODELS, model_spec, use_model

    for name in options.names:
        if ":" in name:
            use_model(name)  # it was named on the command line
        model_spec(name)
    rows = table(options.names)
    if options.json:
        print(json.dumps({"models": rows, "notes": NOTES}, indent=2))
        return 0
    shown = {
        "model": "{title}",
        "name": "{name}",
        "f = 3": "{parameters_f3:,}",
        "paper": "{printed}",
        "f = 2": "{parameters_f2:,}",
        "propagation": "{propagation}",
        "well-posedness": "{well_posedness}",
        "gradient": "{gradient}",
        "inference": "{inference}",
    }
    width = terminal_width(options.wide)
    counts = [row["parameters_paper"] for row in rows]
    printed = ("" if count is None else f"{count:,}" for count in counts)
    lines = cells(
        ({**row, "printed": text} for row, text in zip(rows, printed, strict=True)), shown
    )
    print(fitted(list(shown), lines, width, right=(2, 3, 4)))
    for name, note in NOTES.items():
        if any(row["name"] == name for row in rows):
            print(wrapped(f"{MODELS[name].title}: {note}.", width, 2))
    for name in options.names:
        spec = model_spec(name)
        given = ", ".join(f"{key}={value!r}" for key, value in spec.options.items())
        settings = ", ".join(spec.build.settings) or "nothing"
        text = (
            f"{name} options: {given}; and, as the task or the model has it unless given, "
            f"{settings}"
        )
        print("\n" + wrapped(text, width, 2))
        for key, kind in spec.types.items():
            print(wrapped(f"  {key}: {kind.words}", width, 4))
        grid = "; ".join(str(dict(entry)) for entry in spec.grid)
        print(wrapped(f"{name} grid of the paper: {grid}", width, 2))
    return 0
