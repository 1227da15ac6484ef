"""What many workers do: deaths, staleness, one slow machine, and a graph of a million nodes.

    python benchmarks/distributed.py kills --run RUN --count 100 --out \
        results/distributed/kills-cascade.json
    python benchmarks/distributed.py staleness --run RUN --out \
        results/distributed/staleness-cascade.json
    python benchmarks/distributed.py slow --runs RUN RUN ... --out results/distributed/slow.json
    python benchmarks/distributed.py scale --run RUN --nodes 1080000 --parts 1 2 4 8 --out \
        results/distributed/scale.json

Every command writes one sealed record. Seconds depend on what else the machine does; the load is
written down beside them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sheafdeq.cli.subject import Subject, load_subject
from sheafdeq.data.community import community_graph
from sheafdeq.distributed import (
    Faults,
    Pace,
    cut_graph,
    edge_cut,
    infer,
    infer_parts,
    partition,
    yardstick_for,
)
from sheafdeq.distributed.asynchronous import solve_asynchronously
from sheafdeq.distributed.infer import default_solver, divide
from sheafdeq.distributed.processes import Processes
from sheafdeq.distributed.team import Team
from sheafdeq.records import write_sealed
from sheafdeq.solvers import Picard
from sheafdeq.training.checkpoint import load_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, action in (
        ("kills", kills),
        ("staleness", staleness),
        ("slow", slow),
        ("scale", scale),
    ):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--out", required=True)
        if name == "slow":
            command.add_argument("--runs", nargs="+", required=True)
            command.add_argument("--seconds", type=float, nargs="+", default=[2.0, 5.0, 10.0, 20.0])
            command.add_argument("--factor", type=float, default=20.0)
        else:
            command.add_argument("--run", required=True)
        if name == "kills":
            command.add_argument("--count", type=int, default=100)
            command.add_argument("--rounds", type=int, default=2000)
            command.add_argument("--tolerance", type=float, default=1e-8)
        if name == "staleness":
            command.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 4, 16, 64])
            command.add_argument("--factor", type=float, default=50.0)
        if name == "scale":
            command.add_argument("--nodes", type=int, default=1_080_000)
            command.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4, 8])
            command.add_argument(
                "--level", type=int, default=0, help="heterophily level of the community graph"
            )
            command.add_argument("--steps", type=int, default=10)
            command.add_argument("--factor", type=float, default=4.0)
        else:
            command.add_argument("--graph", default="0")
            command.add_argument("--split-parts", type=int, default=4)
            command.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun, load = time.monotonic(), os.getloadavg()
    payload = options.action(options)
    words = " ".join(
        [
            "python benchmarks/distributed.py",
            *(Path(w).name[:8] if len(Path(w).name) == 64 else w for w in sys.argv[1:]),
        ]
    )
    machine = {
        "cores": os.cpu_count(),
        "load_before": load,
        "load_after": os.getloadavg(),
        "seconds": round(time.monotonic() - begun, 1),
    }
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    write_sealed(Path(options.out), {**payload, "command": words, "timing": machine})


def folder_of(run: str) -> Path:
    """A run's folder, or the one in results/runs whose name begins so."""
    found = [Path(run)] if Path(run).exists() else sorted(Path("results/runs").glob(f"{run}*"))
    if len(found) != 1:
        raise SystemExit(f"{run}: {len(found)} runs in results/runs begin so, need one")
    return found[0]


def subject_of(run: str, graph: str, *, double: bool = True) -> Subject:
    return load_subject(folder_of(run), "test", graph, double=double)


@torch.no_grad()
def single_process(subject: Subject, steps: int = 5000) -> tuple[Any, Tensor]:
    """The equilibrium of one process, as exactly as float64 gets it, and its outputs."""
    model, graph = subject.model, subject.split.graph
    context = model.prepare(graph)
    solver = Picard(
        steps=steps,
        tolerance=1e-13,
        stop_early=True,
        distance=model.solver.distance,
        damping=model.solver.damping,
    )
    solution = model.solve(context, graph, solver=solver)
    return solution, model.readout(solution.value, context)


def relative(state: Tensor, exact: Tensor) -> float:
    """Largest over nodes of the largest difference in a row, divided by the row's largest entry."""
    return float(((state - exact).abs().amax(1) / exact.abs().amax(1).clamp(min=1e-12)).max())


