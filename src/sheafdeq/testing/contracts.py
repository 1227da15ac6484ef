"""The contract suite a model of your own inherits.

One function *measures* an error, another *judges* it: each ``*_error`` function returns a number,
and :func:`check_model` compares all of them with a tolerance and raises with every violation at
once. :class:`ModelContract` wraps that in pytest style:

    class TestMyModel(ModelContract):
        def make_model(self) -> MyModel:
            return MyModel(in_channels=3, out_channels=2)

Everything runs in float64, on graphs with isolated nodes, a self-loop, duplicate edges and directed
edges.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.recurrence import restrict

__all__ = [
    "ContractViolation",
    "Finding",
    "ModelContract",
    "batch_error",
    "check_model",
    "example_graphs",
    "gradient_error",
    "local_step_error",
    "permutation_error",
    "purity_error",
    "restriction_error",
]


class ContractViolation(AssertionError):
    """A model broke the shared contract; the message lists every finding."""


@dataclass(frozen=True)
class Finding:
    """One measured error and the tolerance it is held against."""

    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Within tolerance (a NaN error is not)."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.name}: error {self.error:.3g}, tolerance "
            f"{self.tolerance:.1g}{'' if self.ok else '  VIOLATED'}"
        )


def example_graphs(in_channels: int, edge_dim: int | None = None, seed: int = 0) -> list[Graph]:
    """Three small float64 graphs: random directed with odd edges, a chain, and a star with isolated
    nodes."""
    generator = torch.Generator().manual_seed(seed)
    chain = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    star = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    random = torch.randint(0, 7, (2, 15), generator=generator)
    # a duplicate and a self-loop
    random = torch.cat([random, random[:, :1], torch.tensor([[2], [2]])], dim=1)
    graphs = []
    for n, edges in ((8, random), (4, chain), (6, star)):
        x = torch.randn(n, in_channels, generator=generator, dtype=torch.float64)
        attr = None
        if edge_dim:
            attr = torch.rand(edges.shape[1], edge_dim, generator=generator, dtype=torch.float64)
        graphs.append(Graph.build(x, edges, attr))
    return graphs


def _logits(model: GraphModel, graph: Graph) -> Tensor:
    with torch.no_grad():
        return model.run(graph).logits


def _relative(difference: Tensor, reference: Tensor) -> float:
    if difference.numel() == 0:
        return 0.0
    return float(difference.abs().max() / (1.0 + reference.abs().max()))


def permutation_error(model: GraphModel, graph: Graph, seed: int = 0) -> float:
    """Renumbering the nodes must renumber the outputs and change nothing else."""
    n = graph.num_nodes
    # new position i holds old node order[i]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    position = torch.empty_like(order)
    position[order] = torch.arange(n)
    permuted = Graph.build(graph.x[order], position[graph.edge_index], graph.edge_attr)
    reference = _logits(model, graph)
    return _relative(_logits(model, permuted) - reference[order], reference)


def batch_error(model: GraphModel, graphs: Sequence[Graph]) -> float:
    """A batch must give each graph what it gets alone."""
    together = _logits(model, Graph.union(graphs))
    alone = torch.cat([_logits(model, graph) for graph in graphs])
    return _relative(together - alone, alone)


def purity_error(model: EquilibriumModel, graph: Graph) -> float:
    """``step`` twice on the same state and context must agree exactly and leave both unchanged."""
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.step(model.initial_state(context), context)
        kept = state.clone()
        first = model.step(state, context)
        second = model.step(state, context)
    return max(_relative(first - second, first), _relative(state - kept, kept))


def local_step_error(model: EquilibriumModel, graph: Graph) -> float:
    """``local_step(h, h[source])`` must equal ``step(h)``."""
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.step(model.initial_state(context), context)
        reference = model.step(state, context)
        local = model.local_step(state, state[context.edges.source], context)  # type: ignore[operator]
    return _relative(local - reference, reference)


def restriction_error(model: EquilibriumModel, graph: Graph, seed: int = 0) -> float:
    """Updating some nodes alone, from messages of any age, must equal the same rows of a full local
    step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        context = model.prepare(graph)
        state = model.step(model.initial_state(context), context)
        received = state[context.edges.source]
        received = received * (
            0.5 + torch.rand(received.shape, generator=generator, dtype=received.dtype)
        )
        reference = model.local_step(state, received, context)  # type: ignore[operator]
        nodes = (
            torch.randperm(graph.num_nodes, generator=generator)[: max(1, graph.num_nodes // 2)]
            .sort()
            .values
        )
        part, edges = restrict(context, nodes)
        alone = model.local_step(state[nodes], received[edges], part)  # type: ignore[operator]
    return _relative(alone - reference[nodes], reference)


def gradient_error(model: GraphModel, graph: Graph, seed: int = 0, step: float = 1e-6) -> float:
    """Directional derivative of a random functional of the outputs: autograd against central
    differences.

    The direction is random over all parameters together; the error is relative to the derivative's
    own size.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return 0.0
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    weights: Tensor | None = None

    def functional() -> Tensor:
        nonlocal weights
        logits = model.run(graph).logits
        if weights is None:
            weights = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
        return (weights * logits).sum()

    model.zero_grad(set_to_none=True)
    functional().backward()
    analytic = sum(
        float((p.grad * d).sum())
        for p, d in zip(parameters, directions, strict=True)
        if p.grad is not None
    )
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=sign * step)
            values.append(float(functional()))
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(d, alpha=sign * step)
    numeric = (values[0] - values[1]) / (2 * step)
    return abs(analytic - numeric) / max(1.0, abs(numeric))


def check_model(
    model: GraphModel,
    graphs: Sequence[Graph] | None = None,
    *,
    tolerance: float = 1e-9,
    gradient_tolerance: float = 1e-4,
) -> list[Finding]:
    """Measure every property that applies to this model; raise :class:`ContractViolation` if one
    fails.

    The model is copied, converted to float64 and put in evaluation mode. Local properties are
    checked only if it has ``local_step``; recurrence properties only for equilibrium models.
    """
    model = copy.deepcopy(model).double().eval()
    graphs = (
        list(graphs) if graphs is not None else example_graphs(model.in_channels, model.edge_dim)
    )
    findings = []

    def record(name: str, measure: Callable[[], float], limit: float) -> None:
        findings.append(Finding(name, measure(), limit))

    for index, graph in enumerate(graphs):
        equivariance = partial(permutation_error, model, graph)
        record(f"permutation equivariance (graph {index})", equivariance, tolerance)
        if isinstance(model, EquilibriumModel):
            record(f"purity of step (graph {index})", partial(purity_error, model, graph), 0.0)
            if hasattr(model, "local_step"):
                record(
                    f"step = local_step (graph {index})",
                    partial(local_step_error, model, graph),
                    tolerance,
                )
                record(
                    f"restriction (graph {index})",
                    partial(restriction_error, model, graph),
                    tolerance,
                )
    record("batch = single", lambda: batch_error(model, graphs), tolerance)
    record("gradient", lambda: gradient_error(model, graphs[0]), gradient_tolerance)
    broken = [finding for finding in findings if not finding.ok]
    if broken:
        raise ContractViolation(
            f"{type(model).__name__} breaks the contract:\n  " + "\n  ".join(map(str, broken))
        )
    return findings


class ModelContract:
    """Inherit, provide ``make_model``, and pytest runs the whole suite."""

    tolerance = 1e-9
    gradient_tolerance = 1e-4

    def make_model(self) -> GraphModel:
        """A freshly initialised model."""
        raise NotImplementedError("provide make_model()")

    def make_graphs(self, model: GraphModel) -> list[Graph]:
        """The graphs to test on; override for special needs."""
        return example_graphs(model.in_channels, model.edge_dim)

    def test_contract(self) -> None:
        """All measured properties within tolerance."""
        torch.manual_seed(0)
        model = self.make_model()
        findings = check_model(
            model,
            self.make_graphs(model),
            tolerance=self.tolerance,
            gradient_tolerance=self.gradient_tolerance,
        )
        assert findings

    def test_repr_and_reset(self) -> None:
        """A readable repr, and parameters that change when they are reset."""
        model = self.make_model()
        assert type(model).__name__ in repr(model)
        if hasattr(model, "reset_parameters"):
            before = [p.detach().clone() for p in model.parameters() if p.dim() > 1]
            model.reset_parameters()
            after = [p for p in model.parameters() if p.dim() > 1]
            assert not before or any(
                not torch.equal(a, b) for a, b in zip(after, before, strict=True)
            )
