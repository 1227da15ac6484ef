"""``sheafdeq figures``: every figure, from records alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, present_folder, whole_number
from sheafdeq.cli.choice import Choice, add_choice_options, choice_of
from sheafdeq.errors import UsageError

if TYPE_CHECKING:
    from sheafdeq.report.figures import Source

KINDS = (
    "continued",
    "continued-full",
    "settling",
    "async",
    "tau-sweep",
    "faults",
    "frontier",
    "training",
)


HELP = "draw every figure from the records"


def configure(parser: Parser) -> None:
    """Draw every figure the records allow: a picture, and a JSON file with caption, command and
    records read."""
    parser.value(
        "--results",
        present_folder,
        "with diagnostics/, async/, certificates/ (default results)",
        metavar="DIR",
    )
    words = "more folders with run records, for training curves"
    parser.several("--runs", present_folder, words, metavar="DIR", nargs="*")
    parser.folder("--out", "", "docs/figures")
    words = f"only these kinds: {', '.join(KINDS)}"
    parser.several("--only", str, words, metavar="KIND", choices=KINDS)
    parser.value(
        "--until",
        whole_number(1, 10**7),
        "draw continued iteration up to here (default: all)",
        None,
    )
    words = "kinds of picture: png, pdf, svg (default png)"
    parser.several("--formats", str, words, ["png"], choices=("png", "pdf", "svg"))
    add_choice_options(parser)
    parser.answers(run)


def run(options: Any) -> int:
    """Read, draw, write."""
    from sheafdeq.report.figures import check_sources, draw_all, read_sources, write_drawings

    options.results = options.results or "results"
    if not options.runs and not Path(options.results).is_dir():
        raise UsageError(
            f"{options.results!r} is not a folder: give the folder with the records "
            "by --results, or runs by --runs"
        )
    choice = choice_of(options)
    sources = chosen(read_sources(options.results, options.runs), choice)
    check_sources(sources)
    drawings = draw_all(sources, options.only or None, options.until)
    words = [
        "sheafdeq",
        "figures",
        *(["--only", *options.only] if options.only else []),
        *(["--until", str(options.until)] if options.until else []),
        *choice.words(),
    ]
    command = shlex.join(words)
    written = write_drawings(drawings, options.out, command, options.formats)
    if options.json:
        print(
            json.dumps(
                {
                    "figures": [drawing.name for drawing in drawings],
                    "files": [str(path) for path in written],
                }
            )
        )
    else:
        for drawing in drawings:
            print(f"{drawing.name}: {drawing.caption}")
        print(f"{len(drawings)} figures from {len(sources)} records in {options.out}")
    return 0


def chosen(sources: list[Source], choice: Choice) -> list[Source]:
    """The records a choice is about: run records it accepts, and what was measured on those runs.

    A measurement whose run record is not at hand cannot be judged and is left out.
    """
    if choice.empty:
        return sources
    accepted = {
        source.run.id for source in sources if source.run is not None and choice.accepts(source.run)
    }
    return [
        s for s in sources if (s.run.id if s.run is not None else s.payload.get("run")) in accepted
    ]
