"""``sheafdeq infer``: outputs of a trained model, computed in parts on this machine or on many."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import (
    FIGURE_ENDINGS,
    Parser,
    output_file,
    present_file,
    real_number,
    share,
    whole_number,
)
from sheafdeq.cli.data_options import PARTS, add_data_options, data_choice
from sheafdeq.cli.run_names import add_runs
from sheafdeq.errors import InputError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from sheafdeq.cli.subject import Examined
    from sheafdeq.distributed import Inference
    from sheafdeq.distributed.team import Team
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.solvers import Picard


HELP = "compute outputs in parts, synchronously or asynchronously, on one machine or many"


def configure(parser: Parser) -> None:
    """Divide a graph into parts, solve the equilibrium of a trained model with one worker a part,
    and write the outputs. The exit code is 0 when the solve converged (or ran its --horizon), 1
    when it did not."""
    add_runs(
        parser,
        "run_directory",
        help="a run: its directory, or the beginning of its id",
    )
    parser.value("--graph", str, "number of one graph of the part, or 'all' (default)", "all")
    add_data_options(parser, parts=PARTS)
    parser.flag("--double", "compute in float64")
    where = parser.add_argument_group("parts")
    where.value("--parts", whole_number(1, 1024), "number of parts", 2, metavar="P")
    where.choice(
        "--partition", ["auto", "metis", "ordered", "blocks"], "how nodes are assigned", "auto"
    )
    where.value(
        "--assignment",
        present_file,
        "your own assignment: one part number a line, or an npz with 'part'",
        metavar="FILE",
    )
    where.choice("--engine", ["local", "ray", "in-process"], "where workers live", "local")
    where.ray_address()
    where.value("--threads", whole_number(1, 1024), "threads of every worker", 1)
    how = parser.add_argument_group("solving")
    how.choice("--mode", ["sync", "async"], "lockstep, or every part at its own pace", "sync")
    how.value("--steps", whole_number(0), "at most so many steps (rounds of every part)", 1000)
    how.value(
        "--horizon", whole_number(0), "exactly K synchronous steps, converged or not", metavar="K"
    )
    how.value(
        "--tolerance", real_number(0, above=True), "residual at which to stop (default 1e-6)", 1e-6
    )
    how.value(
        "--damping",
        real_number(0, 1, above=True),
        "share of every step in (0, 1] (default: the model's own)",
    )
    how.value(
        "--staleness", whole_number(0), "async: rounds a message may be late", 4, metavar="TAU"
    )
    how.choice(
        "--on-late", ["wait", "report"], "async: keep the bound, or exceed it and count", "wait"
    )
    how.value(
        "--seconds",
        real_number(0),
        "stop at the next judged state after S seconds, converged or not",
        metavar="S",
    )
    how.repeated("--slow", words="slow a part down, to see what happens", metavar="PART=FACTOR")
    how.value("--loss", real_number(0, 0.999), "share of messages to lose on purpose", 0.0)
    how.value("--duplication", share, "share of messages to send twice", 0.0)
    how.value(
        "--delay",
        whole_number(0),
        "hold messages up to so many turns, so that they overtake each other",
        0,
    )
    how.flag("--no-bound", "do not certify, so give no bound on the distance to the equilibrium")
    parser.value(
        "--output", output_file(".npz", ".csv"), "write the outputs (.npz or .csv)", metavar="FILE"
    )
    parser.folder("--out", "write the sealed record into this folder")
    parser.value(
        "--figure",
        output_file(*FIGURE_ENDINGS),
        "draw rounds, waits and residual of every part over time (png, svg, pdf)",
        metavar="FILE",
    )
    parser.answers(run)


def run(options: argparse.Namespace) -> int:
    """Infer, write, and say how it ended."""
    import torch

    from sheafdeq.cli.subject import load_examined, write_record
    from sheafdeq.distributed import Faults, Pace, infer, yardstick_for
    from sheafdeq.distributed.part_state import checked_model

    _check_output(options)
    torch.set_num_threads(options.threads)
    data = data_choice(options)
    subject = load_examined(
        Path(options.run_directory), options.split, options.graph, double=options.double, data=data
    )
    model: EquilibriumModel = checked_model(subject.model)
    graph = subject.graph
    parts = (
        _assignment(options.assignment, graph.num_nodes) if options.assignment else options.parts
    )
    yardstick = None if options.no_bound else yardstick_for(model, graph)
    progress = None if options.json else _Progress()
    result = infer(
        model,
        graph,
        parts,
        mode=options.mode,
        engine=options.engine,
        solver=_solver(options, model),
        pace=Pace(staleness=options.staleness, on_late=options.on_late),
        slowdown=_slowdowns(options.slow, _count(parts)),
        seconds=options.seconds,
        method=options.partition,
        yardstick=yardstick,
        watch=progress,
        threads=options.threads,
        faults=Faults(options.loss, options.duplication, options.delay),
        ray_address=options.ray_address,
    )
    record = _record(options, subject, result)
    if options.output:
        _write_outputs(Path(options.output), result.outputs)
    if options.out:
        write_record(
            options.out,
            f"infer-{subject.file_name}-{options.mode}-{result.record['engine']}",
            record,
        )
    if options.figure:
        from sheafdeq.report.parts_figure import draw_parts

        draw_parts(record, options.figure)
    print(json.dumps(record) if options.json else _summary(record))
    return (
        0
        if result.solution.converged or options.horizon is not None or options.seconds is not None
        else 1
    )


def _check_output(options: argparse.Namespace) -> None:
    if options.ray_address and options.engine != "ray":
        raise UsageError("--ray-address goes with --engine ray")
    if options.horizon is not None and options.mode == "async":
        raise UsageError("--horizon counts synchronous steps: use --mode sync, or --steps")


def _solver(options: argparse.Namespace, model: EquilibriumModel) -> Picard:
    from dataclasses import replace

    from sheafdeq.distributed.infer import default_solver

    solver = default_solver(model, options.steps, options.tolerance)
    if options.damping is not None:
        solver = replace(solver, damping=options.damping, undamped=0)
    if options.horizon is not None:
        solver = solver.with_stopping(steps=options.horizon, stop_early=False)
    return solver


def _count(parts: int | Tensor) -> int:
    return parts if isinstance(parts, int) else int(parts.max()) + 1


def _slowdowns(words: list[str], parts: int) -> dict[int, float]:
    result = {}
    for word in words:
        part, separator, factor = word.partition("=")
        try:
            result[int(part)] = float(factor)
        except ValueError:
            separator = ""
        if not separator or not result[int(part)] > 0 or not 0 <= int(part) < parts:
            raise UsageError(
                f"--slow takes PART=FACTOR such as 0=50, of a part from 0 to {parts - 1}, "
                f"got {word!r}"
            )
    return result


def _assignment(path: str, nodes: int) -> Tensor:
    import torch

    from sheafdeq.data.archives import read_npz
    from sheafdeq.distributed.assignment import checked_assignment
    from sheafdeq.regular_file import read_regular

    content = read_regular(path)
    if path.endswith(".npz"):
        return checked_assignment(read_npz(content, path, ("part",), required=True)["part"], nodes)
    words = content.decode("utf-8", "replace").split()
    try:
        numbers = torch.tensor([int(word) for word in words], dtype=torch.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: an assignment has one part number a line ({error})") from error
    return checked_assignment(numbers, nodes)


# ---------------------------------------------------------------------- what is shown and written


class _Progress:
    """One line a second while it runs: every part with its round, residual and waiting."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, team: Team) -> None:
        if time.monotonic() - self.last < 1.0 or not team.solve:
            return
        self.last = time.monotonic()
        words = []
        for part, course in enumerate(team.journal.courses):
            if course:
                _, number, residual, waited = course[-1]
                shown = "" if residual is None else f", residual {residual:.1e}"
                words.append(f"part {part}: round {number}{shown}, waited {waited:.1f} s")
        print(" | ".join(words), file=sys.stderr, flush=True)


