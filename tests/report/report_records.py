"""Records with given scores, as a run would write them."""

from __future__ import annotations

from sheafdeq.records import EVALUATION_SCHEMA, RunRecord
from sheafdeq.training.config import TrainingConfig

SOLVES = {
    "to_tolerance": True,
    "steps": 5,
    "tolerance": 1e-6,
    "training": {},
    "final": {"maximum-steps": 1},
    "residual": 1.0,
}


def record(
    *,
    test,
    validation,
    seed=42,
    model="sheafdeq",
    shift=1.3,
    level=10,
    task="community",
    unconverged=False,
    finished="1",
    edge_inputs=None,
    differences=None,
    masks=None,
    mixers=None,
    margin=None,
    **training,
):
    """A record with the given scores; everything else is what a run would write."""
    options = {} if shift is None else {"shift": shift}
    if differences is not None:
        options["differences"] = differences
    if masks is not None:
        options["masks"] = masks
    if mixers is not None:
        options["mixers"] = mixers
    task_options = {} if edge_inputs is None else {"edge_inputs": edge_inputs}
    if margin is not None:
        task_options["margin"] = margin
    config = TrainingConfig.parse(
        {
            "task": {"name": task, "level": level, "options": task_options},
            "model": {"name": model, "options": options},
            "seed": seed,
            **training,
        }
    )
    digest = (
        f"{model}{options}{level}{seed}{task}{task_options}{finished}{sorted(training.items())}"
    )
    return RunRecord.parse(
        {
            "format": 1,
            "id": digest,
            "config": config.payload(),
            "task": {
                "name": task,
                "title": task,
                "level": level,
                "options": {},
                "digest": "",
                "score": "accuracy (%)",
                "constant_score": 33.0,
            },
            "model": {
                "name": model,
                "title": model.title(),
                "family": model,
                "options": options,
                "parameters": 1,
            },
            "code": {},
            "epochs": 1,
            "stopped": "patience",
            "best": {"epoch": 1, "validation": validation},
            "scores": {"train": 0.0, "validation": validation, "test": test},
            "metrics": {"test": {"accuracy": test / 100}},
            "solves": SOLVES if unconverged else None,
            "curves": {},
            "checkpoint": {},
            "timing": {"finished": finished, "wall_seconds": 1.0},
        },
        "test",
    )


def evaluation_payload(run, score, label="fresh"):
    """One run judged on other graphs, as ``sheafdeq evaluate`` writes it."""
    return {
        "schema": EVALUATION_SCHEMA,
        "command": "",
        "label": label,
        "run": run.id,
        "model": {},
        "seed": run.seed,
        "task": {},
        "splits": {"test": {"score": score}},
        "solves": None,
        "dtype": "float32",
        "timing": {},
    }
