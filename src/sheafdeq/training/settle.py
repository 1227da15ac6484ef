"""``settle``: fine-tune a trained recurrence until it settles.

The published recipe selects by validation accuracy at a fixed horizon, and gives models that are
accurate there and go on moving afterwards. Settling continues from such a run at a lower learning
rate, in stages whose penalties grow:

    1. residual penalty, moderate: the state at the horizon should hardly change in one more step;
    2. stronger, smaller learning rate;
    3. stronger still, with a penalty on the Jacobian, so that every direction contracts and not
        only the observed one;
    4. and with random positive starts that must end where the model's own start ends.

Each stage is an ordinary stored run that starts from the one before (``init_from``) and keeps its
*last* parameters, since the validation score does not see what the penalties improve. Nothing is
guaranteed: measure the result (``sheafdeq diagnose``) and certify it (``sheafdeq certify``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sheafdeq.errors import InputError
from sheafdeq.records import read_record
from sheafdeq.training.config import TaskConfig, TrainingConfig

if TYPE_CHECKING:
    from sheafdeq.training.progress import Progress
    from sheafdeq.training.run import RunResult

__all__ = ["STAGES", "Stage", "settle", "stage_configs"]


@dataclass(frozen=True)
class Stage:
    """One stage of fine-tuning; weights as in :class:`~sheafdeq.training.config.PenaltyConfig`."""

    epochs: int
    learning_rate: float
    residual_weight: float
    residual_max_weight: float = 0.0
    jacobian_weight: float = 0.0
    agreement_weight: float = 0.0
    # penalise the state after this many steps instead of the trained horizon
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"a stage needs at least one epoch, got {self.epochs!r}")
        if not self.learning_rate > 0:
            raise InputError(f"the learning rate must be positive, got {self.learning_rate!r}")


STAGES = (
    Stage(40, 3e-3, residual_weight=5.0, residual_max_weight=0.02),
    Stage(40, 3e-3, residual_weight=20.0, residual_max_weight=0.1, jacobian_weight=0.01),
    Stage(40, 1e-3, residual_weight=60.0, residual_max_weight=0.5, jacobian_weight=0.03),
    Stage(
        60,
        1e-3,
        residual_weight=60.0,
        residual_max_weight=0.5,
        jacobian_weight=0.05,
        agreement_weight=20.0,
    ),
)
"""The default recipe."""


def stage_configs(config: TrainingConfig, stages: Sequence[Stage] = STAGES) -> list[TrainingConfig]:
    """The configurations of the stages, without ``init_from``, which only the run before can fill
    in."""
    if not stages:
        raise InputError("settling needs at least one stage")
    return [
        config.replace(
            learning_rate=stage.learning_rate,
            max_epochs=stage.epochs,
            patience=stage.epochs + 1,
            schedule="constant",
            keep="last",
            init_from=None,
            stop_at_score=None,
            penalties={
                "residual_weight": stage.residual_weight,
                "residual_max_weight": stage.residual_max_weight,
                "jacobian_weight": stage.jacobian_weight,
                "agreement_weight": stage.agreement_weight,
                "steps": stage.steps,
            },
        )
        for stage in stages
    ]


def settle(
    run: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    stages: Sequence[Stage] = STAGES,
    progress: Progress | str | bool | None = None,
    checkpoint_seconds: float = 30.0,
    task: TaskConfig | None = None,
    download: bool = False,
) -> list[RunResult]:
    """Settle a finished run (its directory); returns one stored result for each stage, the settled
    model last.

    ``task``: the run's own, with the places of its user's files. ``download``: consent to fetching
    missing data.

    A stage that is already in ``out`` is not computed again, and an interrupted one is resumed.
    """
    from sheafdeq.training.run import train

    path = Path(run)
    config = TrainingConfig.of_record(read_record(path).config, str(path))
    if task is not None:
        config = config.model_copy(update={"task": task})
    results: list[RunResult] = []
    for stage in stage_configs(config, stages):
        result = train(
            stage.replace(init_from=str(path)),
            out=out,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            download=download,
        )
        assert result.path is not None
        results.append(result)
        path = result.path
    return results
