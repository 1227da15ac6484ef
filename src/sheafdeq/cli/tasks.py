"""``sheafdeq tasks``: list the tasks, and show one in figures or as a picture."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import (
    FIGURE_ENDINGS,
    Parser,
    output_file,
    parse_assignments,
    whole_number,
)
from sheafdeq.cli.data_options import add_data_options, data_choice
from sheafdeq.errors import UsageError
from sheafdeq.report.grid import cells, fitted, terminal_width, wrapped

if TYPE_CHECKING:
    from sheafdeq.data.task import Task

__all__ = ["configure", "run_list", "run_show"]


HELP = "list the tasks, or show one"


def configure(parser: Parser) -> None:
    """List every task with its kind, size and licence; 'sheafdeq tasks show NAME' examines one."""
    parser.flag("--json", "print one JSON object")
    parser.flag("--wide", "every column, however wide the terminal is")
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    show = actions.add_parser(
        "show",
        help="sizes, splits, degrees, homophily and constant scores of one task",
        description="Build a task and print its figures. Your own graph: --npz FILE, or --nodes "
        "FILE --edges FILE.",
    )
    words = "a name from 'sheafdeq tasks'; with files of your own, what they are to be called"
    show.named("name", words, task_names, nargs="?")
    show.value("--level", whole_number(0, 10), "heterophily level 0 to 10 (community)", metavar="L")
    words = "another option of the task, e.g. nodes=60"
    show.repeated("--option", "--task-set", words=words, dest="option")
    add_data_options(show, mask_seed=["--seed"])
    show.value(
        "--plot", output_file(*FIGURE_ENDINGS), "also draw the task (png, svg, pdf)", metavar="FILE"
    )
    show.answers(run_show)


def task_names() -> list[str]:
    """Every name, for the shell."""
    from sheafdeq.data.catalogue import task_names as known

    return known()


def run_list(options: argparse.Namespace) -> int:
    """Print the list of tasks."""
    from sheafdeq.data.catalogue import entries

    rows: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "graphs": entry.graphs,
            "nodes": entry.nodes,
            "stored_edges": entry.stored_edges,
            "files": entry.files,
            "licence": entry.licence,
            "summary": entry.summary,
            "options": entry.options,
        }
        for entry in entries()
    ]
    if options.json:
        print(json.dumps({"tasks": rows}, indent=2))
        return 0
    shown = {
        "task": "{name}",
        "kind": "{kind}",
        "graphs": "{graphs:,}",
        "nodes": "{nodes:,}",
        "edges": "{stored_edges:,}",
        "files": "{asked}",
        "summary": "{summary}",
    }
    width = terminal_width(options.wide)
    lines = cells(({**row, "asked": "yes" if row["files"] else "no"} for row in rows), shown)
    print(fitted(list(shown), lines, width, right=(2, 3, 4)))
    note = (
        "edges are stored edges (both directions); 'files: yes' reads the data folder, see "
        "'tasks show --help'"
    )
    print(wrapped(note, width))
    print("\nlicences of the data:")
    for licence in dict.fromkeys(row["licence"] for row in rows):
        names = ", ".join(row["name"] for row in rows if row["licence"] == licence)
        print(wrapped(f"  {licence}: {names}", width, 4))
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Print the figures of one task, and draw it if asked."""
    from sheafdeq.data.catalogue import recorded_digests

    task = _task(options)
    if options.plot:
        from sheafdeq.data.drawing import draw_task

        draw_task(task, options.plot)
    description = task.describe()
    description["as_recorded"] = description["digest"] in recorded_digests().values()
    if options.json:
        print(json.dumps({**description, "plot": options.plot}, indent=2))
        return 0
    degree = description["degree"]
    homophily = description["homophily"]
    rows = [
        ("task", f"{task.title}, {task.kind}"),
        (
            "options",
            ", ".join(f"{key}={value}" for key, value in description["options"].items()) or "none",
        ),
        ("licence", description["licence"]),
        *(("remark", remark) for remark in description["remarks"]),
        (
            "features",
            f"{task.in_channels} for each node, {task.edge_dim} for each edge, "
            f"{task.out_channels} outputs",
        ),
        *(
            (
                name,
                f"{part['scored']:,} scored; graph {part['graph']}: {part['nodes']:,} nodes, "
                f"{part['stored_edges']:,} stored edges, {part['graphs']:,} graph(s)",
            )
            for name, part in description["splits"].items()
        ),
        ("degree", f"{degree['minimum']} to {degree['maximum']}, mean {degree['mean']:.3f}"),
        ("isolated", f"{degree['isolated']:,} nodes; {degree['self_loops']:,} self-loops"),
        (
            "homophily",
            "no node classes"
            if homophily is None
            else f"{homophily:.4f} of stored edges join equal classes",
        ),
        ("score", f"{task.score_name}, higher is better"),
        (
            "constant",
            f"{_figures(task.constant_metrics(task.test))} (test); "
            f"{_figures(task.constant_over_all)} (all rows)",
        ),
        (
            "model sizes",
            ", ".join(f"{key} {value}" for key, value in description["dimensions"].items()),
        ),
        ("digest", description["digest"] + (", as recorded" if description["as_recorded"] else "")),
    ]
    for key, value in rows:
        print(wrapped(f"{key:<12} {value}", terminal_width(), 13))
    if options.plot:
        print(f"{'picture':<12} {options.plot}")
    return 0


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())


def _task(options: argparse.Namespace) -> Task:
    data = data_choice(options)
    if data.files and (options.level is not None or options.root or options.download):
        raise UsageError("--level, --root and --download are for named tasks")
    given = parse_assignments(options.option)
    settings = {key.replace("-", "_"): value for key, value in given.items()}
    return data.task(options.name, options.level, settings)