# ---------------------------------------------------------------------- deaths


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """One SIGKILL in each of many asynchronous solves, of a part and at a moment drawn from the
    seed."""
    subject = subject_of(options.run, options.graph)
    model, graph = subject.model, subject.split.graph
    exact, outputs = single_process(subject)
    yardstick = yardstick_for(model, graph)
    parts, facts = divide(graph, options.split_parts)
    rows = [part.nodes for part in parts]
    solver = default_solver(model, options.rounds, options.tolerance)
    draw = random.Random(options.seed)
    plan: dict[str, Any] = {"at": None, "part": 0, "since": None, "done": False}

    def killer(team: Team) -> None:
        if plan["at"] is None or plan["done"] or time.monotonic() - plan["since"] < plan["at"]:
            return
        plan["done"] = True
        team.engine.kill(plan["part"])

    solves = []
    with Team(Processes(parts, model), watch=killer) as team:
        typical = 0.0
        # Solve 0 is undisturbed and gives the typical duration; a moment that came too late does
        # not count as a kill.
        for number in range(3 * options.count + 1):
            if sum(solve["deaths"] > 0 for solve in solves) >= options.count:
                break
            part, share = draw.randrange(len(parts)), draw.random()
            plan |= {
                "at": typical * share if number else None,
                "part": part,
                "since": time.monotonic(),
                "done": False,
            }
            first, before = len(team.journal.events), sum(team.journal.restarts)
            begun = time.monotonic()
            outcome = solve_asynchronously(
                team,
                solver,
                Pace(staleness=4),
                fetch=("outputs", "state"),
                yardstick=yardstick,
                rows=rows,
            )
            seconds = time.monotonic() - begun
            typical = seconds if number == 0 else typical
            solution, state = outcome.solution, outcome.tensors["state"]
            solves.append(
                {
                    "part": part,
                    "at": round(typical * share, 3) if number else None,
                    "seconds": round(seconds, 3),
                    "deaths": sum(team.journal.restarts) - before,
                    "status": solution.status.label,
                    "rounds": solution.steps,
                    "residual": solution.residual,
                    "relative_distance": relative(state, exact.value),
                    "score": subject.score(outcome.tensors["outputs"]),
                    "output_discrepancy": float(
                        (outcome.tensors["outputs"] - outputs).norm() / outputs.norm()
                    ),
                    **bound_of(yardstick, outcome.metric, state, exact.value),
                    "events": [event["what"] for event in team.journal.events[first:]],
                }
            )
            print(
                number,
                solves[-1]["status"],
                solves[-1]["deaths"],
                solves[-1]["relative_distance"],
                file=sys.stderr,
                flush=True,
            )
        journal = team.journal.to_json()
    disturbed = [solve for solve in solves[1:] if solve["deaths"]]
    return {
        "study": "kills",
        **subject.facts(),
        **facts,
        "single_process": {
            "status": exact.status.label,
            "residual": exact.residual,
            "score": subject.score(outputs),
        },
        "summary": {
            "solves": len(solves) - 1,
            "with_a_death": len(disturbed),
            "statuses": {
                label: sum(s["status"] == label for s in disturbed)
                for label in {s["status"] for s in disturbed}
            },
            "largest_relative_distance": max(
                (s["relative_distance"] for s in disturbed), default=None
            ),
            "largest_output_discrepancy": max(
                (s["output_discrepancy"] for s in disturbed), default=None
            ),
            "above_the_bound": sum(bool(s["above_the_bound"]) for s in disturbed)
            if yardstick
            else None,
            "scores": [min(s["score"] for s in disturbed), max(s["score"] for s in disturbed)]
            if disturbed
            else None,
            "largest_staleness": journal["largest_staleness"],
        },
        "solves": solves,
    }


def bound_of(yardstick: Any, metric: Tensor | None, state: Tensor, exact: Tensor) -> dict[str, Any]:
    """Measured distances beside the proved bounds, level by level."""
    if yardstick is None or metric is None:
        return {"above_the_bound": None}
    bounds, distances = yardstick.bounds(metric.tolist()), yardstick.distances(state, exact)
    # The reference itself is exact to about 1e-13 only.
    above = any(distance > bound + 1e-12 for distance, bound in zip(distances, bounds, strict=True))
    return {"distances": distances, "bounds": bounds, "above_the_bound": above}


# ---------------------------------------------------------------------- staleness


def one_slowed_down(subject: Any, options: argparse.Namespace, **settings: Any) -> Any:
    """Inference in parts of which the first is slower than the others."""
    return infer(
        subject.model,
        subject.split.graph,
        options.split_parts,
        slowdown={0: options.factor},
        **settings,
    )


