"""``sheafdeq demo``: two models side by side. Accurate? At rest? Proved?

SheafDEQ by the paper's protocol and the Sheaf Cascade by its recipe are trained on one community
task until a validation accuracy is reached. Then both go on iterating on the first test graph, from
their own start and from two far ones, and a certificate is sought for each that comes to rest.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from sheafdeq.data.objective import Objective
    from sheafdeq.data.task import Split
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.training import TrainingConfig

from sheafdeq.cli.arguments import Parser, output_file, real_number, seed_number, whole_number

__all__ = ["configure", "run"]

ITERATIONS = 100
FAR = (1e-3, 1e3)
"""Scales of the two other starts."""
RESTING = 1e-4
"""Largest relative change, in float32, below which a state is called at rest."""
SAME = 1e-2
"""Largest relative difference of a node, below which two ends are called one state."""


HELP = "SheafDEQ and the Sheaf Cascade side by side: accurate, at rest, proved?"


def configure(parser: Parser) -> None:
    """Train SheafDEQ (the paper's protocol) and the Sheaf Cascade (its recipe) on a community task
    until validation accuracy passes a goal, continue both recurrences from three starts, and say
    what can be proved about each."""
    parser.flag("--json", "print one JSON object (progress goes to standard error)")
    parser.value("--level", whole_number(0, 10), "rewiring level 0..10", 10)
    parser.value("--seed", seed_number, "parameter-initialisation seed", 42)
    parser.value("--goal", real_number(), "validation accuracy in per cent to stop at", 95.0)
    parser.value("--epochs", whole_number(1, 10**7), "give up after this many epochs", 400)
    parser.value("--threads", whole_number(1, 1024), "threads (default: all that torch uses)")
    parser.value(
        "--nodes",
        whole_number(30, 10**6),
        "nodes of each graph (default 1500; smaller is faster)",
        1500,
    )
    parser.value(
        "--page",
        lambda text: output_file(".html")(text) if text else text,
        "explorer page of what was trained (default sheafdeq-demo.html; '' for none)",
        "sheafdeq-demo.html",
        metavar="FILE",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train both, continue, certify, report, show; exit code 1 when one misses the goal."""
    import torch

    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.recipe import recipe

    threads = options.threads or torch.get_num_threads()
    common: dict[str, Any] = {
        "task": {
            "name": "community",
            "level": options.level,
            "options": {} if options.nodes == 1500 else {"nodes": options.nodes},
        },
        "seed": options.seed,
        "max_epochs": options.epochs,
        "patience": options.epochs,
        "threads": threads,
    }
    paper = TrainingConfig.parse(
        {**common, "model": {"name": "sheafdeq", "options": {"shift": 1.3}}}
    )
    cascade = recipe("cascade", {**common, "keep": "best"})
    stage: list[tuple[str, EquilibriumModel]] = []
    report: dict[str, Any] = {
        "level": options.level,
        "seed": options.seed,
        "threads": threads,
        "goal": options.goal,
        "models": [
            _contender("SheafDEQ, the paper's protocol", paper, options.goal, stage),
            _contender("Sheaf Cascade, its recipe", cascade, options.goal, stage),
        ],
    }
    report["page"] = _page(stage, paper, options.page) if options.page else None
    report["goal_reached"] = all(model["goal_reached"] for model in report["models"])
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["goal_reached"] else 1


def _page(stage: list[tuple[str, EquilibriumModel]], config: TrainingConfig, out: str) -> str:
    """Both models iterating on the first test graph, as a page."""
    from pathlib import Path

    from sheafdeq.cli.explore import explore_models
    from sheafdeq.training.parts import parts_of
    from sheafdeq.training.run_identity import task_of

    task = task_of(config)
    return str(explore_models(stage, task, parts_of(task.test, task.objective, 1)[0], Path(out)))


def _contender(
    title: str, config: TrainingConfig, goal: float, stage: list[tuple[str, EquilibriumModel]]
) -> dict[str, Any]:
    """Train one model, continue it from three starts, certify it on the first test graph; the model
    joins ``stage``."""
    from sheafdeq.certificates import certify
    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.training.parts import parts_of
    from sheafdeq.training.run import train
    from sheafdeq.training.run_identity import task_of

    start = time.monotonic()
    result = train(config, progress="auto", stop_when=lambda metrics: metrics.validation >= goal)
    seconds = time.monotonic() - start
    model, task = result.model, task_of(config)
    assert isinstance(model, EquilibriumModel)
    stage.append((title.split(",")[0], model))
    best = result.record.metrics["validation"]["accuracy"]
    validation = float("nan") if best is None else 100 * best
    part = parts_of(task.test, task.objective, 1)[0]
    trained, _ = _end(model, part, task.objective, model.steps)
    continued, own = _end(model, part, task.objective, ITERATIONS)
    # Convergence from every start cannot be proved of a map that was just seen to move on.
    at_rest = continued["residual"] <= RESTING
    certificate = certify(model, part.graph, effort="quick") if at_rest else None
    return {
        "title": title,
        "model": repr(model),
        "parameters": model.num_parameters(),
        "edge_inputs": "states, feature differences"
        if getattr(model, "differences", False)
        else "states",
        "training_seconds": round(seconds, 1),
        "epochs": result.record.epochs,
        "validation_accuracy": validation,
        "goal_reached": validation >= goal,
        "test_accuracy": result.record.scores["test"],
        "horizons": [trained, continued],
        "starts": _starts(model, part, task.objective, own),
        "verdict": "nothing sought, it does not rest"
        if certificate is None
        else str(certificate.verdict),
        "reach": None if certificate is None else str(certificate.level),
        "rate": None if certificate is None else certificate.rate,
    }


def _end(
    model: EquilibriumModel,
    split: Split,
    objective: Objective,
    steps: int,
    start: Tensor | None = None,
) -> tuple[dict[str, Any], Tensor]:
    """What a number of plain iterations leads to, and the state itself."""
    import torch

    with torch.no_grad():
        output = model.run(split.graph, steps=steps, initial_state=start)
    solution = output.solution
    assert solution is not None
    facts = {
        "iterations": steps,
        "accuracy": 100 * objective.metrics(output.logits, split)["accuracy"],
        "residual": solution.residual,
        "status": solution.status.label,
        "tolerance": solution.tolerance,
    }
    return facts, solution.value


def _starts(
    model: EquilibriumModel, split: Split, objective: Objective, own: Tensor
) -> dict[str, Any]:
    """Where two far starts end, and how far from ``own``, the end of the model's own start."""
    from sheafdeq.diagnostics.multistart import random_start
    from sheafdeq.distances import RELATIVE_SUP

    accuracies, apart = [], 0.0
    for seed, scale in enumerate(FAR):
        facts, end = _end(model, split, objective, ITERATIONS, random_start(own, scale, seed))
        accuracies.append(facts["accuracy"])
        apart = max(apart, float(RELATIVE_SUP(end, own).max()))
    return {"scales": list(FAR), "accuracy": accuracies, "apart": apart}


def _print(report: dict[str, Any]) -> None:
    first, second = report["models"]

    def line(name: str, left: str, right: str) -> None:
        print(f"{name:<37}{left:<34}{right}")

    def both(name: str, text: Any) -> None:
        line(name, text(first), text(second))

    print(
        f"\nCommunity level {report['level']}, seed {report['seed']}, {report['threads']} "
        "thread(s)\n"
    )
    both("", lambda m: m["title"])
    both("parameters", lambda m: f"{m['parameters']:,}")
    both("its edges see", lambda m: m["edge_inputs"])
    goal = f"{report['goal']:g} % validation accuracy"
    both(
        goal,
        lambda m: (
            f"{'reached' if m['goal_reached'] else 'NOT reached'} after "
            f"{m['training_seconds']:.0f} s"
        ),
    )
    both("accurate? three test graphs", lambda m: f"{m['test_accuracy']:.2f} %")
    both("          the first of them", lambda m: f"{m['horizons'][0]['accuracy']:.2f} %")
    both(
        f"          after {ITERATIONS} iterations",
        lambda m: f"{m['horizons'][1]['accuracy']:.2f} %",
    )
    both(
        "          from two far starts",
        lambda m: " and ".join(f"{a:.2f} %" for a in m["starts"]["accuracy"]),
    )
    both(f"at rest?  change at iteration {ITERATIONS}", _rest)
    both("          ends of the three starts", _agreement)
    both("proved?   on that graph", _proof)
    print(
        "\nAt rest: no node changes by more than 1e-4 of its size in the last step. A model "
        "trained for a fixed number of steps can be"
        "\naccurate without a state to rest in: `sheafdeq train --recipe reliable` trains "
        "SheafDEQ to rest, `sheafdeq settle` mends a"
        "\nfinished run, and `sheafdeq certify` says in full what is proved."
    )
    if report["page"]:
        print(f"\nSee both iterate: open {report['page']}")


def _rest(model: dict[str, Any]) -> str:
    residual = model["horizons"][1]["residual"]
    return f"{'yes' if residual <= RESTING else 'no'}, {residual:.1e}"


def _agreement(model: dict[str, Any]) -> str:
    apart = model["starts"]["apart"]
    if model["horizons"][1]["residual"] > RESTING:
        return f"still moving, {apart:.0%} apart"
    return "one state" if apart <= SAME else f"different states, {apart:.0%} apart"


def _proof(model: dict[str, Any]) -> str:
    if model["rate"] is None or model["verdict"] != "certified":
        return str(model["verdict"])
    return f"{model['verdict']}, {model['reach']}, rate {model['rate']:.3f}"
