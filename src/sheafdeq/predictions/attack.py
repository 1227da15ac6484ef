"""The strongest change of the features that gradient ascent finds within a radius.

Projected gradient ascent in the maximum norm: features move by the sign of the gradient of the lead
that is to be lost, and are put back into x +- R after every move. All nodes share one change of all
features, so a change is made for a group of nodes. A restart draws one group (the first takes all
nodes), or with ``groups`` it divides the nodes at random and goes through all groups, so that
every restart is after every node. The change ends in a corner of the box or wherever the ascent
takes it. Labels are read at the equilibrium of the changed graph, of all nodes each time. An attack
proves nothing about nodes it spares; a proved node it must spare.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["Attack", "attack"]

TARGETED = 0.1
"""Share of the nodes a restart is after, from the second on."""


@dataclass(frozen=True, eq=False)
class Attack:
    """What the ascent found."""

    radius: float
    restarts: int
    ascents: int
    label: Tensor  # (n,) labels at the stored features
    changed: Tensor  # (n,) bool: some change within the radius gave another label
    surviving: Tensor  # (n,) the smallest lead of the own label that was seen

    def accuracy(self, target: Tensor, mask: Tensor | None = None) -> float:
        """Share of the nodes that were right and stayed so under every change tried."""
        right = (self.label == target) & ~self.changed
        chosen = right if mask is None else right[mask]
        return float(chosen.double().mean()) if chosen.numel() else 1.0


def attack(
    model: EquilibriumModel,
    graph: AnyGraph,
    radius: float,
    *,
    restarts: int = 20,
    ascents: int = 10,
    horizon: int | None = None,
    seed: int = 0,
    tolerance: float = 1e-7,
    groups: int | None = None,
) -> Attack:
    """Search for features within ``radius`` that change labels; ``ascents`` moves a restart.

    ``groups``: into how many groups a restart divides the nodes, each attacked on its own. None:
    one group a restart.

    Gradients go through ``horizon`` steps (the trained number by default; fewer are cheaper),
    labels are read at the equilibrium. Model and graph are taken in float64: a small radius is
    nothing in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(model).to(torch.float64).eval()
    graph = Graph.of(graph).to(torch.float64)
    short = copy.copy(model)
    if horizon is not None:
        short.solver = model.solver.with_steps(horizon)
    with torch.no_grad():
        label = model.run_to_equilibrium(graph, tolerance=tolerance).logits.argmax(1)
    changed = torch.zeros_like(label, dtype=torch.bool)
    surviving = torch.full(label.shape, torch.inf, dtype=graph.x.dtype)
    targets = _targets(len(label), restarts, groups, generator)
    for _ in range(restarts * (groups or 1)):
        noise = torch.rand(graph.x.shape, generator=generator, dtype=torch.float64).to(graph.x)
        shift = radius * (2 * noise - 1)
        after = next(targets)
        for ascent in range(ascents):
            shift.requires_grad_()
            with torch.enable_grad():
                logits = short.run(graph.with_features(graph.x + shift)).logits
                loss = _lead(logits, label)[after].sum()
                (gradient,) = torch.autograd.grad(loss, shift)
            pace = radius * (1.0 if ascent == 0 else 2.0 / (ascent + 1))
            shift = (shift.detach() - pace * gradient.sign()).clamp(-radius, radius)
        with torch.no_grad():
            moved = _within(graph.x, shift, radius)
            logits = model.run_to_equilibrium(
                graph.with_features(moved), tolerance=tolerance
            ).logits
            lead = _lead(logits, label)
        surviving = torch.minimum(surviving, lead)
        changed |= logits.argmax(1) != label
    return Attack(radius, restarts, ascents, label, changed, surviving)


def _targets(
    nodes: int, restarts: int, groups: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """(n,) bool: the nodes that one change after the other is made for."""
    for restart in range(restarts):
        if groups is not None:
            group = torch.randperm(nodes, generator=generator) % groups
            for number in range(groups):
                yield group == number
            continue
        after = torch.rand(nodes, generator=generator, dtype=torch.float64) < TARGETED
        if restart == 0 or not bool(after.any()):
            after = torch.ones_like(after)
        yield after


def _within(x: Tensor, shift: Tensor, radius: float) -> Tensor:
    """x + shift with no entry rounded out of the box."""
    moved = x + shift
    outside = (moved.double() - x.double()).abs() > radius
    return torch.where(outside, x, moved)


def _lead(logits: Tensor, label: Tensor) -> Tensor:
    """(n,) the label's logit minus the largest other."""
    own = logits.gather(1, label.unsqueeze(1)).squeeze(1)
    others = logits.scatter(1, label.unsqueeze(1), -torch.inf).amax(1)
    return own - others