def staleness(options: argparse.Namespace) -> dict[str, Any]:
    """Every bound, with losses, duplicates, reordering and one part slowed down: is it ever
    exceeded at the reader?"""
    subject = subject_of(options.run, options.graph)
    exact, _ = single_process(subject)
    faults = Faults(loss=0.2, duplication=0.2, delay=5, seed=options.seed)
    rows = []
    for bound in options.bounds:
        for on_late in ("wait", "report"):
            found = one_slowed_down(
                subject,
                options,
                mode="async",
                steps=5000,
                tolerance=1e-8,
                faults=faults,
                pace=Pace(staleness=bound, on_late=on_late),
                state=True,
            )
            record = found.record
            rows.append(
                {
                    "bound": bound,
                    "on_late": on_late,
                    "largest_staleness": record["largest_staleness"],
                    "late_reads": record["late_reads"],
                    "reads": sum(record["staleness"].values()),
                    "status": found.solution.status.label,
                    "residual": found.solution.residual,
                    "relative_distance": relative(found.solution.value, exact.value),
                    "rounds": [part["rounds"] for part in record["parts"]],
                    "seconds": record["seconds"],
                    "seconds_waiting": record["seconds_waiting"],
                    "messages": record["messages"],
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return {
        "study": "staleness",
        **subject.facts(),
        "faults": faults.to_json(),
        "slowed": {"0": options.factor},
        "rows": rows,
    }


# ---------------------------------------------------------------------- one slow worker, equal wall
# time


def slow(options: argparse.Namespace) -> dict[str, Any]:
    """Synchronous and asynchronous after the same seconds, one of the workers slowed down."""
    subjects = []
    for run in options.runs:
        subject = subject_of(run, options.graph, double=False)
        exact, outputs = single_process(subject, steps=2000)
        norm = float(outputs.norm())
        rows = []
        for seconds in options.seconds:
            for mode in ("sync", "async"):
                limits = {"steps": 10**6, "tolerance": 1e-7, "seconds": seconds}
                found = one_slowed_down(
                    subject, options, mode=mode, pace=Pace(staleness=16), **limits
                )
                parts = found.record["parts"]
                rows.append(
                    {
                        "seconds": seconds,
                        "mode": mode,
                        "status": found.solution.status.label,
                        "residual": found.solution.residual,
                        "score": subject.score(found.outputs),
                        "output_discrepancy": float((found.outputs - outputs).norm()) / norm,
                        "rounds": [part["rounds"] for part in parts],
                        "waited": [part["waited"] for part in parts],
                        "largest_staleness": found.record["largest_staleness"],
                    }
                )
                print(subject.name, rows[-1], file=sys.stderr, flush=True)
        reference = {
            "status": exact.status.label,
            "residual": exact.residual,
            "score": subject.score(outputs),
        }
        subjects.append({**subject.facts(), "single_process": reference, "rows": rows})
    return {
        "study": "slow",
        "slowed": {"0": options.factor},
        "parts": options.split_parts,
        "staleness": 16,
        "subjects": subjects,
    }


# ---------------------------------------------------------------------- a million nodes


def _generate(folder: str, nodes: int, level: int, parts: list[int], queue: Any) -> None:
    """In a process of its own, so that nobody else ever holds the whole graph."""
    begun = time.monotonic()
    graph, _ = community_graph(42, level=level, nodes=nodes)
    generated = time.monotonic() - begun
    facts: dict[str, Any] = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "generating_seconds": round(generated, 1),
        "cuts": {},
    }
    for count in parts:
        begun = time.monotonic()
        assignment = partition(graph, count)
        found = time.monotonic() - begun
        for part in cut_graph(graph, assignment):
            part.save(Path(folder) / f"{count}-{part.number}.part")
        facts["cuts"][str(count)] = {
            "partition_seconds": round(found, 1),
            "cutting_seconds": round(time.monotonic() - begun - found, 1),
            "cut_edges": edge_cut(graph, assignment),
        }
    queue.put(facts)


def scale(options: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of every worker; one slowed part, synchronous against asynchronous."""
    model = load_model(folder_of(options.run))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(
            target=_generate, args=(folder, options.nodes, options.level, options.parts, queue)
        )
        process.start()
        facts = queue.get()
        process.join()
        solver = Picard(steps=options.steps, tolerance=1e-6, distance=model.solver.distance)
        for count in options.parts:
            paths = [Path(folder) / f"{count}-{number}.part" for number in range(count)]
            for mode, slowdown in (
                ("sync", {}),
                ("sync", {0: options.factor}),
                ("async", {0: options.factor}),
            ):
                if slowdown and count != 4:
                    continue
                pace = Pace(staleness=4, keep_every=0, snapshot_rounds=10**6)
                settings = (
                    {"solver": solver}
                    if mode == "sync"
                    else {"steps": options.steps, "tolerance": 1e-6, "pace": pace}
                )
                found = infer_parts(
                    model, paths, mode=mode, outputs=False, slowdown=slowdown, **settings
                )
                record = found.record
                solving = max(
                    event["seconds"] for event in record["events"] if event["what"] == "started"
                )
                rows.append(
                    {
                        "parts": count,
                        "mode": mode,
                        "slowed": {str(k): v for k, v in slowdown.items()},
                        "seconds": round(record["seconds"] - solving, 2),
                        "residual": found.solution.residual,
                        "waiting_share": round(
                            record["seconds_waiting"]
                            / max(1e-9, count * (record["seconds"] - solving)),
                            4,
                        ),
                        "computing_seconds": [part["computed"] for part in record["parts"]],
                        "peak_memory_bytes": [
                            part["peak_memory_bytes"] for part in record["parts"]
                        ],
                        "part_nodes": [part["nodes"] for part in record["parts"]],
                        "part_edges": [part["edges"] for part in record["parts"]],
                        "halo": [part["halo"] for part in record["parts"]],
                        "message_bytes": record["message_bytes"],
                    }
                )
                print(rows[-1], file=sys.stderr, flush=True)
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    facts |= {
        "level": options.level,
        "steps": options.steps,
        "driver_peak_memory_bytes": driver,
        "rows": rows,
    }
    return {"study": "scale", "model": type(model).__name__, **facts}


if __name__ == "__main__":
    main()
