"""What a task asks for: the training loss, the metrics, and the one score models are compared by.

An objective never sees a model. It takes the outputs ``(n, o)`` of one forward pass over a split's
graph and the split itself, and answers with a differentiable loss or with plain numbers. Scores are
always "higher is better", in the units of the paper's tables (accuracy in percent, minus the
relative error).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.errors import InputError

if TYPE_CHECKING:
    from sheafdeq.data.graph import Graph
    from sheafdeq.data.task import Split

__all__ = [
    "Classification",
    "EdgeDistance",
    "GraphClassification",
    "Objective",
    "Regression",
    "graph_means",
    "roc_auc",
]


class Objective(ABC):
    """Loss, metrics and score of one kind of task."""

    kind: str  # one word for listings
    metric_names: tuple[str, ...]
    score_name: str

    @abstractmethod
    def loss(self, outputs: Tensor, split: Split) -> Tensor:
        """The scalar training loss, differentiable in ``outputs`` (n, o)."""

    @abstractmethod
    def metrics(self, outputs: Tensor, split: Split) -> dict[str, float]:
        """Every metric of ``metric_names`` as a plain number."""

    @abstractmethod
    def score(self, metrics: Mapping[str, float]) -> float:
        """The paper's column, higher is better."""

    @abstractmethod
    def constant_outputs(self, train: Split, split: Split) -> Tensor:
        """(n, o) outputs of the best predictor that ignores the input, fitted on ``train``."""

    @abstractmethod
    def constant_over_all(self, splits: Sequence[Split]) -> dict[str, float]:
        """Score metric of the constant predictor fitted to and judged on all scored rows of all
        splits together.

        This is the figure to hold against published constants; it does not depend on how the rows
        were split.
        """


@dataclass(frozen=True)
class Classification(Objective):
    """One class for each node: cross entropy, accuracy, and ROC-AUC where the benchmark uses it.

    ``outputs`` (n, C) are logits. ``metric`` is the metric the score reports: ``"accuracy"`` or
    ``"roc_auc"`` (two classes; the decision value is the difference of the two logits). The score
    is in percent.
    """

    classes: int
    metric: str = "accuracy"

    kind = "node classification"

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "roc_auc"):
            raise InputError(f"metric must be 'accuracy' or 'roc_auc', got {self.metric!r}")
        if self.metric == "roc_auc" and self.classes != 2:
            raise InputError(
                f"ROC-AUC needs exactly two classes, got {self.classes}: use metric='accuracy'"
            )

    @property
    def metric_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Accuracy first, cross entropy, and ROC-AUC for two classes."""
        return ("accuracy", "cross_entropy") + (("roc_auc",) if self.classes == 2 else ())

    @property
    def score_name(self) -> str:  # type: ignore[override]
        """Accuracy or ROC-AUC, both in percent."""
        return "accuracy (%)" if self.metric == "accuracy" else "ROC-AUC (%)"

    def _select(self, outputs: Tensor, split: Split) -> tuple[Tensor, Tensor]:
        _check_outputs(outputs, split.graph.num_nodes, self.classes)
        return outputs if split.mask is None else outputs[split.mask], split.scored_target

    def loss(self, outputs: Tensor, split: Split) -> Tensor:
        """Mean cross entropy over the split's rows."""
        logits, target = self._select(outputs, split)
        return functional.cross_entropy(logits, target)

    def metrics(self, outputs: Tensor, split: Split) -> dict[str, float]:
        """Accuracy as a fraction, mean cross entropy, ROC-AUC as a fraction for two classes."""
        logits, target = self._select(outputs.detach(), split)
        result = {
            "accuracy": (logits.argmax(dim=1) == target).double().mean().item(),
            "cross_entropy": functional.cross_entropy(logits.double(), target).item(),
        }
        if self.classes == 2:
            result["roc_auc"] = roc_auc(logits[:, 1] - logits[:, 0], target)
        return result

    def score(self, metrics: Mapping[str, float]) -> float:
        """The chosen metric in percent."""
        return 100.0 * metrics[self.metric]

    def constant_outputs(self, train: Split, split: Split) -> Tensor:
        """Logarithm of the training class frequencies (its argmax is the majority class)."""
        target = train.scored_target
        counts = torch.bincount(target, minlength=self.classes).double()
        return (counts.clamp(min=0.5) / counts.sum()).log().expand(split.graph.num_nodes, -1)

    def constant_over_all(self, splits: Sequence[Split]) -> dict[str, float]:
        """Share of the majority class, or one half for ROC-AUC."""
        if self.metric == "roc_auc":
            return {"roc_auc": 0.5}
        counts = torch.bincount(torch.cat([split.scored_target for split in splits]))
        return {"accuracy": counts.max().item() / counts.sum().item()}


def graph_means(outputs: Tensor, graph: Graph) -> Tensor:
    """(n, o) -> (G, o): the mean over the nodes of every graph."""
    sums = outputs.new_zeros(graph.num_graphs, outputs.shape[1]).index_add(
        0, graph.graph_ids, outputs
    )
    sizes = torch.bincount(graph.graph_ids, minlength=graph.num_graphs).clamp(min=1)
    return sums / sizes.to(outputs.dtype).unsqueeze(1)


@dataclass(frozen=True)
class GraphClassification(Classification):
    """One class for each graph: node outputs (n, C) are averaged over every graph, then as for
    nodes."""

    kind = "graph classification"

    def _select(self, outputs: Tensor, split: Split) -> tuple[Tensor, Tensor]:
        _check_outputs(outputs, split.graph.num_nodes, self.classes)
        pooled = graph_means(outputs, split.graph)
        return pooled if split.mask is None else pooled[split.mask], split.scored_target


