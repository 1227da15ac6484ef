"""What a finished model says of a graph, labelled or not: outputs, labels, and how far they can be
trusted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import graph_means
from sheafdeq.distances import DISTANCES
from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.solvers import Solution
from sheafdeq.training.loop import judged

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Outputs of n nodes in G graphs; a feed-forward model has no residuals, and its status says
    so."""

    outputs: Tensor  # (n, o) of every node, in units of the targets
    graph_of_node: Tensor  # (n,)
    residual: Tensor | None  # (n,) distance of one more step, in the distance that was judged
    graph_status: tuple[str, ...]  # (G,)
    graph_residual: Tensor | None  # (G,)
    graph_steps: Tensor | None  # (G,)
    distance: str | None
    graph_outputs: Tensor | None = None  # (G, o) means over nodes, of a model that judges graphs
    labels: Tensor | None = None  # (n,) or (G,) classes; None of a model that answers in numbers

    def status_counts(self) -> dict[str, int]:
        """How many graphs ended in which status."""
        return {
            status: self.graph_status.count(status) for status in dict.fromkeys(self.graph_status)
        }


@torch.no_grad()
def predict(
    model: GraphModel,
    graph: Graph,
    *,
    classes: bool,
    whole_graphs: bool = False,
    scale: float = 1.0,
) -> Prediction:
    """Run a model as it is judged: to its equilibrium where that is guaranteed, else as trained.

    ``classes``: outputs are logits, the largest is the label. ``whole_graphs``: the label is the
    graph's, of the mean output of its nodes. ``scale`` turns outputs into units of the targets.
    """
    output = judged(model.eval(), graph)
    outputs = output.logits if scale == 1.0 else scale * output.logits
    means = graph_means(outputs, graph) if whole_graphs else None
    labels = (outputs if means is None else means).argmax(dim=1) if classes else None
    solution = output.solution
    if solution is None:
        status = ("feed-forward",) * graph.num_graphs
        return Prediction(outputs, graph.graph_ids, None, status, None, None, None, means, labels)
    statuses = solution.graph_status or (solution.status,) * graph.num_graphs
    return Prediction(
        outputs,
        graph.graph_ids,
        node_residual(model, graph, solution),
        tuple(status.label for status in statuses),
        solution.graph_residual if solution.graph_residual.numel() else None,
        solution.graph_steps if solution.graph_steps.numel() else None,
        solution.distance,
        means,
        labels,
    )


def node_residual(model: GraphModel, graph: Graph, solution: Solution) -> Tensor | None:
    """(n,) the distance between f(z) and z at the returned state, node by node; None where the
    solve was judged by something that is no distance of nodes (a gradient)."""
    if not isinstance(model, EquilibriumModel) or solution.distance not in DISTANCES:
        return None
    state = solution.value
    image = model.step(state, model.prepare(graph))
    return DISTANCES[solution.distance](image, state) if image.shape == state.shape else None
