"""Plain float64 references for the statements of docs/theory.md, and the checkers that try to
violate them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.layers.operator import SheafOperator

Step = Callable[[Tensor], Tensor]
SLACK = 1e-9  # relative; float64 rounding of a few thousand operations


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def positive(seed: int, *shape: int, spread: float = 2.0) -> Tensor:
    return torch.exp(spread * torch.randn(*shape, dtype=torch.float64, generator=generator(seed)))


def normal(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


# ---------------------------------------------------------------------- checkers


def thompson(x: Tensor, y: Tensor) -> float:
    return float((x.log() - y.log()).abs().max())


def log_jacobian(step: Step, state: Tensor) -> Tensor:
    """(N, N) Jacobian of log o step o exp at log(state) (Lemma 4)."""
    shape = state.shape

    def f(u: Tensor) -> Tensor:
        return step(u.exp().reshape(shape)).log().reshape(-1)

    return torch.autograd.functional.jacobian(f, state.log().reshape(-1), vectorize=True)


def log_norm(step: Step, state: Tensor, weights: Tensor | None = None) -> float:
    """The weighted maximum norm of that Jacobian: the exact local rate in the (weighted) Thompson
    metric."""
    jacobian = log_jacobian(step, state).abs()
    w = torch.ones(len(jacobian), dtype=jacobian.dtype) if weights is None else weights.reshape(-1)
    return float(((jacobian @ w) / w).max())


def observed_rate(step: Step, x: Tensor, y: Tensor) -> float:
    return thompson(step(x), step(y)) / thompson(x, y)


def violates(step: Step, rate: float, states: list[Tensor]) -> bool:
    """Whether some state or pair of states contradicts 'step contracts the Thompson metric with
    this rate'."""
    bound = rate * (1 + SLACK)
    if any(log_norm(step, state) > bound for state in states):
        return True
    return any(observed_rate(step, x, y) > bound for x, y in pairwise(states))


# ---------------------------------------------------------------------- the repaired update
# (Definition 16, Lemma 17)

GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda a, b: torch.tanh(a) - torch.tanh(b),
    "rational": lambda a, b: a / (1 + a) - b / (1 + b),
    "balance": lambda a, b: (a - b) / (1e-3 + a + b),
}


@dataclass
class Split:
    """p, g and y+- of one sheaf propagation with maps F and majorants M >= |F|; states are (n, d,
    q)."""

    graph: Graph
    stalk_mixing: Tensor
    channel_mixing: Tensor

    def parts(
        self, state: Tensor, source: Tensor, target: Tensor, big_source: Tensor, big_target: Tensor
    ):
        operator = SheafOperator.on(self.graph, source, target)
        p = operator.apply(self.stalk_mixing @ state @ self.channel_mixing)
        y = self.stalk_mixing.abs() @ state @ self.channel_mixing.abs()
        gram = big_target.transpose(1, 2) @ big_target
        n, d = state.shape[0], state.shape[1]
        own = (
            gram.new_zeros(n, d, d).index_add(0, self.graph.target, gram)
            / self.graph.degree[:, None, None]
        )
        blocks = big_target.transpose(1, 2) @ big_source * self.graph.edge_weight[:, None, None]
        g = (y + own @ y).index_add(0, self.graph.target, blocks @ y[self.graph.source])
        return (g + p) / 2, (g - p) / 2
