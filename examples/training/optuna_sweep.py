"""Optuna over runs that are kept (pip install optuna): a trial is a run of the store, chosen by
validation alone.

    python examples/training/optuna_sweep.py

A trial that was computed before is read back from its record, so a study can be interrupted,
continued and widened.
"""

import tempfile
from pathlib import Path

import optuna

from sheafdeq import TrainingConfig, train


def configuration(
    shift: float, rate: float, channels: int, epochs: int, nodes: int
) -> TrainingConfig:
    return TrainingConfig.parse(
        {
            "task": {"name": "community", "level": 3, "options": {"nodes": nodes}},
            "model": {"name": "sheafdeq", "options": {"shift": shift, "channels": channels}},
            "learning_rate": rate,
            "max_epochs": epochs,
            "threads": 1,
        },
        "trial",
    )


def main(folder: Path, trials: int = 4, epochs: int = 10, nodes: int = 120) -> optuna.Study:
    def objective(trial: optuna.Trial) -> float:
        config = configuration(
            trial.suggest_float("shift", 1.2, 1.6),
            trial.suggest_float("learning_rate", 3e-3, 3e-2, log=True),
            trial.suggest_categorical("channels", [4, 8]),
            epochs,
            nodes,
        )
        record = train(config, out=folder).record
        trial.set_user_attr("run", record.id)
        return record.scores["validation"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=2)
    )
    study.optimize(objective, n_trials=trials)
    best = study.best_trial
    print(f"best validation {best.value:.1f} with {best.params}, run {best.user_attrs['run'][:8]}")
    return study


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
