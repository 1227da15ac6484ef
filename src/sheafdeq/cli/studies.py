"""``sheafdeq studies``: every diagnostic record and every figure, from a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sheafdeq.cli.arguments import Parser, real_number, whole_number
from sheafdeq.cli.choice import PAPER_CHECKPOINTS, Choice, add_choice_options, choice_of
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import UsageError

PAPER_ITERATIONS, PAPER_DRAWN = 500, 100
"""The paper's residuals are those after 420 and 500 iterations; its figure shows the first 100."""

HELP = "make all diagnostic and asynchronous records and all figures again"


def configure(parser: Parser) -> None:
    """Run diagnose, async (schedules, delays up to 64, unreliable channels) and figures, one after
    the other."""
    add_runs(
        parser,
        "runs",
        several=True,
        help="runs (directories, or beginnings of ids), or folders of runs",
    )
    add_data_options(parser, parts=PARTS)
    parser.folder("--results", "records go below this folder", "results")
    parser.folder("--figures", "", "docs/figures")
    parser.value(
        "--samples",
        whole_number(1, 10**6),
        "schedules of each kind (default 20; sweeps take a quarter of it)",
        20,
    )
    parser.value("--work", real_number(0, 1e9, above=True), "mean updates a node", 500)
    parser.value(
        "--iterations", whole_number(1, 10**7), "of diagnose (default 100; with --paper 500)", None
    )
    parser.value("--threshold", real_number(), "validation score a chosen run must reach", 80.0)
    parser.value("--threads", whole_number(1, 1024), "threads of torch", 1)
    parser.flag(
        "--paper",
        "the paper's three checkpoints (level 7, its protocol; SheafDEQ and ablation seed "
        "43, Loop Transformer seed 42): continued iteration, schedules, and their figures "
        "with the training curves of level 3, shift 1.2",
    )
    add_choice_options(parser)
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """One command after the other; the first that fails ends it."""
    from sheafdeq.cli import build_parser

    results = Path(options.results)
    if options.paper:
        given = [
            name
            for name in (
                "run_seeds",
                "models",
                "option",
                "inputs",
                "checkpoints",
                "protocol",
                "level",
            )
            if getattr(options, name)
        ]
        if given:
            raise UsageError(
                f"--paper already says which runs: leave --{given[0].replace('_', '-')} out"
            )
        choice = Choice(
            7,
            protocol="paper",
            inputs="none",
            checkpoints=tuple(_pair(text) for text in PAPER_CHECKPOINTS),
        )
        variability = Choice(
            3, models=("sheafdeq",), options={"shift": 1.2}, protocol="paper", inputs="none"
        )
    else:
        choice = choice_of(options)
    common = [
        *options.runs,
        "--threshold",
        f"{options.threshold:g}",
        "--threads",
        str(options.threads),
        *choice.words(),
        *data_choice(options).words(places=True),
        "--part",
        options.split,
    ]
    several = ["--samples", str(options.samples), "--work", f"{options.work:g}"]
    few = ["--samples", str(max(1, options.samples // 4)), "--work", f"{options.work:g}"]
    parser = build_parser()
    places = ["--results", str(results), "--runs", *options.runs, "--out", options.figures]
    steps = [
        [
            "diagnose",
            *common,
            "--iterations",
            str(options.iterations or (PAPER_ITERATIONS if options.paper else 100)),
            "--out",
            str(results / "diagnostics"),
        ],
        ["async", *common, *several, "--out", str(results / "async")],
    ]
    if options.paper:
        steps += [
            [
                "figures",
                *places,
                "--only",
                "continued",
                "continued-full",
                "settling",
                "async",
                "--until",
                str(PAPER_DRAWN),
                *choice.words(),
            ],
            ["figures", *places, "--only", "training", *variability.words()],
        ]
    else:
        steps += [
            ["async", *common, *few, "--tau-sweep", "--out", str(results / "async")],
            ["async", *common, *few, "--faults", "--out", str(results / "async")],
            ["figures", *places, *choice.words()],
        ]
    for words in steps:
        print(f"sheafdeq {' '.join(words)}", flush=True)
        step = parser.parse_args(words)
        code = int(step.run(step) or 0)
        if code:
            return code
    return 0


def _pair(text: str) -> tuple[str, int]:
    model, _, seed = text.partition(":")
    return model, int(seed)
