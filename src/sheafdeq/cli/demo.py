"""``sheafdeq demo``: train SheafDEQ on a community task, then keep iterating and say what happened."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["configure", "run"]

ITERATIONS = 100


def configure(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train SheafDEQ until 95 %% validation accuracy, then continue its recurrence",
        description="Train SheafDEQ on the community task (level 10) until validation accuracy passes a goal, then continue the "
        "recurrence past its trained horizon and print residual, status and test accuracy.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (progress goes to standard error)")
    parser.add_argument("--level", type=int, default=10, help="rewiring level 0..10 (default 10)")
    parser.add_argument("--seed", type=int, default=42, help="parameter-initialisation seed (default 42)")
    parser.add_argument("--goal", type=float, default=95.0, help="validation accuracy in per cent to stop at (default 95)")
    parser.add_argument("--epochs", type=int, default=400, help="give up after this many epochs (default 400)")
    parser.add_argument("--threads", type=int, default=None, help="threads (default: all that torch uses)")
    parser.add_argument("--nodes", type=int, default=1500, help="nodes of each graph (default 1500; smaller is faster)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, continue, report."""
    import time

    import torch

    from sheafdeq.equilibrium import EquilibriumModel
    from sheafdeq.errors import UsageError
    from sheafdeq.training import TrainingConfig, train
    from sheafdeq.training.run import task_of

    if options.epochs < 1 or options.nodes < 30 or not 0 <= options.level <= 10:
        raise UsageError("--epochs must be at least 1, --nodes at least 30 and --level between 0 and 10")
    threads = options.threads or torch.get_num_threads()
    config = TrainingConfig.model_validate(
        {
            "task": {"name": "community", "level": options.level, "options": {} if options.nodes == 1500 else {"nodes": options.nodes}},
            "model": {"name": "sheafdeq", "options": {"shift": 1.3}},
            "seed": options.seed,
            "max_epochs": options.epochs,
            "threads": threads,
        }
    )
    start = time.monotonic()
    result = train(config, progress="auto", stop_when=lambda metrics: metrics.validation >= options.goal)
    seconds = time.monotonic() - start
    model, task = result.model, task_of(config)
    assert isinstance(model, EquilibriumModel)
    best = result.record.metrics["validation"]["accuracy"]
    validation = float("nan") if best is None else 100 * best
    report: dict[str, Any] = {
        "task": task.title,
        "model": repr(model),
        "seed": options.seed,
        "threads": threads,
        "training_seconds": round(seconds, 1),
        "validation_accuracy": validation,
        "goal": options.goal,
        "goal_reached": validation >= options.goal,
        "horizons": [],
    }
    with torch.no_grad():
        for steps in (model.steps, ITERATIONS):
            output = model.run(task.test.graph, steps=steps)
            solution = output.solution
            assert solution is not None
            report["horizons"].append(
                {
                    "iterations": steps,
                    "test_accuracy": 100 * task.metrics(output.logits, task.test)["accuracy"],
                    "residual": solution.residual,
                    "status": solution.status.label,
                    "tolerance": solution.tolerance,
                }
            )
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["goal_reached"] else 1


def _print(report: dict[str, Any]) -> None:
    print(f"\n{report['model']} on {report['task']}")
    verdict = "reached" if report["goal_reached"] else "NOT reached"
    print(
        f"validation accuracy {report['validation_accuracy']:.2f} % (goal {report['goal']:g} %, {verdict}) "
        f"after {report['training_seconds']:.0f} s on {report['threads']} thread(s)"
    )
    print(f"\n{'iterations':>10}  {'test accuracy':>13}  {'residual':>9}  status")
    for row in report["horizons"]:
        print(f"{row['iterations']:>10}  {row['test_accuracy']:>11.2f} %  {row['residual']:>9.2e}  {row['status']}")
    if any(row["status"] != "converged" for row in report["horizons"]):
        print(
            "\nThe residual is the largest relative change of any node in the last step. A model trained for a fixed number of steps\n"
            "can be accurate without having settled; `sheafdeq settle` fine-tunes for that and `sheafdeq certify` says what is proved."
        )
