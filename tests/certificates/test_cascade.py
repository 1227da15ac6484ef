"""Theorem 23 in numbers: couplings are upper bounds, the promised steps are enough, and a bound
that is too small is noticed."""

import math
from dataclasses import replace

import pytest
import torch

from sheafdeq.certificates import Verdict, certify
from sheafdeq.certificates.cascade import Joint, joint_bounds, level_rates
from sheafdeq.certificates.jacobian import log_jacobian
from sheafdeq.certificates.problem import EFFORTS, Problem
from sheafdeq.data.graph import Graph
from sheafdeq.layers.gates import GATES
from sheafdeq.models.sheaf_cascade import SheafCascade


def problem(
    seed: int = 0, levels: int = 3, scale: float = 1.0, **options
) -> tuple[SheafCascade, Graph, object]:
    torch.manual_seed(seed)
    graph = Graph.build(torch.randn(6, 2, dtype=torch.float64), torch.randint(0, 6, (2, 12)))
    model = (
        SheafCascade(2, 2, 2, 2, levels=levels, hidden=4, edge_hidden=4, **options).double().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale).add_(0.1 * scale * torch.randn_like(parameter))
    return model, graph, model.prepare(graph)


def box_state(
    model: SheafCascade, joint: Joint, nodes: int, generator: torch.Generator
) -> torch.Tensor:
    """A state whose levels lie in their boxes; some rows are nearly constant, where LayerNorm is
    steep."""
    parts = []
    for diameter in joint.diameters:
        share = torch.rand(nodes, model.width, generator=generator, dtype=torch.float64)
        flat = torch.rand(nodes, 1, generator=generator, dtype=torch.float64) + 1e-4 * share
        chosen = torch.rand(nodes, 1, generator=generator) < 0.5
        # the boxes differ by node: stay below the smallest upper end, beta + 1
        width = min(diameter, math.log((model.shift + 1) / (model.shift - 1)))
        parts.append(
            (model.shift - 1) * (width * torch.where(chosen, share, flat.clamp(max=1.0))).exp()
        )
    return torch.cat(parts, dim=1)


def worst_use(
    model: SheafCascade, graph: Graph, context: object, joint: Joint, draws: int = 40
) -> float:
    """The largest observed movement of a level as a share of its coupling; above one, the couplings
    are wrong."""
    generator = torch.Generator().manual_seed(2)
    c, seen = model.width, 0.0
    with torch.no_grad():
        for _ in range(draws):
            x = box_state(model, joint, graph.num_nodes, generator)
            for level in range(1, model.levels):
                below, own = (
                    x[:, (level - 1) * c : level * c],
                    x[:, level * c : (level + 1) * c].contiguous(),
                )
                signs = torch.randint(0, 2, below.shape, generator=generator) * 2.0 - 1.0
                other = below * (1e-5 * signs).exp()
                images = [
                    model.level_map(level, model.sheaf(level, z.contiguous(), context), context)(
                        own
                    )
                    for z in (below, other)
                ]
                seen = max(
                    seen,
                    float((images[0] / images[1]).log().abs().max())
                    / 1e-5
                    / joint.couplings[level - 1],
                )
    return seen


@pytest.mark.parametrize(
    ("gate", "tied"), [("balance", True), ("balance", False), ("tanh", True), ("rational", False)]
)
def test_no_pair_in_the_boxes_moves_a_level_by_more_than_its_coupling(gate, tied):
    model, graph, context = problem(1, gate=gate, tied=tied)
    joint = joint_bounds(model, context)
    assert 1e-9 < worst_use(model, graph, context, joint, draws=20) <= 1  # crude, not absurd
    # The same check rejects couplings that forget how steep LayerNorm is on flat rows.
    assert worst_use(model, graph, context, replace(joint, couplings=(2.0, 2.0)), draws=20) > 1


