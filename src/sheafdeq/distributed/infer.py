"""One call from a model and a graph to outputs computed in parts, with the record of what
happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Unpack

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.distributed.assignment import checked_assignment, edge_cut, partition
from sheafdeq.distributed.asynchronous import Pace, solve_asynchronously
from sheafdeq.distributed.engine import Engine, PartSource
from sheafdeq.distributed.in_process import InProcess
from sheafdeq.distributed.mail import NO_FAULTS, Faults
from sheafdeq.distributed.part import Part, cut_graph
from sheafdeq.distributed.part_state import checked_model
from sheafdeq.distributed.processes import Processes
from sheafdeq.distributed.synchronous import checked_solver, solve_synchronously
from sheafdeq.distributed.team import Team, Watcher
from sheafdeq.distributed.yardstick import Yardstick
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.solvers import Picard, Solution, Solver, Stopping
from sheafdeq.solvers.fixed_point import FixedPointSolver

__all__ = ["ENGINES", "Inference", "divide", "engine_for", "infer", "infer_parts"]

LARGEST_TRIAL = 20_000
"""Nodes up to which a model from elsewhere is tried on its parts before work starts."""
ENGINES = ("local", "ray", "in-process")
MODES = ("sync", "async")
Making = Callable[[Sequence[PartSource], EquilibriumModel], Engine]
"""What makes an engine of parts and a model."""


@dataclass(frozen=True, eq=False)
class Inference:
    """What came out. ``solution.value`` is the state when it was asked for, else it has no rows.

    ``record`` is ready for JSON: mode, engine, parts, how it ended, the bound on the distance to
    the equilibrium where one is proved, and the journal (restarts, largest staleness, messages,
    bytes, seconds waiting, course of every part).
    """

    outputs: Tensor  # (n, o)
    solution: Solution
    record: dict[str, Any]


def default_solver(model: EquilibriumModel, steps: int, tolerance: float) -> Picard:
    """Picard iteration to a tolerance, otherwise by the rules of the model's own solver."""
    own = model.solver
    rule = own.stopping if isinstance(own, FixedPointSolver) else Stopping(steps)
    method = own if isinstance(own, Picard) else Picard(stopping=rule)
    return method.with_stopping(steps=steps, tolerance=tolerance, stop_early=True)


def divide(
    graph: Graph, parts: int | Tensor | Sequence[int], *, method: str = "auto"
) -> tuple[list[Part], dict[str, Any]]:
    """The parts of a graph, and how they were made."""
    if isinstance(parts, int):
        assignment = partition(graph, parts, method=method)
        how = method
    else:
        assignment, how = checked_assignment(parts, graph.num_nodes), "given"
    cut = cut_graph(graph, assignment)
    facts = {
        "partition": how,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "cut_edges": edge_cut(graph, assignment),
        "halo_rows": sum(len(part.halo) for part in cut),
    }
    return cut, facts


@torch.no_grad()
def check_parts(model: EquilibriumModel, graph: Graph, parts: Sequence[Part]) -> None:
    """Do the parts of a small graph step as the whole does? :class:`InputError` for a model that
    looks further.

    Models of this package are held to that by tests; for others nothing but a trial can tell. Large
    graphs are not tried.
    """
    if type(model).__module__.startswith("sheafdeq.") or graph.num_nodes > LARGEST_TRIAL:
        return
    training = model.training
    model.eval()
    context = model.prepare(graph)
    state = model.step(model.initial_state(context), context)
    whole = model.step(state, context)
    worst = 0.0
    for part in parts:
        rows = torch.cat([state[part.nodes], state[part.halo]])
        image = model.step(rows, model.prepare(part.graph))[: part.own]
        scale = whole[part.nodes].abs().max().clamp(min=1.0) if part.own else torch.ones(())
        worst = max(worst, float(((image - whole[part.nodes]).abs().nan_to_num() / scale).max()))
    model.train(training)
    if worst > 1e3 * torch.finfo(state.dtype).eps * max(1, graph.num_edges) ** 0.5:
        raise InputError(
            f"parts of this graph do not compute what the whole does with {type(model).__name__} "
            f"(difference {worst:.2g} after one "
            "step): its prepare or step looks beyond a node's incoming edges; set local_prepare = "
            "False on it, or make it local"
        )


def engine_for(
    name: str,
    parts: Sequence[PartSource],
    model: EquilibriumModel,
    *,
    threads: int = 1,
    faults: Faults = NO_FAULTS,
    seed: int = 0,
    ray_address: str | None = None,
) -> Engine:
    """The engine of this name."""
    if name == "local":
        return Processes(parts, model, threads=threads, faults=faults)
    if name == "in-process":
        return InProcess(parts, model, faults=faults, seed=seed)
    if name == "ray":
        from sheafdeq.distributed.on_ray import RayActors

        return RayActors(parts, model, threads=threads, faults=faults, address=ray_address)
    raise InputError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")


class SolvingInParts(TypedDict, total=False):
    """How parts are solved; :func:`infer_parts` explains it."""

    mode: str
    engine: str | Making
    solver: Solver | None
    steps: int
    tolerance: float
    pace: Pace | None
    yardstick: Yardstick | None
    state: bool
    watch: Watcher | None
    seconds: float | None
    slowdown: Mapping[int, float] | None
    threads: int
    faults: Faults
    seed: int
    ray_address: str | None


