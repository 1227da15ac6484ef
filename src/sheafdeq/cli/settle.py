"""``sheafdeq settle``: fine-tune a finished run with growing penalties until it settles."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sheafdeq.cli.arguments import Parser, output_folder, real_number
from sheafdeq.cli.data_options import add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import InputError, UsageError

HELP = "fine-tune a finished run until it settles"


def configure(parser: Parser) -> None:
    """Continue a finished run at a lower learning rate with growing penalties on its residual and
    its Jacobian. Each stage is stored as a run of its own; finished stages are reused, interrupted
    ones resumed."""
    add_runs(
        parser,
        "run_path",
        help="a finished run: its directory, or the beginning of its id",
    )
    add_data_options(parser)
    parser.add_argument(
        "--out", type=output_folder, metavar="DIR", required=True, help="run store for the stages"
    )
    parser.repeated(
        "--stage",
        metavar="KEY=VALUE,...",
        words="a stage instead of the default ones, repeatable: epochs, learning_rate, "
        "residual_weight, residual_max_weight, "
        "jacobian_weight, agreement_weight, steps",
    )
    parser.value("--checkpoint-seconds", real_number(0), "how often the state is saved", 30.0)
    parser.answers(run)


def run(options: argparse.Namespace) -> int:
    """Settle and print what every stage reached."""
    from sheafdeq.records import read_record
    from sheafdeq.training.settle import STAGES, settle

    stages = tuple(parse_stage(text) for text in options.stage) or STAGES
    data = data_choice(options)
    record = read_record(options.run_path)
    if data.files and not data.trained_on(record):
        raise UsageError(
            f"{', '.join(data.files.values())}: not what the run was trained on; a run settles on "
            "its own data"
        )
    results = settle(
        options.run_path,
        out=options.out,
        task=data.of_run(record),
        download=data.download,
        stages=stages,
        progress="auto",
        checkpoint_seconds=options.checkpoint_seconds,
    )
    rows: list[dict[str, Any]] = [
        {
            "id": result.record.id,
            "path": str(result.path),
            "reused": result.reused,
            "scores": result.record.scores,
            "residual": result.record.solves.residual if result.record.solves else None,
        }
        for result in results
    ]
    if options.json:
        print(json.dumps({"stages": rows}, sort_keys=True))
        return 0
    for number, row in enumerate(rows, start=1):
        scores, residual = row["scores"], row["residual"]
        print(
            f"stage {number}: validation {scores['validation']:.4f}, test {scores['test']:.4f}, "
            "largest residual at the horizon "
            f"{'unknown' if residual is None else format(residual, '.3g')}"
        )
    print(f"settled run: {rows[-1]['path']}")
    return 0


def parse_stage(text: str) -> Any:
    """``epochs=40,learning_rate=0.003,residual_weight=5`` as a stage."""
    from dataclasses import fields

    from sheafdeq.cli.arguments import parse_assignments
    from sheafdeq.training.settle import Stage

    values = parse_assignments([part for part in text.split(",") if part])
    known = [field.name for field in fields(Stage)]
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"unknown key {key!r} in --stage; it takes: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"--stage {key} must be a number, got {value!r}")
    missing = [key for key in ("epochs", "learning_rate", "residual_weight") if key not in values]
    if missing:
        raise UsageError(f"--stage needs {', '.join(missing)}, got {text!r}")
    if not isinstance(values["epochs"], int):
        raise UsageError(f"--stage epochs must be a whole number, got {values['epochs']!r}")
    try:
        return Stage(**values)
    except InputError as error:
        raise UsageError(f"--stage {text}: {error}") from error
