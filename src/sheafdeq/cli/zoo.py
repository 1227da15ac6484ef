"""``sheafdeq zoo``: trained models that ship with the package, their cards, and how one is made."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sheafdeq.cli.arguments import Parser, names_of, present_folder
from sheafdeq.report.grid import cells, fitted, terminal_width

__all__ = ["configure"]


HELP = "list the trained models that ship, or show the card of one"


def configure(parser: Parser) -> None:
    """List the trained models that ship with the package; sheafdeq.load(NAME) gives one. 'sheafdeq
    zoo show NAME' prints its card, 'sheafdeq zoo add RUN' makes one of a finished run and its
    certificate."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--wide", action="store_true", help="every column, however wide the terminal is"
    )
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    show = actions.add_parser("show", help="the card of one model")
    name: Any = show.add_argument("name", metavar="NAME", help="a name from 'sheafdeq zoo'")
    name.completer = names_of(zoo_names)
    show.add_argument("--json", action="store_true", help="print its metrics.json instead")
    show.set_defaults(run=run_show)
    add = actions.add_parser("add", help="make a named model of a finished run")
    add.add_argument("directory", metavar="RUN", type=present_folder, help="a run directory")
    add.add_argument(
        "--certificate",
        required=True,
        metavar="FILE",
        help="what `sheafdeq certify RUN --out DIR` wrote of it",
    )
    add.add_argument("--name", metavar="TASK/MODEL", help="default: the run's own")
    add.add_argument(
        "--zoo", metavar="DIR", help="folder of the named models (default: the package's)"
    )
    add.set_defaults(run=run_add)


def zoo_names() -> list[str]:
    """Every name, for the shell."""
    from sheafdeq.zoo import names

    return names()


def run_list(options: argparse.Namespace) -> int:
    """Print the table."""
    from sheafdeq.records import read_sealed
    from sheafdeq.zoo import CERTIFICATE, FOLDER, facts, names

    entries = []
    for name in names():
        found = facts(name)
        proof = read_sealed(FOLDER / name / CERTIFICATE)["certificate"]
        entries.append(
            {
                "name": name,
                "model": found["model"]["title"],
                "parameters": found["model"]["parameters"],
                "score": found["task"]["score"],
                "validation": found["scores"]["validation"],
                "test": found["scores"]["test"],
                "certificate": f"{proof['verdict']} ({proof['level']})",
                "run": found["run"],
            }
        )
    if options.json:
        print(json.dumps({"models": entries}, indent=2))
        return 0
    shown = {
        **{name: f"{{{name}}}" for name in ("name", "model", "parameters", "score")},
        **{name: f"{{{name}:.5g}}" for name in ("validation", "test")},
        "certificate": "{certificate}",
    }
    shown["parameters"] = "{parameters:,}"
    lines = cells(entries, shown)
    print(fitted(list(shown), lines, terminal_width(options.wide), right=(2, 4, 5)), end="")
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Print a card."""
    from sheafdeq.zoo import card, facts

    print(json.dumps(facts(options.name), indent=2) if options.json else card(options.name), end="")
    return 0


def run_add(options: argparse.Namespace) -> int:
    """Make a named model."""
    from sheafdeq.zoo import FOLDER
    from sheafdeq.zoo.entry import add

    folder = FOLDER if options.zoo is None else Path(options.zoo)
    name = add(Path(options.directory), Path(options.certificate), folder, options.name)
    print(f"{folder / name}: sheafdeq.load({name!r})")
    return 0