def test_states_stay_below_the_diameters_and_the_promised_steps_are_enough():
    model, graph, context = problem(3, levels=2, scale=3.0, shift=1.6)
    joint = joint_bounds(model, context)
    promised = joint.steps(1e-6)
    assert len(promised) == 2
    assert promised[0] < promised[1] < 10_000
    ends = []
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for scale in (1e-3, 1.0, 1e3):
            state = scale * torch.rand(
                graph.num_nodes, 2 * model.width, generator=generator, dtype=torch.float64
            )
            for _ in range(promised[-1]):
                state = model.step(state, context)
            assert float(state.max()) <= (model.shift - 1) * math.exp(max(joint.diameters))
            assert float(state.min()) >= model.shift - 1
            ends.append(state)
    assert max(float((end / ends[0]).log().abs().max()) for end in ends) <= 2e-6


def test_weights_satisfy_the_condition_of_theorem_23():
    joint = Joint(0.5, 0.75, (10.0, 0.1, 0.0), (1.0, 2.0, 2.0, 2.0))
    weights = [10.0**digit for digit in joint.digits]
    assert weights[0] == 1.0
    for level, coupling in enumerate(joint.couplings, start=1):
        assert weights[level] >= max(
            weights[level - 1], coupling * weights[level - 1] / (0.75 - 0.5)
        ) * (1 - 1e-12)
    steps = joint.steps(1e-6)
    assert list(steps) == sorted(steps)
    # by hand: theta_1 = 1e-6 * 0.25 / 10 (the coupling 0.1 asks for less), r = 1/2
    assert steps[0] == 1 + math.ceil(math.log2(2.0 / 2.5e-8))
    with pytest.raises(ValueError, match="tolerance"):
        joint.steps(0.0)
    model, _, context = problem()
    with pytest.raises(ValueError, match="joint rate"):
        joint_bounds(model, context, rate=0.1)


def test_row_sums_and_spectral_radius_agree_with_the_exact_jacobian():
    model, graph, context = problem(5, levels=2)
    with torch.no_grad():
        state = model.initial_state(context)
        for _ in range(200):
            state = model.step(state, context)
    facts = level_rates(Problem(model, graph, context, None, EFFORTS["quick"], 0), state)
    dense = log_jacobian(model, state, context).to_dense()
    c, n = model.width, graph.num_nodes
    by_level = dense.view(n, 2, c, n, 2, c)
    for level, rate in enumerate(facts["largest row sum of |J| of a level, by level"]):
        own = by_level[:, level, :, :, level, :].reshape(n * c, n * c)
        exact = float(own.abs().sum(1).max())
        assert exact <= rate * (1 + 1e-9)  # parallel edges are summed by absolute value
        assert rate <= model.level_rate
    across = float(by_level[:, 1, :, :, 0, :].reshape(n * c, n * c).abs().sum(1).max())
    assert facts["couplings to the level below, by level (at least)"][0] <= across * (1 + 1e-3)
    radius = float(torch.linalg.eigvals(dense).abs().max())
    assert facts["spectral radius of J (estimate)"] == pytest.approx(radius, rel=1e-3)


def test_gate_slopes_bound_the_derivatives():
    p = torch.linspace(-1, 1, 41, dtype=torch.float64)
    g = torch.logspace(-6, 3, 60, dtype=torch.float64)
    size, part = torch.meshgrid(g, p, indexing="ij")
    part = (part * size).requires_grad_()
    size = size.clone().requires_grad_()
    for name, gate in GATES.items():
        slopes = torch.autograd.grad(gate.apply(part, size).sum(), (part, size))
        total = float((slopes[0].abs() + slopes[1].abs()).max())
        assert total <= GATES[name].slope * (1 + 1e-12)
        assert total >= 0.9 * GATES[name].slope


def test_the_certificate_tells_the_joint_rate_and_says_when_it_is_useless():
    model, graph, _ = problem()
    certificate = certify(model, graph)
    assert certificate.verdict is Verdict.CERTIFIED
    assert certificate.proved["joint rate"] > certificate.rate
    assert certificate.proved["joint steps to 1e-06 from every positive start"] > 0
    assert "orders of magnitude" in certificate.proved["note"]
    assert (
        certificate.observations["at the reached state"]["Perron root of |J|, upper"]
        <= certificate.rate
    )
    assert "Proved besides:" in certificate.report()
    single = certify(SheafCascade(2, 2, 1, 2, levels=1), graph)
    assert "joint rate" not in single.proved
