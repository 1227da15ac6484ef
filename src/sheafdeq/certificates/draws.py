"""Random problems: models with a rule, graphs and weights, by number and seed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.layers.gates import GATES
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ

__all__ = ["draw_graph", "draw_problem"]


def draw_graph(generator: torch.Generator, features: int) -> Graph:
    """A small random graph: undirected or directed, possibly with loops, parallel edges and
    isolated nodes."""
    n = int(torch.randint(2, 9, (1,), generator=generator))
    count = int(torch.randint(1, 3 * n, (1,), generator=generator))
    pairs = torch.randint(0, n, (2, count), generator=generator)
    if float(torch.rand(1, generator=generator)) < 0.7:
        pairs = pairs[:, pairs[0] != pairs[1]]
        pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    x = 10.0 ** float(torch.rand(1, generator=generator) * 2 - 1) * torch.randn(
        n, features, generator=generator
    )
    return Graph.build(x.double(), pairs)


def draw_problem(
    number: int, seed: int = 0, only: type | None = None
) -> tuple[EquilibriumModel, Graph]:
    """Model, graph and weights of one draw: every model with a rule, sizes 1 to 4, weights from
    0.01 to 100 times Xavier."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform() -> float:
        return float(torch.rand(1, generator=generator))

    graph = draw_graph(generator, 2)
    d, q = 1 + int(3 * uniform()), 1 + int(4 * uniform())
    kinds: list[Callable[[], EquilibriumModel]] = [
        lambda: SheafDEQ(2, 2, d, q, shift=1.05 + 2 * uniform() ** 2, pre_norm=uniform() < 0.8),
        lambda: StrongSheafDEQ(2, 2, d, q, shift=1.6 + uniform(), hidden=4),
        lambda: SheafCascade(
            2,
            2,
            d,
            q,
            levels=1 + int(3 * uniform()),
            hidden=4,
            edge_hidden=4,
            shift=1.4 + uniform(),
        ),
        lambda: IGNN(2, 2, width=1 + int(5 * uniform()), kappa=0.05 + 0.9 * uniform()),
        lambda: APPNP(
            2,
            2,
            width=3,
            alpha=0.02 + 0.9 * uniform(),
            shift=None if uniform() < 0.4 else 1.01 + uniform(),
        ),
        lambda: EIGNN(
            2,
            2,
            width=1 + int(5 * uniform()),
            gamma=0.05 + 0.9 * uniform(),
            self_loops=uniform() < 0.5,
        ),
        lambda: EnergyGNN(2, 2, state_width=2, hidden=2, beta=10.0 ** (-2 * uniform())),
        lambda: StrongAttnDEQ(
            2,
            2,
            d,
            q,
            shift=1.6 + 3 * uniform(),
            gate=sorted(GATES)[int(len(GATES) * uniform())],
            hidden=4,
        ),
    ]
    names = [SheafDEQ, StrongSheafDEQ, SheafCascade, IGNN, APPNP, EIGNN, EnergyGNN, StrongAttnDEQ]
    # Half of the draws are SheafDEQs: theirs is the rule with the most arithmetic in it.
    choice = (
        names.index(only)
        if only is not None
        else (0 if uniform() < 0.5 else 1 + int(7 * uniform()))
    )
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(0, 2**31 - 1, (1,), generator=generator)))
        model = kinds[choice]().double()
    scale = 10.0 ** (3 * uniform() - 2) if choice == 0 else 10.0 ** (4 * uniform() - 2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            # its weights are softplus of the parameters: positive whatever is drawn
            if isinstance(model, EnergyGNN):
                parameter.add_(1.5 * noise)
            elif not isinstance(model, IGNN):
                # Xavier has zero biases; the noise moves them too, so that kinks and drives are
                # everywhere.
                parameter.mul_(scale).add_(0.3 * scale * noise)
        if isinstance(model, SheafDEQ) and uniform() < 0.5:
            # Weakly adaptive maps: without these few draws would be certified globally.
            for generators in (model.source_maps, model.target_maps):
                generators[0].weight.mul_(0.01)  # type: ignore[operator]
                generators[2].bias.add_(
                    torch.randn(d * d, generator=generator, dtype=torch.float64)
                )  # type: ignore[operator]
    model.project()
    return model, graph
