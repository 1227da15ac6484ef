"""``python -m sheafdeq.fuzzing``: try hostile input at every door and count how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

from sheafdeq.cli import fail
from sheafdeq.cli.arguments import Parser, seed_number, whole_number
from sheafdeq.errors import SheafDEQError
from sheafdeq.fuzzing.campaign import run_campaign
from sheafdeq.fuzzing.targets import TARGETS
from sheafdeq.records import write_sealed


def main() -> int:
    """Exit code 1 when a case failed."""
    parser = Parser(
        prog="python -m sheafdeq.fuzzing",
        description="Hostile input for every door of the package.",
    )
    parser.add_argument("--cases", type=whole_number(), default=10_000, help="default 10,000")
    parser.add_argument("--seed", type=seed_number, default=0, help="default 0")
    parser.add_argument(
        "--jobs", type=whole_number(1, 256), default=2, help="processes (default 2)"
    )
    parser.add_argument(
        "--targets",
        nargs="+",
        choices=list(TARGETS),
        metavar="NAME",
        help=f"of: {', '.join(TARGETS)}",
    )
    parser.add_argument("--out", metavar="FILE", help="write the counts, sealed")
    options = parser.parse_args()
    try:
        report = run_campaign(
            options.cases, options.seed, targets=options.targets, jobs=options.jobs,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
    except SheafDEQError as error:
        return fail(error)
    words = ["python -m sheafdeq.fuzzing", f"--cases {options.cases}", f"--seed {options.seed}"]
    words += [f"--targets {' '.join(options.targets)}"] if options.targets else []
    payload = {"schema": "sheafdeq.fuzz/1", "command": " ".join(words), **report.payload()}
    if options.out:
        write_sealed(Path(options.out), payload)
    for name, counts in payload["targets"].items():
        print(f"{name:<14}" + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    for failure in report.failures[:40]:
        print(f"FAILED {failure['seed']}: {failure['failure']}")
    worst = (
        f"slowest {report.slowest:.1f} s ({report.slowest_case}), largest growth "
        f"{report.largest:.0f} MiB"
    )
    print(f"{report.cases} cases, {len(report.failures)} failed; {worst}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
