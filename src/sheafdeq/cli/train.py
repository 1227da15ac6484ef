"""``sheafdeq train``: one run, from the command line or a TOML file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import (
    Parser,
    add_assignments,
    parse_assignments,
    real_number,
    seed_number,
    whole_number,
)
from sheafdeq.cli.data_options import add_data_options, data_choice
from sheafdeq.cli.models import model_names
from sheafdeq.cli.run_names import add_runs
from sheafdeq.cli.tasks import task_names
from sheafdeq.errors import RecordError, UsageError

if TYPE_CHECKING:
    from sheafdeq.equilibrium import GraphModel
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.progress import Progress
    from sheafdeq.training.run import RunResult
    from sheafdeq.training.trackers import Tracker


HELP = "train one model on one task"


def configure(parser: Parser) -> None:
    """Train one configuration under the paper's protocol, keep the best-validation checkpoint, and
    file the run under --out."""
    parser.value(
        "--config",
        str,
        "a TOML file with the configuration; other options replace its values",
        metavar="FILE",
    )
    parser.value(
        "--recipe",
        str,
        "a configuration that ships with the package (reliable: SheafDEQ that settles; "
        "cascade, cascade-wide: the Sheaf Cascade); other options replace its values",
        metavar="NAME",
    )
    words = "task name (see `sheafdeq tasks`); with files of your own, what they are to be called"
    parser.value("--task", str, words, known=task_names)
    parser.value("--level", whole_number(0, 10), "heterophily level of a community task")
    words = "model name (see `sheafdeq models`), or a class of your own, my_models:MyModel"
    parser.value("--model", str, words, metavar="NAME|MODULE:CLASS", known=model_names)
    add_assignments(parser)
    add_data_options(parser)
    parser.value("--seed", seed_number, "parameter-initialisation seed (default 42)")
    parser.add_argument(
        "--epochs",
        type=whole_number(0, 10**7),
        dest="max_epochs",
        help="at most this many epochs (default 2000)",
    )
    parser.value(
        "--patience",
        whole_number(1, 10**7),
        "stop after so many epochs without improvement (default: the task's)",
    )
    parser.value("--learning-rate", real_number(0, above=True), "default 0.01")
    parser.value("--weight-decay", real_number(0), "default 0.0005")
    parser.value("--clip-norm", real_number(0, above=True), "default 1")
    parser.choice(
        "--schedule",
        ["constant", "wsd", "plateau"],
        "learning-rate schedule (default wsd, the paper's)",
    )
    parser.value(
        "--threads",
        whole_number(1, 1024),
        "threads of torch (default 1; part of the run's identity)",
    )
    parser.choice("--dtype", ["float32", "float64"], "default float32")
    add_runs(
        parser,
        "init_from",
        flag="--init-from",
        other="a run of --out",
        help="start from the checkpoint of a run (its directory, or the beginning of its id)",
    )
    parser.value(
        "--test-every",
        whole_number(),
        "record the test score at every K-th epoch, for figures only",
        metavar="K",
    )
    parser.value(
        "--residual-weight", real_number(0), "penalty on the mean squared residual (default 0)"
    )
    parser.value(
        "--residual-max-weight",
        real_number(0),
        "penalty on the largest squared residual (default 0)",
    )
    parser.value(
        "--rate-weight", real_number(0), "penalty on contraction rates above 0.9 (default 0)"
    )
    parser.folder("--out", "run store; without it nothing is written")
    parser.flag("--fresh", "do not resume an unfinished run")
    parser.value("--checkpoint-seconds", real_number(0), "how often the state is saved", 30.0)
    parser.folder(
        "--tensorboard", "write TensorBoard curves below this folder (needs sheafdeq[tensorboard])"
    )
    parser.value(
        "--wandb",
        str,
        "log to Weights & Biases (needs sheafdeq[wandb]; WANDB_MODE=offline keeps it here)",
        metavar="[ENTITY/]PROJECT",
    )
    parser.value(
        "--parts",
        whole_number(1, 1024),
        "solve and differentiate in P parts with a worker each; without --out",
        metavar="P",
    )
    parser.choice(
        "--engine", ["local", "ray", "in-process"], "where the workers of --parts live", "local"
    )
    parser.folder("--save", "with --parts: write the best checkpoint into this folder")
    parser.answers(run)


def _table(values: dict[str, Any], key: str, source: str | None) -> dict[str, Any]:
    """A part of a configuration, copied; anything but a table is refused by name."""
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{source}: {key} must be a table, got {found!r}")
    return dict(found)


def _values(options: argparse.Namespace) -> dict[str, Any]:
    from pathlib import Path

    from sheafdeq.regular_file import read_toml
    from sheafdeq.training.config import OWN, with_places
    from sheafdeq.training.recipe import with_recipe

    if options.model is not None and ":" in options.model:
        from sheafdeq.user_models import use_model

        use_model(options.model)  # it was named on the command line
    values: dict[str, Any] = read_toml(Path(options.config)) if options.config else {}
    if "task" in values:
        values["task"] = with_places(values["task"], Path(options.config).parent)
    for key in ("task", "model"):
        if isinstance(values.get(key), str):
            values[key] = {"name": values[key]}
    task, model = (_table(values, key, options.config) for key in ("task", "model"))
    for part, key in ((task, "options"), (model, "options"), (values, "penalties")):
        _table(part, key, options.config)
    for target, key, value in (
        (task, "name", options.task),
        (task, "level", options.level),
        (model, "name", options.model),
    ):
        if value is not None:
            target[key] = value
    data = data_choice(options)
    if data.files and "name" not in task:
        task["name"] = OWN
    task.update(data.fields())
    given = {**parse_assignments(options.task_set), **data.options}
    if given:
        task["options"] = {**task.get("options", {}), **given}
    if options.set:
        model["options"] = {**model.get("options", {}), **parse_assignments(options.set)}
    values.update(parse_assignments(options.training_set))
    values.update(task=task, model=model)
    for key in (
        "seed",
        "max_epochs",
        "patience",
        "learning_rate",
        "weight_decay",
        "clip_norm",
        "schedule",
        "threads",
        "dtype",
        "init_from",
        "test_every",
    ):
        if getattr(options, key) is not None:
            values[key] = getattr(options, key)
    penalties = {
        key: getattr(options, key)
        for key in ("residual_weight", "residual_max_weight", "rate_weight")
    }
    if any(value is not None for value in penalties.values()):
        given = {key: value for key, value in penalties.items() if value is not None}
        values["penalties"] = {**values.get("penalties", {}), **given}
    if options.recipe:
        values = with_recipe(options.recipe, values)
    if ("name" not in values["task"] and "files" not in values["task"]) or "name" not in values[
        "model"
    ]:
        raise UsageError(
            "give --task (or your own graph) and --model, or a --config or --recipe that names them"
        )
    return values


def _check_start(options: argparse.Namespace) -> None:
    """A word that names no run is a slip of the pen."""
    from sheafdeq.training.run_identity import start_of
    from sheafdeq.training.store import RunStore

    if options.init_from is not None:
        try:
            start_of(options.init_from, RunStore(options.out) if options.out else None)
        except RecordError as error:
            raise UsageError(str(error)) from error


def run(options: argparse.Namespace) -> int:
    """Train and print the scores."""
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.kept_memory import keep_freed_memory
    from sheafdeq.training.progress import progress_from
    from sheafdeq.training.run import train

    keep_freed_memory()
    config = TrainingConfig.parse(
        _values(options), options.config or options.recipe or "command line"
    )
    _check_start(options)
    if options.save and options.parts is None:
        raise UsageError("--save goes with --parts: other runs are kept by --out")
    progress: Progress = progress_from("auto")
    trackers = _trackers(options, config, progress)
    progress = trackers[-1] if trackers else progress
    try:
        if options.parts is not None:
            result = _in_parts(options, config, progress)
        else:
            result = train(
                config,
                out=options.out,
                resume=not options.fresh,
                progress=progress,
                checkpoint_seconds=options.checkpoint_seconds,
                download=options.download,
            )
        for tracker in trackers:
            tracker.summary(result.record)
    finally:
        for tracker in trackers:
            tracker.close()
    return _print(options, result)


def _trackers(
    options: argparse.Namespace, config: TrainingConfig, display: Progress
) -> list[Tracker]:
    """The trackers asked for, each around the one before; the last is the display to use."""
    from pathlib import Path

    from sheafdeq.training.run_identity import by_content, identify, task_of
    from sheafdeq.training.store import RunStore, safe_name
    from sheafdeq.training.trackers import TensorBoardTracker, WandbTracker

    boards = projects = None
    if options.tensorboard:
        boards = display = TensorBoardTracker(options.tensorboard, display, held=True)
    if options.wandb:
        projects = display = WandbTracker(options.wandb, display, held=True)
    found: list[Tracker] = [tracker for tracker in (boards, projects) if tracker is not None]
    if not found:
        return found
    run_id = None
    if options.out:  # a stored run has a name, under which it can go on
        digest = task_of(config, download=options.download).digest
        run_id = identify(config, digest, store=RunStore(options.out)).id
    if boards is not None:
        name = safe_name(config.title) + ("" if run_id is None else f"-{run_id[:8]}")
        boards.folder = str(Path(options.tensorboard) / name)
    if projects is not None:
        projects.config, projects.run_id = by_content(config), run_id
    return found


def _in_parts(options: argparse.Namespace, config: TrainingConfig, progress: Progress) -> RunResult:
    """Train with the solves and their gradients computed by workers."""
    from pathlib import Path

    from sheafdeq.distributed import Partitioned
    from sheafdeq.distributed.part_state import checked_model
    from sheafdeq.training.checkpoint import save_checkpoint
    from sheafdeq.training.loop import shape_of
    from sheafdeq.training.run import train
    from sheafdeq.training.run_identity import task_of

    if options.out:
        raise UsageError(
            "--parts sums in another order than one process, so the run is not the one --out "
            "would name: omit --out, use --save DIR"
        )
    if config.penalties.active:
        raise UsageError(
            "penalties look at whole states, which parts do not share: train without "
            "them, or without --parts"
        )
    held: list[Partitioned] = []

    def attach(model: GraphModel) -> None:
        partitioned = Partitioned(
            checked_model(model), options.parts, engine=options.engine, threads=config.threads
        )
        held.append(partitioned)
        model.run = partitioned.run  # type: ignore[method-assign, assignment]

    try:
        result = train(
            config,
            progress=progress,
            download=options.download,
            attach=attach,
            engine=f"parts-{options.engine}",
        )
    finally:
        for partitioned in held:
            partitioned.close()
            partitioned.model.__dict__.pop("run", None)
    if options.save:
        folder = Path(options.save)
        folder.mkdir(parents=True, exist_ok=True)
        shape = shape_of(task_of(config))
        save_checkpoint(
            folder,
            result.model.state_dict(),
            config.model.name,
            config.model.options,
            shape,
            parts=options.parts,
        )
    return result


def _print(options: argparse.Namespace, result: RunResult) -> int:
    record = result.record
    if options.json:
        summary = {
            "id": record.id,
            "path": str(result.path) if result.path else None,
            "reused": result.reused,
            "scores": record.scores,
            "score": record.task.score,
            "best_epoch": record.best.epoch,
            "epochs": record.epochs,
            "stopped": record.stopped,
            "parameters": record.model.parameters,
            "solves": record.solves.model_dump(mode="json") if record.solves else None,
            "timing": record.timing,
        }
        print(json.dumps(summary, sort_keys=True))
        return 0
    print(f"{record.model.title} on {record.task.title}, seed {record.seed}: {record.task.score}")
    for split in ("train", "validation", "test"):
        print(f"  {split:<11}{record.scores[split]:10.4f}")
    print(
        f"  best epoch {record.best.epoch} of {record.epochs} ({record.stopped}), "
        f"{record.model.parameters:,} parameters"
    )
    if record.solves is not None:
        ended = ", ".join(
            f"{count} {label}" for label, count in sorted(record.solves.final.items())
        )
        print(
            f"  final solves ({record.solves.steps} steps at most): {ended}; largest residual "
            f"{record.solves.residual}"
        )
    if result.path is not None:
        print(f"  {'found' if result.reused else 'stored'} in {result.path}")
    return 0
