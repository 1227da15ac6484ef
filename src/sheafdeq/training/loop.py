"""One seed, one split: the training loop as a state that advances by one epoch at a time.

Epoch e scores the parameters theta_e (e updates old) on the validation split, keeps them if they
are the best so far, and makes the update to theta_{e+1}. A model without randomness in training
mode gives loss and validation score from one forward pass; with dropout, theta_e is scored by a
second pass in evaluation mode. Either way the kept checkpoint is the very parameter vector that
produced the score. The test split is evaluated once, for the kept checkpoint, at the end. With
``weight_average`` theta_e in all this is the average of the parameters, and only updates see the
parameters themselves.

:meth:`Trainer.state` and :meth:`Trainer.restore` carry everything the next epoch depends on
(parameters, optimiser, schedule,
random generator, best checkpoint, curves), so a resumed run is bitwise equal to one that never
stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.data.task import Split, Task
from sheafdeq.equilibrium import EquilibriumModel, GraphModel, Output
from sheafdeq.errors import InputError, SheafDEQError
from sheafdeq.registry import Shape, build_model
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.training.augmentation import augmented, check_augmentation
from sheafdeq.training.average import WeightAverage
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.learning_rate import RateSchedule
from sheafdeq.training.parts import mixed, parts_of
from sheafdeq.training.penalty import Penalty, SettlingPenalty
from sheafdeq.training.solving import check_solves, run_for_training

__all__ = [
    "EpochMetrics",
    "Evaluation",
    "Trainer",
    "TrainingError",
    "evaluate",
    "is_stochastic",
    "judged",
    "shape_of",
]


class TrainingError(SheafDEQError):
    """Training produced nothing that can be reported."""


@dataclass(frozen=True)
class EpochMetrics:
    """What one epoch measured, or the last one that did (``score_every``). Scores: higher is
    better."""

    epoch: int  # updates the scored parameters have seen
    loss: float
    validation: float
    best: float
    best_epoch: int
    learning_rate: float
    scored: bool = True  # False: loss and validation are of an earlier epoch


@dataclass(frozen=True)
class Evaluation:
    """Metrics and scores of one parameter vector on all splits, and how its solves ended."""

    metrics: dict[str, dict[str, float]]
    scores: dict[str, float]
    statuses: dict[str, int]  # graphs by status, over the distinct graphs
    residual: float | None  # largest over the graphs, at the states that were read out
    steps: int | None = None  # most steps any graph took
    distance: str | None = None
    tolerance: float | None = None  # what the residual was held against


def shape_of(task: Task) -> Shape:
    """The sizes a task dictates to a model."""
    size = task.dimensions
    return Shape(
        task.in_channels,
        task.out_channels,
        task.edge_dim or None,
        size.stalk,
        size.channels,
        size.steps,
    )


def is_stochastic(model: nn.Module) -> bool:
    """Whether a forward pass in training mode differs from one in evaluation mode (dropout, batch
    statistics).

    A model may say so itself with the attribute ``stochastic_training``.
    """
    declared = getattr(model, "stochastic_training", None)
    if declared is not None:
        return bool(declared)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return True
        if isinstance(module, nn.modules.batchnorm._NormBase):
            return True
        for name in ("dropout", "input_dropout"):
            rate = getattr(module, name, 0)
            if isinstance(rate, float | int) and rate > 0:
                return True
    return False


def judged(model: GraphModel, graph: Graph) -> Output:
    """The output a model is judged by: its equilibrium where that is guaranteed, else what its own
    solver gives."""
    if isinstance(model, EquilibriumModel) and model.guaranteed:
        return model.run_to_equilibrium(graph)
    return model.run(graph)


@torch.no_grad()
def evaluate(
    model: GraphModel, task: Task, splits: Sequence[str] | None = None, *, scale: float = 1.0
) -> Evaluation:
    """Score a model in evaluation mode on some splits (default: all); each distinct graph is run
    once.

    ``scale`` multiplies the outputs first: a regression model answers in units of the task it was
    trained on.
    """
    training = model.training
    model.eval()
    outputs: dict[int, Output] = {}
    metrics, scores = {}, {}
    for name in task.splits if splits is None else splits:
        split = task.splits[name]
        output = outputs.get(id(split.graph))
        if output is None:
            output = outputs.setdefault(id(split.graph), judged(model, split.graph))
        metrics[name] = task.metrics(
            output.logits if scale == 1.0 else scale * output.logits, split
        )
        scores[name] = task.score(metrics[name])
    model.train(training)
    statuses: dict[str, int] = {}
    residuals, steps, distance, tolerance = [], [], None, None
    for output in outputs.values():
        if output.solution is not None:
            _count(statuses, output)
            residuals.append(output.solution.residual)
            steps.append(output.solution.steps)
            distance, tolerance = output.solution.distance, output.solution.tolerance
    # max() would pass over NaN
    largest = math.nan if any(map(math.isnan, residuals)) else max(residuals, default=None)
    return Evaluation(
        metrics, scores, statuses, largest, max(steps, default=None), distance, tolerance
    )


class Trainer:
    """The state of one run. ``stopped`` is None until there is nothing left to do."""

    def __init__(self, config: TrainingConfig, task: Task, penalty: Penalty | None = None) -> None:
        self.config = config
        self.task = task.to(dtype=getattr(torch, config.dtype))
        self.shape = shape_of(task)
        torch.manual_seed(config.seed)
        self.model = build_model(config.model.name, self.shape, **config.model.options).to(
            getattr(torch, config.dtype)
        )
        check_solves(config.solves, self.model)
        check_augmentation(config.augmentation, task.objective)
        self.average: WeightAverage | None = None
        if config.weight_average is not None:
            self.average = WeightAverage(self.model, config.weight_average)
        drawn = config.solves.active or config.augmentation.active
        # Whether the pass that trains differs from the one that scores.
        self.stochastic = is_stochastic(self.model) or drawn or self.average is not None
        self.penalty = penalty
        if penalty is None and config.penalties.active:
            self.penalty = SettlingPenalty(config.penalties)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not parameters:
            raise InputError(f"model {config.model.name!r} has no trainable parameters")
        self.optimiser = torch.optim.Adam(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.schedule = RateSchedule(config.schedule, config.max_epochs)
        self.patience = config.patience if config.patience is not None else task.patience
        self.epoch = 0
        self.stopped: str | None = None
        self.best = -math.inf
        self.best_epoch = 0
        self.best_parameters: dict[str, Tensor] = {}
        self.curves: dict[str, list[Any]] = {"loss": [], "validation": [], "test": []}
        self.last = EpochMetrics(0, math.nan, math.nan, self.best, 0, config.learning_rate)
        self.statuses: dict[str, int] = {}
        self.full_solver = self.model.solver if isinstance(self.model, EquilibriumModel) else None
        if isinstance(self.model, EquilibriumModel):
            self.model.solver = _untraced(self.model.solver)
        self.parts: list[Split] | None = None
        if config.graphs_per_update is not None:
            train = mixed(self.task.train, self.task.objective)
            self.parts = parts_of(train, self.task.objective, config.graphs_per_update)
        self.model.train()

    # ------------------------------------------------------------------ one epoch

    def advance(self) -> EpochMetrics:
        """Score the present parameters, keep them if best, and update them unless the run is
        over."""
        if self.stopped is not None:
            raise InputError(f"the run is over ({self.stopped})")
        over = self.epoch >= self.config.max_epochs
        if not over and self.epoch % self.config.score_every:
            return self._advance_unscored()
        validation, loss = self._score_and_loss(over)
        # never true for NaN
        if validation > self.best or (self.config.keep == "last" and math.isfinite(validation)):
            self.best, self.best_epoch = validation, self.epoch
            scored = self.model.state_dict() if self.average is None else self.average.values
            self.best_parameters = {
                name: tensor.detach().clone() for name, tensor in scored.items()
            }
        self._note_test_score()
        rate = self.config.learning_rate * self.schedule.rate(self.epoch, validation)
        value = float(loss.detach())
        self.curves["loss"].append(value)
        self.curves["validation"].append(validation)
        self.last = EpochMetrics(self.epoch, value, validation, self.best, self.best_epoch, rate)
        if not math.isfinite(value):
            self.stopped = "non-finite"
        elif self.config.stop_at_score is not None and validation >= self.config.stop_at_score:
            self.stopped = "score"
        elif over:
            self.stopped = "max_epochs"
        elif self.epoch - self.best_epoch >= self.patience:
            self.stopped = "patience"
        else:
            if self.parts is None:
                self._update(loss, rate)
            else:
                self._update_by_parts(self.parts, rate)
            self.epoch += 1
        return self.last

    def _advance_unscored(self) -> EpochMetrics:
        """One epoch of updates; the curves have a gap there, and what is told is of the last
        scored epoch."""
        assert self.parts is not None  # the configuration sees to it
        self._note_test_score()
        rate = self.config.learning_rate * self.schedule.rate(self.epoch, math.nan)
        for curve in ("loss", "validation"):
            self.curves[curve].append(math.nan)
        self._update_by_parts(self.parts, rate)
        metrics = replace(self.last, epoch=self.epoch, learning_rate=rate, scored=False)
        self.epoch += 1
        return metrics

    def _score_and_loss(self, over: bool) -> tuple[float, Tensor]:
        """(validation score of the present parameters, training loss with its graph attached unless
        ``over``)."""
        only_score = over or self.parts is not None
        if self.stochastic or only_score:
            on_train, validation = self._validate_separately(only_score)
            if only_score:
                return validation, self.task.loss(on_train.logits, self.task.train)
        if self.stochastic:
            return validation, self._training_loss(self.task.train)
        output = self._run(self.task.train)
        on_validation = output
        if self.task.validation.graph is not self.task.train.graph:
            with torch.no_grad():
                on_validation = self._run(self.task.validation)
        loss = self.task.loss(output.logits, self.task.train) + self._penalty(
            output, self.task.train.graph, None
        )
        return self._score(on_validation, self.task.validation), loss

    def _training_loss(self, split: Split) -> Tensor:
        """The loss of one update: graph changed, solve drawn, and penalised as the configuration
        says."""
        graph = split.graph
        if self.config.augmentation.active:
            graph = augmented(graph, self.config.augmentation)
        output, context = run_for_training(self.model, graph, self.config.solves)
        self._note_statuses(output)
        return self.task.loss(output.logits, split) + self._penalty(output, graph, context)

    def _penalty(self, output: Output, graph: Graph, context: Any) -> Tensor | float:
        if self.penalty is None:
            return 0.0
        if not isinstance(self.penalty, SettlingPenalty):
            return self.penalty(output, self.model, graph)
        factor = self.penalty.factor(self.epoch, self.config.max_epochs)
        return factor * self.penalty(output, self.model, graph, context) if factor else 0.0

    @torch.no_grad()
    def _validate_separately(self, with_training: bool) -> tuple[Output, float]:
        """(output on the training graph if asked for, validation score), both in evaluation
        mode."""
        with self._as_scored():
            on_validation = on_train = self._run(self.task.validation)
            if self.task.validation.graph is not self.task.train.graph and with_training:
                on_train = self._run(self.task.train)
        return on_train, self._score(on_validation, self.task.validation)

    @contextmanager
    def _as_scored(self) -> Iterator[None]:
        """The model in evaluation mode with the parameters that are scored and kept."""
        self.model.eval()
        with self.average.applied(self.model) if self.average is not None else nullcontext():
            yield
        self.model.train()

    def _run(self, split: Split) -> Output:
        output = self.model.run(split.graph)
        self._note_statuses(output)
        return output

    def _note_statuses(self, output: Output) -> None:
        if output.solution is not None:
            _count(self.statuses, output)

    def _score(self, output: Output, split: Split) -> float:
        return self.task.score(self.task.metrics(output.logits.detach(), split))

    def _note_test_score(self) -> None:
        every = self.config.test_every
        if every is not None and self.epoch % every == 0:
            with torch.no_grad(), self._as_scored():
                output = self.model.run(self.task.test.graph)
            self.curves["test"].append([self.epoch, self._score(output, self.task.test)])

    def _last_scored(self) -> EpochMetrics:
        """What the last scored epoch measured, from the curves."""
        if self.epoch == 0:
            return self.last
        epoch = self.epoch - 1 - (self.epoch - 1) % self.config.score_every
        loss, validation = self.curves["loss"][epoch], self.curves["validation"][epoch]
        return replace(
            self.last,
            epoch=epoch,
            loss=loss,
            validation=validation,
            best=self.best,
            best_epoch=self.best_epoch,
        )

    def _update_by_parts(self, parts: list[Split], rate: float) -> None:
        """One update on each part, in an order drawn anew; parts without a scored row are passed
        over."""
        for index in torch.randperm(len(parts)).tolist():
            if parts[index].size == 0:
                continue
            self._update(self._training_loss(parts[index]), rate)

    def _update(self, loss: Tensor, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimiser.step()
        self.model.project()
        if self.average is not None:
            self.average.update(self.model)

    # ------------------------------------------------------------------ the end

    def finish(self) -> Evaluation:
        """Put the best parameters back, restore the traced solver, and evaluate every split."""
        if not self.best_parameters:
            raise TrainingError(
                f"{self.config.title}: the validation score was never finite in {self.epoch} "
                f"epochs (run ended: {self.stopped}); "
                "try a smaller learning rate or look at the solver status"
            )
        self.model.load_state_dict(self.best_parameters)
        if isinstance(self.model, EquilibriumModel) and self.full_solver is not None:
            self.model.solver = self.full_solver
        self.model.eval()
        return evaluate(self.model, self.task)

    # ------------------------------------------------------------------ resuming

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which :meth:`restore` continues bit for bit."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors.update({f"best/{name}": tensor for name, tensor in self.best_parameters.items()})
        for index, slots in self.optimiser.state_dict()["state"].items():
            tensors.update(
                {f"optimiser/{index}/{key}": torch.as_tensor(value) for key, value in slots.items()}
            )
        tensors["random"] = torch.get_rng_state()
        if self.average is not None:
            tensors.update(
                {f"average/{name}": tensor for name, tensor in self.average.values.items()}
            )
        values = {
            "epoch": self.epoch,
            "stopped": self.stopped,
            "best": _hex(self.best),
            "best_epoch": self.best_epoch,
            "curves": {
                "loss": [_hex(value) for value in self.curves["loss"]],
                "validation": [_hex(value) for value in self.curves["validation"]],
                "test": [[epoch, _hex(value)] for epoch, value in self.curves["test"]],
            },
            "statuses": self.statuses,
            "schedule": self.schedule.state(),
            "averaged": self.average.updates if self.average is not None else 0,
        }
        return tensors, values

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self.model.load_state_dict(_below(tensors, "model/"))
        self.best_parameters = _below(tensors, "best/")
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below(tensors, "optimiser/").items():
            index, key = name.split("/", 1)
            slots.setdefault(int(index), {})[key] = tensor
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": slots, "param_groups": groups})
        torch.set_rng_state(tensors["random"])
        if self.average is not None:
            self.average.values = _below(tensors, "average/")
            self.average.updates = values["averaged"]
        self.epoch, self.stopped = values["epoch"], values["stopped"]
        self.best, self.best_epoch = float.fromhex(values["best"]), values["best_epoch"]
        curves = values["curves"]
        self.curves = {
            "loss": [float.fromhex(value) for value in curves["loss"]],
            "validation": [float.fromhex(value) for value in curves["validation"]],
            "test": [[epoch, float.fromhex(value)] for epoch, value in curves["test"]],
        }
        self.last = self._last_scored()
        self.statuses = dict(values["statuses"])
        self.schedule.restore(values["schedule"])


def _hex(value: float) -> str:
    """A float as text that keeps every bit and may be infinite."""
    return float(value).hex()


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)
    }


def _count(statuses: dict[str, int], output: Output) -> None:
    assert output.solution is not None
    for label, number in output.solution.status_counts().items():
        statuses[label] = statuses.get(label, 0) + number


def _untraced(solver: Any) -> Any:
    """The same solver without the residual of every step, and with that of the last taken at its
    word, where it has such options: training counts statuses, it does not rest on them."""
    if not isinstance(solver, FixedPointSolver):
        return solver
    return solver.with_stopping(trace=False, probe=False)
