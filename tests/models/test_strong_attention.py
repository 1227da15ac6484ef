"""Repaired attention: contract, rate for weights of any size, and a checker that catches a missing
budget."""

import pytest
import torch

from sheafdeq.data.graph import Graph
from sheafdeq.distances import THOMPSON
from sheafdeq.errors import InputError
from sheafdeq.layers.gates import GATES
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.testing.contracts import ModelContract


class TestContract(ModelContract):
    def make_model(self) -> StrongAttnDEQ:
        return StrongAttnDEQ(3, 2, heads=2, channels=3, hidden=4, steps=5)


class TestEdgesContract(ModelContract):
    def make_model(self) -> StrongAttnDEQ:
        return StrongAttnDEQ(3, 2, heads=1, channels=4, hidden=4, steps=5, edge_dim=2, gate="tanh")


def observed(kind: type[StrongAttnDEQ], gate: str, scale: float, seed: int, spread: float) -> float:
    """The Thompson ratio of one random pair of states under random weights of a given size."""
    torch.manual_seed(seed)
    graph = Graph.build(torch.randn(6, 3, dtype=torch.float64), torch.randint(0, 6, (2, 14)))
    model = kind(3, 2, heads=2, channels=3, hidden=4, gate=gate, shift=1.3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
        model.drive.weight.zero_()
        context = model.prepare(graph)
        x = torch.exp(1.5 * torch.randn(6, 6, dtype=torch.float64))
        y = x * torch.exp(spread * torch.randn(6, 6, dtype=torch.float64))
        return float(
            THOMPSON(model.step(x, context), model.step(y, context)).max() / THOMPSON(x, y).max()
        )


@pytest.mark.parametrize("gate", sorted(GATES))
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_rate_is_never_exceeded(gate, scale):
    assert (
        max(
            observed(StrongAttnDEQ, gate, scale, seed, spread)
            for seed in range(4)
            for spread in (0.01, 1.0)
        )
        <= 0.95
    )


def test_a_missing_budget_is_caught():
    class Unbudgeted(StrongAttnDEQ):
        def budgeted_query(self):
            return 100.0 * self.query.weight

    assert max(observed(Unbudgeted, "balance", 1.0, seed, 0.01) for seed in range(60)) > 0.95


def test_budget_holds_for_huge_weights_and_is_not_spent_on_small_ones():
    model = StrongAttnDEQ(3, 2, heads=2, channels=3).double()
    with torch.no_grad():
        model.query.weight.mul_(1e3)
        key = model.key.weight.view(2, 3, 6)
        graded = model.budgeted_query().view(2, 3, 6).transpose(1, 2) @ key / 3**0.5
        assert float((2 + 2**0.5) * torch.linalg.matrix_norm(graded, ord=2).max()) <= model.budget
        model.query.weight.mul_(1e-6)
        torch.testing.assert_close(model.budgeted_query(), model.query.weight)


def test_bad_rate_is_named():
    with pytest.raises(InputError, match="rate must lie"):
        StrongAttnDEQ(3, 2, rate=1.5)


def test_a_graph_without_edges_has_a_local_step():
    model = StrongAttnDEQ(3, 2, heads=2, channels=3).double()
    graph = Graph.build(torch.randn(4, 3, dtype=torch.float64), torch.empty(2, 0, dtype=torch.long))
    context = model.prepare(graph)
    state = 1 + torch.rand(4, 6, dtype=torch.float64)
    torch.testing.assert_close(
        model.local_step(state, state[graph.source], context), model.step(state, context)
    )