def _record(options: argparse.Namespace, subject: Examined, result: Inference) -> dict[str, Any]:
    from sheafdeq.cli.subject import Subject, command_line, given

    words = command_line(
        "infer",
        subject,
        data_choice(options),
        **given(options, "parts mode engine split graph steps tolerance staleness on_late slow"),
        **given(options, "loss duplication delay damping horizon seconds double partition"),
    )
    facts = {**subject.facts(), **result.record}
    score = subject.score(result.outputs) if isinstance(subject, Subject) else None
    return {**facts, "study": "infer", "score": score, "command": words}


def _write_outputs(path: Path, outputs: Tensor) -> None:
    import io

    import numpy as np

    from sheafdeq.records import write_bytes

    array = outputs.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        stream = io.BytesIO()
        np.savez(stream, outputs=array)
        write_bytes(path, stream.getvalue())
        return
    lines = [",".join(["node", *(f"output{k}" for k in range(array.shape[1]))])]
    lines += [
        ",".join([str(node), *(repr(float(value)) for value in row)])
        for node, row in enumerate(array)
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def _summary(record: dict[str, Any]) -> str:
    bound = record["bound"]
    if "distance_at_most" in bound:
        values = ", ".join(
            "infinite" if value is None else f"{value:.2e}" for value in bound["distance_at_most"]
        )
        unit = "by level: " if bound["by"] == "level" else ""
        text = (
            f"at most {unit}{values} in {bound['metric']} (rate {bound['rate']:.4g}, "
            f"{bound['grounds']})"
        )
    else:
        text = f"not known; {bound['known']}"
    score = "" if record["score"] is None else f", {record['task']['score']} {record['score']:.4g}"
    lines = [
        f"{record['model']['title']} on {record['nodes']:,} nodes in {len(record['parts'])} parts, "
        f"{record['mode']}, {record['engine']}{score}",
        f"  {record['solve']['text']}",
        f"  distance to the equilibrium: {text}",
        f"  {record['seconds']:.2f} s, {record['messages']:,} messages, "
        f"{record['message_bytes'] / 1e6:.1f} MB, "
        f"{record['seconds_waiting']:.2f} s of waiting in all parts, {record['restarts']} restarts",
    ]
    if record["mode"] == "async":
        lines.append(f"  largest staleness read {record['largest_staleness']} (bound "
                     f"{record['staleness_bound']}, {record['on_late']}), "
                     f"{record['late_reads']} late reads")  # fmt: skip
    for part in record["parts"]:
        lines.append(
            f"  part {part['part']}: {part['nodes']:,} nodes, {part['edges']:,} edges, halo "
            f"{part['halo']:,}; {part['rounds']} rounds, "
            f"waited {part['waited']:.2f} s, {part['restarts']} restarts"
        )
    return "\n".join(lines)
