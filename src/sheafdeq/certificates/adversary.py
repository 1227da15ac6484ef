"""Hostile problems for the audit: each draw is a model and a graph, and what would be false to say
of them.

    random      the draws of :mod:`.draws`, as they are
    non-finite  one entry of one parameter is NaN or infinite: nothing may be certified or refuted,
                and the reason is told
    extreme     parameters and features scaled by 1e-300 to 1e300: an answer, never an exception
    subclass    a method, an attribute of the object, a submodule or a gate is replaced by another:
                the rule must not apply;
                or something harmless is: the rule must apply as before
    threshold   members of families whose truth is known on both sides of a threshold, as close to
                it as floats are
    float32     a model of single precision, judged in double
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.certificates.certificate import Verdict
from sheafdeq.certificates.draws import draw_problem
from sheafdeq.constructions.counterexample import BIFURCATION, counterexample
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.models.ignn import IGNN

__all__ = ["ATTACKS", "AttackCase", "draw_attack"]

PROVED = frozenset({Verdict.CERTIFIED, Verdict.REFUTED})
LIES = frozenset({*PROVED, Verdict.TWO_CANDIDATES})


@dataclass(frozen=True, eq=False)
class AttackCase:
    """One hostile draw. ``forbidden`` verdicts would be false, for the reason ``because``."""

    name: str
    model: EquilibriumModel
    graph: Graph
    because: str = ""
    forbidden: frozenset[Verdict] = field(default_factory=frozenset)
    # CERTIFIED is forbidden only when it is global: a ball may be true
    forbidden_globally: bool = False
    resolved: bool = True  # whether float64 iterations of the model show what its exact map does
    twin: EquilibriumModel | None = None  # a model that must get the same verdict and rate


def draw_attack(name: str, number: int, seed: int = 0, only: type | None = None) -> AttackCase:
    """The attack of this name in one draw."""
    model, graph = draw_problem(number, seed, only)
    generator = torch.Generator().manual_seed(seed * 7_919 + number)
    return ATTACKS[name](model, graph, generator)


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand(1, generator=generator, dtype=torch.float64))


def _chosen(options: list[Any], generator: torch.Generator) -> Any:
    return options[int(_uniform(generator) * len(options))]


def _random(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    return AttackCase("random", model, graph)


# ---------------------------------------------------------------------- numbers


def _non_finite(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    name, parameter = _chosen(
        [pair for pair in model.named_parameters() if pair[1].numel()], generator
    )
    value = _chosen([float("nan"), float("inf"), float("-inf")], generator)
    with torch.no_grad():
        parameter.view(-1)[int(_uniform(generator) * parameter.numel())] = value
    return AttackCase("non-finite", model, graph, f"parameter {name} holds {value}", LIES)


def _extreme(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    reach = _chosen([20.0, 160.0, 300.0], generator)

    def scaled(values: Tensor) -> Tensor:
        result: Tensor = (values * 10.0 ** (reach * (2 * _uniform(generator) - 1))).clamp(
            -1e300, 1e300
        )
        return result

    parameters = list(model.parameters())
    chosen = (
        parameters
        if _uniform(generator) < 0.5
        else [_chosen(parameters, generator) for _ in range(2)]
    )
    with torch.no_grad():
        for parameter in chosen:
            parameter.copy_(scaled(parameter))
    if _uniform(generator) < 0.3:
        x, edges = scaled(graph.x), torch.stack([graph.source, graph.target])
        graph = Graph.build(x, edges, graph.edge_attr)
    return AttackCase("extreme", model, graph, resolved=False)


def _float32(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    return AttackCase("float32", model.float(), graph.to(torch.float32))


# ---------------------------------------------------------------------- not the map the proof is
# about


def _subclass(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    change = _chosen(
        [_other_step, _other_method, _patched, _hooked, _other_gate, _harmless, _harmless],
        generator,
    )
    result: AttackCase = change(model, graph, generator)
    return result


def _derived(model: EquilibriumModel, **methods: Any) -> EquilibriumModel:
    """The same object as a member of a new subclass with these attributes."""
    kind = type(model)
    model.__class__ = types.new_class(
        f"Derived{kind.__name__}", (kind,), {}, lambda namespace: namespace.update(methods)
    )
    return model


def _other_step(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    """A step with two equilibria, or none."""
    kind = type(model)

    def step(self: Any, state: Tensor, context: Any) -> Tensor:
        image = kind.step(self, state, context)
        return image * (state / state.abs().mean().clamp(min=1e-300)).square()

    return AttackCase(
        "subclass", _derived(model, step=step), graph, "a subclass overrides step", PROVED
    )


def _other_method(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    """Any method or property the map may use, replaced by one that does the same: the proof cannot
    know that it does."""
    names = [
        name
        for name in (
            "prepare",
            "local_step",
            "update",
            "_normalised",
            "_averages",
            "_joint_step",
            "gradient_field",
            "width",
        )
        if hasattr(type(model), name)
    ]
    name = _chosen(names, generator)
    original = getattr(type(model), name)

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return original(self, *arguments, **options)

    new = property(original.fget) if isinstance(original, property) else method
    return AttackCase(
        "subclass", _derived(model, **{name: new}), graph, f"a subclass overrides {name}", PROVED
    )


def _patched(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    name = _chosen(
        ["step", "prepare", "local_step"] if hasattr(model, "local_step") else ["step", "prepare"],
        generator,
    )
    original = getattr(type(model), name)
    setattr(
        model, name, types.MethodType(lambda self, *arguments: original(self, *arguments), model)
    )
    return AttackCase("subclass", model, graph, f"{name} was replaced on the object", PROVED)


def _hooked(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        return _other_step(model, graph, generator)
    _chosen(layers, generator).register_forward_hook(_tripled)
    return AttackCase("subclass", model, graph, "a submodule has a forward hook", PROVED)


def _tripled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 3 * output


def _other_gate(model: Any, graph: Graph, generator: torch.Generator) -> AttackCase:
    if not hasattr(model, "gate"):
        return _other_step(model, graph, generator)
    action = "of_parts" if hasattr(model.gate, "of_parts") else "apply"
    model.gate = replace(model.gate, kernel=None, **{action: _published_tanh})
    return AttackCase(
        "subclass", model, graph, "the gate's action is not the one of its name", PROVED
    )


def _published_tanh(first: Tensor, second: Tensor) -> Tensor:
    return torch.tanh(first - second)


def _harmless(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    """A subclass with another readout, start or helper keeps its certificate."""
    import copy

    twin = copy.deepcopy(model)
    change: dict[str, Callable[..., Any]] = _chosen(
        [
            {"readout": lambda self, state, context: state},
            {"solve": lambda self, *arguments, **options: None},
            {"helper_of_mine": lambda self: 1},
            {},
        ],
        generator,
    )
    return AttackCase("subclass", _derived(model, **change), graph, twin=twin)


# ---------------------------------------------------------------------- known truths beside a
# threshold


def _threshold(model: EquilibriumModel, graph: Graph, generator: torch.Generator) -> AttackCase:
    away = _chosen([-1.0, 0.0, 1.0], generator) * 10.0 ** (-1 - 15 * _uniform(generator))
    return (_bifurcation if _uniform(generator) < 0.7 else _column_sums)(away, generator)


def _regular_graph(generator: torch.Generator) -> Graph:
    """Pairs, or a ring: every node hears the same number of others."""
    n = 2 * int(1 + 6 * _uniform(generator))
    index = torch.arange(n)
    if _uniform(generator) < 0.5 or n < 4:
        edges = torch.stack([index, index ^ 1])
    else:
        edges = torch.cat([torch.stack([index, (index + k) % n]) for k in (1, -1)], dim=1)
    return Graph.build(torch.zeros(n, 1, dtype=torch.float64), edges)


def _bifurcation(away: float, generator: torch.Generator) -> AttackCase:
    """Theorem 13, Corollary 14: one fixed point up to gain 1/2 (the difference of the channels
    shrinks strictly), three above."""
    gain = BIFURCATION + away
    shift = _chosen([1.01, 1.2, 2.0], generator)
    family = counterexample(
        gain, shift, int(1 + 2 * _uniform(generator)), _regular_graph(generator)
    )
    three = gain > BIFURCATION
    return AttackCase(
        "threshold",
        family.model(),
        family.graph,
        f"gain {gain!r}: {'three equilibria' if three else 'one equilibrium'}",
        frozenset({Verdict.CERTIFIED if three else Verdict.REFUTED}),
        three,
    )


def _column_sums(away: float, generator: torch.Generator) -> AttackCase:
    """IGNN with W = s I and no drive on an undirected graph: a line of fixed points at s = 1, and
    divergence above."""
    graph = _regular_graph(generator)
    size = 1.0 + away
    model = IGNN(1, 2, width=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.recurrent.copy_(size * torch.eye(2, dtype=torch.float64))
    forbidden = frozenset({Verdict.CERTIFIED}) if size >= 1.0 else frozenset({Verdict.REFUTED})
    return AttackCase("threshold", model, graph, f"column sums {size!r}", forbidden)


ATTACKS: dict[str, Callable[[EquilibriumModel, Graph, torch.Generator], AttackCase]] = {
    "random": _random,
    "non-finite": _non_finite,
    "extreme": _extreme,
    "subclass": _subclass,
    "threshold": _threshold,
    "float32": _float32,
}
"""By name, in the order of the report."""
