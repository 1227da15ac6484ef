"""A task owns its graphs, splits, loss and metric, so that no model can be measured by another
rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import Classification, GraphClassification, Objective, Regression
from sheafdeq.errors import InputError

__all__ = ["Dimensions", "Split", "Task", "with_changed"]


@dataclass(frozen=True)
class Dimensions:
    """Model sizes a task recommends: width c = d q, K steps, stalk d, channels q."""

    width: int
    steps: int
    stalk: int
    channels: int

    def __post_init__(self) -> None:
        if self.width != self.stalk * self.channels:
            raise InputError(
                f"width {self.width} must equal stalk {self.stalk} x channels {self.channels} "
                f"= {self.stalk * self.channels}"
            )


@dataclass(frozen=True, eq=False)
class Split:
    """One evaluation set.

    Several splits of a transductive task hold the *same* ``graph`` object, so a trainer can run its
    model once for each distinct graph and read every split from that one output.
    """

    graph: Graph
    # (n,) classes, (n, o) regression, (num_graphs,) graph classes, (e,) true distances
    target: Tensor
    mask: Tensor | None = None  # bool over nodes (or graphs); None means all

    @property
    def size(self) -> int:
        """Number of rows that are scored."""
        return int(self.mask.sum()) if self.mask is not None else self.target.shape[0]

    @cached_property
    def scored_target(self) -> Tensor:
        """The rows of ``target`` that are scored."""
        return self.target if self.mask is None else self.target[self.mask]


@dataclass(frozen=True, eq=False)
class Task:
    """Three splits, an objective, and the sizes a model needs.

    ``options`` are the options that define the data (they enter the digest). ``output_scale`` turns
    outputs into raw target units (see :class:`~sheafdeq.data.objective.Regression`); it is one
    elsewhere.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    objective: Objective
    dimensions: Dimensions
    patience: int
    out_channels: int
    licence: str
    options: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    # ------------------------------------------------------------------ sizes

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by name, in the order train, validation, test."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def graphs(self) -> list[Graph]:
        """The distinct graphs in order of first use."""
        distinct: dict[int, Graph] = {}
        for split in self.splits.values():
            distinct.setdefault(id(split.graph), split.graph)
        return list(distinct.values())

    @property
    def level(self) -> int | None:
        """Heterophily level of a community task, else None."""
        return self.options.get("level")

    @property
    def title(self) -> str:
        """Name with the level or split that was chosen."""
        suffix = [f"{key} {self.options[key]}" for key in ("level", "split") if key in self.options]
        return ", ".join([self.name, *suffix])

    @property
    def in_channels(self) -> int:
        """Width of the node features."""
        return self.train.graph.x.shape[1]

    @property
    def edge_dim(self) -> int:
        """Width of the edge features (0 without)."""
        return self.train.graph.edge_dim

    @property
    def output_scale(self) -> float:
        """Factor from model outputs to raw target units."""
        return self.objective.scale if isinstance(self.objective, Regression) else 1.0

    # ------------------------------------------------------------------ judging outputs

    @property
    def kind(self) -> str:
        """Node classification, graph classification, node regression or localisation."""
        return self.objective.kind

    @property
    def score_name(self) -> str:
        """What :meth:`score` returns; higher is better."""
        return self.objective.score_name

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Keys of :meth:`metrics`."""
        return self.objective.metric_names

    def loss(self, outputs: Tensor, split: Split) -> Tensor:
        """Differentiable training loss of ``outputs`` (n, o) on a split."""
        return self.objective.loss(outputs, split)

    def metrics(self, outputs: Tensor, split: Split) -> dict[str, float]:
        """All metrics of ``outputs`` (n, o) on a split."""
        return self.objective.metrics(outputs, split)

    def score(self, metrics: Mapping[str, float]) -> float:
        """The paper's column, higher is better."""
        return self.objective.score(metrics)

    def constant_metrics(self, split: Split) -> dict[str, float]:
        """Metrics on ``split`` of the best constant predictor fitted on the training rows."""
        return self.objective.metrics(self.objective.constant_outputs(self.train, split), split)

    @cached_property
    def constant_score(self) -> float:
        """Score of the constant predictor on the test split, to be printed beside every result."""
        return self.score(self.constant_metrics(self.test))

    @cached_property
    def constant_over_all(self) -> dict[str, float]:
        """The constant predictor fitted to and judged on all rows: the figure to hold against
        publications."""
        return self.objective.constant_over_all(list(self.splits.values()))

    # ------------------------------------------------------------------ identity and description

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the defining options and every tensor, bytes in a fixed order.

        Tensors are hashed as little-endian contiguous bytes behind a header with name, type and
        shape, split by split; a graph that several splits share is hashed once and referred to by
        number.
        """
        hasher = hashlib.sha256()
        hasher.update(json.dumps([self.name, dict(self.options)], sort_keys=True).encode())
        numbers: dict[int, int] = {}
        for split_name, split in self.splits.items():
            graph = split.graph
            seen = id(graph) in numbers
            number = numbers.setdefault(id(graph), len(numbers))
            hasher.update(f"\n{split_name} graph {number} of {graph.num_graphs}".encode())
            if not seen:
                _hash_tensor(hasher, "x", graph.x)
                _hash_tensor(hasher, "edge_index", graph.edge_index)
                _hash_tensor(hasher, "edge_attr", graph.edge_attr)
                _hash_tensor(hasher, "graph_of_node", graph.graph_ids)
            _hash_tensor(hasher, "target", split.target)
            _hash_tensor(hasher, "mask", split.mask)
        return hasher.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Sizes, licence, degree and homophily figures, constant scores and digest, ready for
        JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "options": dict(self.options),
            "licence": self.licence,
            "remarks": list(self.remarks),
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "edge_dim": self.edge_dim,
            "dimensions": vars(self.dimensions),
            "patience": self.patience,
            "score": self.score_name,
            "output_scale": self.output_scale,
            "splits": {
                name: {
                    "scored": split.size,
                    "nodes": split.graph.num_nodes,
                    "stored_edges": split.graph.num_edges,
                    "graphs": split.graph.num_graphs,
                    "graph": next(i for i, graph in enumerate(self.graphs) if graph is split.graph),
                    "constant_predictor": self.constant_metrics(split),
                }
                for name, split in self.splits.items()
            },
            "constant_over_all": self.constant_over_all,
            "degree": degree_figures(self.graphs),
            "homophily": self.homophily,
            "digest": self.digest,
        }

    @cached_property
    def homophily(self) -> float | None:
        """Share of stored edges between labelled nodes, over all graphs, that join equal classes;
        None without."""
        if not isinstance(self.objective, Classification) or isinstance(
            self.objective, GraphClassification
        ):
            return None
        same, total = 0, 0
        for graph in self.graphs:
            target = next(split.target for split in self.splits.values() if split.graph is graph)
            source_class, target_class = target[graph.source], target[graph.target]
            # -1 marks a node whose class is not known
            labelled = (source_class >= 0) & (target_class >= 0)
            same += int(((source_class == target_class) & labelled).sum())
            total += int(labelled.sum())
        return same / total if total else None

    def to(self, *args: Any, **kwargs: Any) -> Task:
        """The task on another device and/or in another floating dtype; shared graphs stay
        shared."""
        graphs: dict[int, Graph] = {}

        def move(split: Split) -> Split:
            graph = graphs.setdefault(id(split.graph), split.graph.to(*args, **kwargs))
            target = split.target.to(device=graph.x.device)
            if target.is_floating_point():
                target = target.to(graph.x.dtype)
            return Split(
                graph, target, None if split.mask is None else split.mask.to(graph.x.device)
            )

        return replace(
            self, train=move(self.train), validation=move(self.validation), test=move(self.test)
        )

    def __repr__(self) -> str:
        sizes = "/".join(f"{split.size:,}" for split in self.splits.values())
        return f"Task({self.title}: {self.kind}, {sizes} scored)"


def degree_figures(graphs: list[Graph]) -> dict[str, float]:
    """Minimum, mean and maximum number of incoming stored edges, isolated nodes and self-loops."""
    degree = torch.cat([graph.pointer.diff() for graph in graphs])
    loops = sum(int((graph.source == graph.target).sum()) for graph in graphs)
    if degree.numel() == 0:
        return {"minimum": 0, "mean": 0.0, "maximum": 0, "isolated": 0, "self_loops": loops}
    return {
        "minimum": int(degree.min()),
        "mean": degree.double().mean().item(),
        "maximum": int(degree.max()),
        "isolated": int((degree == 0).sum()),
        "self_loops": loops,
    }


def _hash_tensor(hasher: Any, name: str, tensor: Tensor | None) -> None:
    if tensor is None:
        hasher.update(f"\n{name} none".encode())
        return
    array = tensor.detach().cpu().contiguous().numpy()
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    hasher.update(f"\n{name} {array.dtype.str} {array.shape}".encode())
    hasher.update(array.tobytes())


def with_changed(named: dict[str, Any], **others: tuple[Any, Any]) -> dict[str, Any]:
    """The options a task reports: ``named``, and of ``others`` (value, default) those that are not
    their default."""
    return {**named, **{key: value for key, (value, default) in others.items() if value != default}}
