"""``sheafdeq tables``: the paper's tables from finished runs, with the paper's numbers beside
ours."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, output_file, present_file, present_folder
from sheafdeq.errors import RecordError, UsageError
from sheafdeq.options import unknown_name
from sheafdeq.printable import printable
from sheafdeq.report.grid import fitted, terminal_width, wrapped

if TYPE_CHECKING:
    from sheafdeq.report.evidence import Evidence
    from sheafdeq.report.figures import Source
    from sheafdeq.report.summary import Summary

EVIDENCE = ("runs", "evaluations", "diagnostics", "async", "async_cascade")
"""Folders below ``results`` that tables rest on; pilots, smoke tests and what is superseded lie
beside them."""
RESULTS_COMMAND = "sheafdeq tables results --out RESULTS.md --figures docs/figures"
NAMES = (
    "community",
    "distributed",
    "real",
    "parameters",
    "staleness",
    "predictions",
    "all",
    "results",
)


HELP = "print the paper's tables from finished runs"


def configure(parser: Parser) -> None:
    """Print a table from run records: configuration with the highest mean validation score (blind
    to test) for each family and column, median [min, max] of the test score over seeds, the paper's
    number beside it. Missing cells are shown as missing."""
    parser.add_argument(
        "table",
        choices=NAMES,
        help="'all' shows every record, whatever its task; 'results' is the page RESULTS.md",
    )
    parser.flag("--full", "every configuration in a row of its own")
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="TITLE",
        help="only these columns (L7 L10), and rows with a number of ours in them",
    )
    parser.choice("--format", ["text", "markdown", "latex", "csv", "html"], "", "text")
    parser.add_argument(
        "--metric",
        help="another metric of the test split in place of the score (mse, r2, accuracy, ...)",
    )
    parser.add_argument(
        "--results", type=present_folder, metavar="DIR", action="append",
        help="folder with records (default results, of which community, distributed and results "
             "leave pilots and the like out; "
        "may be repeated, runs as well)",
    )  # fmt: skip
    parser.flag("--wide", "every column, however wide the terminal is")
    parser.value(
        "--out",
        output_file(),
        "write to a file; of 'results' also a README.md beside it, between its marks",
        metavar="FILE",
    )
    parser.value(
        "--explanations",
        present_file,
        "of 'results': what explains differences (default explanations.toml in --results)",
        metavar="FILE",
    )
    parser.folder("--figures", "of 'results': also draw the community table into this folder")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one table."""
    from sheafdeq.report import tables

    if options.table == "parameters":
        table = tables.parameter_table(parameter_counts())
    else:
        folders = [Path(folder) for folder in options.results or ["results"]]
        root = folders[0]
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(
                    f"{folder}: no such folder; give the folder with the records by --results DIR"
                )
        if options.results is None and options.table in ("community", "distributed", "results"):
            folders = evidence_folders(root)
        if options.table == "results":
            return write_results(root, folders, options)
        if options.results is None and options.table == "real" and (root / "real").is_dir():
            folders = [root / "real"]
        if options.table == "staleness":
            table = tables.staleness_table(async_payloads(folders), full=options.full)
        elif options.table == "predictions":
            table = tables.predictions_table(prediction_payloads(folders), full=options.full)
        else:
            from sheafdeq.report.collection import collect
            from sheafdeq.report.group_rows import trials
            from sheafdeq.report.selection import select, summarise

            found = collect(folders, studies=False)
            for problem in found.excluded:
                print(f"excluded {printable(problem)}", file=sys.stderr)
            apart = (
                trials(found.runs) if options.table in ("community", "distributed") else frozenset()
            )
            summaries = summarise(record for record in found.runs if record.id not in apart)
            _check_metric(options.metric, summaries)
            if options.table == "real":
                table = tables.real_table(found.runs, full=options.full)
            elif options.table == "all":
                table = tables.overview_table(
                    summaries, select, full=options.full, metric=options.metric
                )
                if found.excluded:
                    note = (
                        f"{len(found.excluded)} file(s) or folder(s) could not be read and "
                        "are not in this table."
                    )
                    table = replace(table, notes=(*table.notes, note))
            else:
                table = tables.paper_table(
                    options.table, summaries, select, full=options.full, metric=options.metric,
                    fresh=found.fresh_scores(), excluded=found.excluded, apart=len(apart),
                )  # fmt: skip
    if options.columns:
        table = tables.only_columns(table, options.columns)
    width = terminal_width(options.wide)
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(tables.render(table, options.format), encoding="utf-8")
    elif options.format == "text" and width is not None:
        print(wrapped(printable(table.title), width))
        print(fitted(*tables.grid(table), width, rules=True), end="")
        for line in table.notes:
            print(wrapped(printable(line), width))
    else:
        print(tables.render(table, options.format), end="")
    return 0


def evidence_folders(root: Path) -> list[Path]:
    """The folders of a results folder that tables rest on; the folder itself where it has none of
    them."""
    return [root / name for name in EVIDENCE if (root / name).is_dir()] or [root]