@dataclass(frozen=True)
class Regression(Objective):
    r"""Real targets for each node, in units of their training mean.

    ``split.target`` (n, o) holds the raw targets divided by ``scale``, the mean raw target of the
    training rows, so a model's outputs are in these units too and ``scale * outputs`` are raw
    predictions. With y the raw target and p the raw prediction,

        loss = mean((p - y)^2) / scale^2,   relative_rmse = sqrt(mean((p - y)^2)) / (scale * mean),
        mse = mean((p - y)^2),              r2 = 1 - mean((p - y)^2) / var(y).

    The score is ``-relative_rmse``, the only reading of the paper's "-MSE" column that fits its own
    numbers. ``mean`` is the mean target in units of ``scale``: one, unless the scale was given from
    outside.
    """

    scale: float
    width: int = 1
    mean: float = 1.0

    kind = "node regression"
    metric_names = ("relative_rmse", "mse", "r2")
    score_name = "-relative RMSE"

    def _select(self, outputs: Tensor, split: Split) -> tuple[Tensor, Tensor]:
        _check_outputs(outputs, split.graph.num_nodes, self.width)
        return outputs if split.mask is None else outputs[split.mask], split.scored_target

    def loss(self, outputs: Tensor, split: Split) -> Tensor:
        """Mean squared error in units of the training mean."""
        predicted, target = self._select(outputs, split)
        return functional.mse_loss(predicted, target.to(predicted.dtype))

    def metrics(self, outputs: Tensor, split: Split) -> dict[str, float]:
        """Relative RMSE, MSE in raw units, and R^2."""
        predicted, target = (tensor.double() for tensor in self._select(outputs.detach(), split))
        error = (predicted - target).square().mean().item()
        variance = (target - target.mean(dim=0)).square().mean().item()
        r2 = 1.0 - error / variance if variance > 0 else float("nan")
        return {"relative_rmse": error**0.5 / self.mean, "mse": error * self.scale**2, "r2": r2}

    def score(self, metrics: Mapping[str, float]) -> float:
        """Minus the relative root mean squared error."""
        return -metrics["relative_rmse"]

    def constant_outputs(self, train: Split, split: Split) -> Tensor:
        """The training mean (one, in its own units) at every node."""
        target = train.scored_target
        return target.double().mean(dim=0).expand(split.graph.num_nodes, -1)

    def constant_over_all(self, splits: Sequence[Split]) -> dict[str, float]:
        """Standard deviation of all targets over their mean."""
        target = torch.cat([split.scored_target for split in splits]).double()
        return {"relative_rmse": (target.std(correction=0) / target.mean()).item()}


@dataclass(frozen=True)
class EdgeDistance(Objective):
    r"""Positions judged by the distances they give the stored edges, so rigid motions do not
    matter.

    ``outputs`` (n, 2) are positions p, ``split.target`` (e,) the true distances D. With m stored
    edges,

        loss = (1 / m) sum over stored edges (u, v) of (||p_u - p_v|| - D_uv)^2.

    The constant predictor puts every node in one place.
    """

    width: int = 2

    kind = "localisation"
    metric_names = ("edge_distance_loss",)
    score_name = "-edge distance loss"

    def loss(self, outputs: Tensor, split: Split) -> Tensor:
        """The edge distance loss; its gradient is zero (not NaN) where two positions coincide."""
        _check_outputs(outputs, split.graph.num_nodes, self.width)
        difference = outputs[split.graph.source] - outputs[split.graph.target]
        squared = difference.square().sum(dim=1)
        # sqrt has an infinite slope at 0; the double where keeps 0 * inf out of the backward pass.
        apart = squared > 0
        length = torch.where(
            apart, torch.where(apart, squared, torch.ones_like(squared)).sqrt(), squared
        )
        return (length - split.target.to(length.dtype)).square().mean()

    def metrics(self, outputs: Tensor, split: Split) -> dict[str, float]:
        """The edge distance loss in float64."""
        return {"edge_distance_loss": self.loss(outputs.detach().double(), split).item()}

    def score(self, metrics: Mapping[str, float]) -> float:
        """Minus the edge distance loss."""
        return -metrics["edge_distance_loss"]

    def constant_outputs(self, train: Split, split: Split) -> Tensor:
        """All nodes at the origin."""
        return torch.zeros(split.graph.num_nodes, self.width, dtype=torch.float64)

    def constant_over_all(self, splits: Sequence[Split]) -> dict[str, float]:
        """Mean squared length of all stored edges."""
        lengths = torch.cat([split.scored_target for split in splits]).double()
        return {"edge_distance_loss": lengths.square().mean().item()}


def roc_auc(decision: Tensor, target: Tensor) -> float:
    """Area under the ROC curve: P(decision of a positive > of a negative), ties counted half.

    ``decision`` (m,) real, ``target`` (m,) with 1 for positive; NaN when one class is absent.
    """
    positive = target == 1
    positives, total = int(positive.sum()), positive.numel()
    negatives = total - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, inverse, counts = torch.unique(decision.double(), return_inverse=True, return_counts=True)
    last_rank = counts.cumsum(0).double()
    mean_rank = last_rank - (counts.double() - 1) / 2
    rank_sum = mean_rank[inverse][positive].sum().item()
    result: float = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
    return result


def _check_outputs(outputs: Tensor, n: int, width: int) -> None:
    if outputs.shape != (n, width):
        raise InputError(
            f"outputs must have shape ({n}, {width}), one row for each node, got "
            f"{tuple(outputs.shape)}"
        )