def infer(
    model: EquilibriumModel,
    graph: AnyGraph,
    parts: int | Tensor | Sequence[int] = 2,
    *,
    method: str = "auto",
    initial_state: Tensor | None = None,
    **options: Unpack[SolvingInParts],
) -> Inference:
    """Solve in parts and read out.

    Args:
        model: any equilibrium model with ``local_step``, of this package or your own.
        graph: the whole graph; it is cut here and not kept.
        parts: how many, or the part of every node.
        method: how nodes are assigned, see :func:`~sheafdeq.distributed.assignment.partition`.
        initial_state: (n, c) another start than the model's.
        options: those of :func:`infer_parts`.
    """
    checked_model(model)
    graph = Graph.of(graph)
    model.check(graph)
    team_parts, facts = divide(graph, parts, method=method)
    check_parts(model, graph, team_parts)
    rows = [part.nodes for part in team_parts]
    return infer_parts(model, team_parts, rows=rows, start=initial_state, facts=facts, **options)


def infer_parts(
    model: EquilibriumModel,
    parts: Sequence[PartSource],
    *,
    mode: str = "sync",
    engine: str | Making = "local",
    solver: Solver | None = None,
    steps: int = 1000,
    tolerance: float = 1e-6,
    pace: Pace | None = None,
    yardstick: Yardstick | None = None,
    state: bool = False,
    outputs: bool = True,
    watch: Watcher | None = None,
    rows: list[Tensor] | None = None,
    start: Tensor | None = None,
    facts: dict[str, Any] | None = None,
    seconds: float | None = None,
    slowdown: Mapping[int, float] | None = None,
    **engine_options: Any,
) -> Inference:
    """The same for parts that are there already, or in files that only their workers read.

    With ``outputs=False`` and ``state=False`` nothing of the size of the graph ever reaches the
    driver.

    Args:
        model: as for :func:`infer`.
        parts: or the files that hold them.
        mode: ``sync`` (the numbers of one process) or ``async`` (bounded staleness, see
            :class:`Pace`).
        engine: ``local``, ``ray``, ``in-process``, or a function that makes one of parts and model.
        solver: Picard with its limits; by default ``steps`` and ``tolerance`` in the model's own
            distance.
        pace: the freedom of asynchronous parts.
        yardstick: a proved rate, for the bound
            (:func:`~sheafdeq.distributed.yardstick.yardstick_for`).
        state: return the state, too.
        watch: called between reports.
        seconds: stop at the next judged state after this time, converged or not.
        slowdown: parts that take so many times as long, to see what happens.
        engine_options: ``threads``, ``faults``, ``seed``, ``ray_address``.
        outputs: gather the outputs.
        rows: the nodes of every part.
        start: (n, c) another start than the model's.
        facts: for the record.
    """
    checked_model(model)
    if mode not in MODES:
        raise InputError(f"mode is 'sync' or 'async', got {mode!r}")
    if len(parts) == 0:
        raise InputError("there are no parts: give at least one")
    if yardstick is not None and yardstick.weights is not None and rows is None:
        raise InputError(
            "a weighted metric needs the nodes of every part: give rows, or no yardstick"
        )
    chosen = model.judged(
        checked_solver(solver if solver is not None else default_solver(model, steps, tolerance))
    )
    fetch = (("outputs",) if outputs else ()) + (("state",) if state else ())
    making = engine if callable(engine) else _maker(engine, engine_options)
    preparation: dict[str, Any] = {
        "yardstick": yardstick,
        "rows": rows,
        "start": start,
        "seconds": seconds,
    }
    freedom = pace or Pace()
    if slowdown:
        freedom = replace(freedom, slowdown=slowdown)
    with Team(making(parts, model), watch=watch) as team:
        if mode == "sync":
            outcome = solve_synchronously(
                team, chosen, fetch=fetch, slowdown=freedom.slowdown, **preparation
            )
        else:
            outcome = solve_asynchronously(team, chosen, freedom, fetch=fetch, **preparation)
        journal = team.journal
        name = team.engine.name
    solution = outcome.solution
    if state:
        solution.value = outcome.tensors["state"]
    record: dict[str, Any] = {
        "mode": mode,
        "engine": name,
        **(facts or {}),
        "solve": _solve_facts(solution),
        "bound": _bound(yardstick, outcome.metric),
        **journal.to_json(),
    }
    if mode == "async":
        record["staleness_bound"], record["on_late"] = freedom.staleness, freedom.on_late
    return Inference(outcome.tensors.get("outputs", solution.value[:, :0]), solution, record)


def _maker(name: str, options: dict[str, Any]) -> Making:
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")
    return lambda parts, model: engine_for(name, parts, model, **options)


def _solve_facts(solution: Solution) -> dict[str, Any]:
    residual = solution.residual
    return {
        "status": solution.status.label,
        "statuses": solution.status_counts(),
        "steps": solution.steps,
        "residual": residual if residual < float("inf") else None,
        "distance": solution.distance,
        "tolerance": solution.tolerance,
        "text": str(solution),
    }


def _bound(yardstick: Yardstick | None, metric: Tensor | None) -> dict[str, Any]:
    """The distance to the equilibrium that follows from the residual, or that nothing follows."""
    if yardstick is None or metric is None:
        return {"known": "only the residual: no rate is certified for this model here"}
    return {"known": "distance to the one equilibrium", **yardstick.facts(metric.tolist())}