def write_results(root: Path, folders: list[Path], options: argparse.Namespace) -> int:
    """The page of all results, and the section of the README that comes from it."""
    from sheafdeq.report.evidence import differences
    from sheafdeq.report.headlines import headlines
    from sheafdeq.report.results_page import results_page, with_section

    evidence = evidence_of(
        folders, Path(options.explanations) if options.explanations else root / "explanations.toml"
    )
    for problem in (*evidence.found.excluded, *evidence.explanations.unsupported):
        print(f"excluded {problem}", file=sys.stderr)
    page = results_page(evidence, RESULTS_COMMAND)
    if options.figures:
        from sheafdeq.report.figures import write_drawings
        from sheafdeq.report.results_figure import community_figure
        from sheafdeq.report.seeds_figure import seeds_figure

        sources = run_sources(root, folders)
        drawings = [
            community_figure(evidence.table("community"), sources),
            seeds_figure(evidence, sources),
        ]
        write_drawings(drawings, options.figures, RESULTS_COMMAND)
    if not options.out:
        print(page, end="")
        return 0
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    readme = out.with_name("README.md")
    if readme.is_file():
        shown = {name: evidence.table(name) for name in ("community", "distributed")}
        lines = [f"* {line}" for line in headlines(evidence, shown, differences(evidence))]
        text = readme.read_text(encoding="utf-8")
        changed = with_section(text, lines)
        if changed != text:
            readme.write_text(changed, encoding="utf-8")
            print(f"wrote the results section of {readme}", file=sys.stderr)
    return 0


def run_sources(root: Path, folders: list[Path]) -> list[Source]:
    """The run records below the folders with their digests; those that cannot be read are in no
    table and in no figure."""
    from sheafdeq.records import read_record, record_paths
    from sheafdeq.report.figures import Source

    found = []
    for path in record_paths(folders, lambda error: None):
        try:
            name = (
                path.relative_to(root)
                if path.is_relative_to(root)
                else Path(path.parent.name, path.name)
            )
            found.append(
                Source(name, hashlib.sha256(path.read_bytes()).hexdigest(), {}, read_record(path))
            )
        except (RecordError, OSError):
            continue
    return found


def evidence_of(folders: list[Path], explanations: Path) -> Evidence:
    """Everything the page of results is made of."""
    from sheafdeq.report.collection import collect
    from sheafdeq.report.evidence import Evidence
    from sheafdeq.report.explanations import read_explanations
    from sheafdeq.report.group_rows import trials
    from sheafdeq.report.selection import protocol, select, summarise

    found = collect(folders)
    known = read_explanations(explanations, [record.id for record in found.runs])
    apart = trials(found.runs)
    summaries = summarise(record for record in found.runs if record.id not in apart)
    return Evidence(found, summaries, select, known, found.fresh_scores(), protocol, len(apart))


def _check_metric(metric: str | None, summaries: Sequence[Summary]) -> None:
    """A metric no record has is a slip of the pen, not a table of gaps."""
    known = sorted(
        {
            name
            for summary in summaries
            for record in summary.records
            for name in record.metrics.get("test", {})
        }
    )
    if metric is not None and known and metric not in known:
        raise unknown_name("no record has the metric", metric, known)


def parameter_counts() -> dict[int, list[tuple[str, dict[str, Any], int]]]:
    """Counts of the registered models at the community sizes, for two input features (the task's)
    and three (the paper's)."""
    from sheafdeq.registry import Shape, build_model
    from sheafdeq.report.tables import paper_numbers

    counts: dict[int, list[tuple[str, dict[str, Any], int]]] = {}
    for width in (2, 3):
        shape = Shape(width, 3, None, 3, 16, 20)
        counts[width] = [
            (
                line["model"],
                line["options"],
                build_model(line["model"], shape, **line["options"]).num_parameters(),
            )
            for line in paper_numbers("parameters")["rows"]
        ]
    return counts


def async_payloads(folders: list[Path]) -> list[dict[str, Any]]:
    """Records of ``sheafdeq async`` below the folders."""
    from sheafdeq.records import STALENESS_SCHEMA, named_schema, read_study, refuse_unreadable
    from sheafdeq.regular_file import files_below

    return [
        read_study(path)
        for folder in folders
        for path in files_below(folder, ".json", refuse_unreadable)
        if named_schema(path) == STALENESS_SCHEMA
    ]


def prediction_payloads(folders: list[Path]) -> list[dict[str, Any]]:
    """Records of ``sheafdeq certify --predictions`` below the folders."""
    from sheafdeq.cli.predictions import SCHEMA
    from sheafdeq.records import read_sealed, refuse_unreadable
    from sheafdeq.regular_file import files_below, read_regular

    named = f'"schema":"{SCHEMA}"'.encode()
    return [
        read_sealed(path)
        for folder in folders
        for path in files_below(folder, ".json", refuse_unreadable)
        if named in read_regular(path)
    ]
