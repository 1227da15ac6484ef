"""Guaranteed models: contract, observed against proven rate for weights of any size, one
equilibrium from every start."""

from functools import partial

import pytest
import torch

import graphs
from sheafdeq.data.graph import Graph
from sheafdeq.distances import THOMPSON
from sheafdeq.errors import InputError
from sheafdeq.layers.gates import GATES, Gate
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.ops.gated_step import block_product_reference, edge_product
from sheafdeq.solvers import Picard
from sheafdeq.testing.contracts import ModelContract, example_graphs

SCALES = (0.1, 1.0, 10.0, 100.0)


random_graph = partial(graphs.random_graph, 9, 26, channels=3, isolated=False)


def random_positive(shape: tuple[int, ...], spread: float = 2.0) -> torch.Tensor:
    return torch.exp(spread * torch.randn(shape, dtype=torch.float64))


def scaled(model: torch.nn.Module, scale: float) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                scale * torch.randn_like(parameter) if parameter.dim() < 2 else parameter * scale
            )
    return model


class TestStrongSheafContract(ModelContract):
    def make_model(self) -> StrongSheafDEQ:
        return StrongSheafDEQ(3, 2, stalk_dim=2, channels=3, hidden=5, steps=6)


class TestStrongSheafEdgesContract(ModelContract):
    def make_model(self) -> StrongSheafDEQ:
        return StrongSheafDEQ(
            3, 2, stalk_dim=3, channels=2, hidden=4, steps=4, edge_dim=2, gate="tanh"
        )


class TestCascadeContract(ModelContract):
    def make_model(self) -> SheafCascade:
        # Random biases: with zero ones a self-loop, whose features are zero, sits exactly on the
        # kink of every ReLU.
        model = SheafCascade(
            3, 2, stalk_dim=2, channels=3, levels=3, level_steps=3, hidden=5, edge_hidden=4
        )
        return scaled(model, 1.0)


class TestUntiedCascadeContract(ModelContract):
    def make_model(self) -> SheafCascade:
        model = SheafCascade(
            3,
            2,
            stalk_dim=2,
            channels=2,
            levels=2,
            level_steps=3,
            tied=False,
            hidden=4,
            edge_dim=1,
            gate="tanh",
        )
        return scaled(model, 1.0)


# ---------------------------------------------------------------------- block products


@pytest.mark.parametrize("d", [1, 2, 3])
def test_block_product_equals_the_dense_matrix_and_the_edge_form(d):
    graph = random_graph(seed=d)
    edges = graph.edges
    n, e, q = graph.num_nodes, graph.num_edges, 4
    blocks, diagonal = (
        torch.randn(e, d, d, dtype=torch.float64),
        torch.randn(n, d, d, dtype=torch.float64),
    )
    values = torch.randn(n, d, q, dtype=torch.float64)
    dense = torch.zeros(n, n, d, d, dtype=torch.float64)
    dense.index_put_((graph.target, graph.source), blocks, accumulate=True)
    dense[torch.arange(n), torch.arange(n)] += diagonal
    reference = (dense.permute(0, 2, 1, 3).reshape(n * d, n * d) @ values.view(n * d, q)).view(
        n, d, q
    )
    packed = block_product_reference(blocks, diagonal, values, edges)
    by_edge = edge_product(blocks, values[graph.source], edges) + diagonal @ values
    torch.testing.assert_close(packed, reference)
    torch.testing.assert_close(by_edge, reference)


def test_block_product_has_first_and_second_derivatives():
    graph = graphs.random_graph(4, 7, seed=5, channels=3)
    edges = graph.edges
    arguments = [
        torch.randn(s, dtype=torch.float64, requires_grad=True)
        for s in ((7, 2, 2), (4, 2, 2), (4, 2, 3))
    ]

    def function(blocks, diagonal, values):
        return block_product_reference(blocks, diagonal, values, edges)

    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


def test_only_a_whole_graph_can_be_multiplied():
    edges = random_graph(seed=0).edges.restricted(
        torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)
    )
    with pytest.raises(InputError, match="whole graph"):
        block_product_reference(*torch.zeros(3, 2, 2, 2).double(), edges)


# ---------------------------------------------------------------------- the rate


@pytest.mark.parametrize("gate", sorted(GATES))
@pytest.mark.parametrize("scale", SCALES)
def test_single_level_rate_is_never_exceeded(gate, scale):
    worst = 0.0
    for seed in range(3):
        torch.manual_seed(seed)
        graph = random_graph(seed=seed)
        model = scaled(
            StrongSheafDEQ(
                3, 2, stalk_dim=3, channels=4, hidden=8, gate=gate, shift=1.6, rate=0.95
            ).double(),
            scale,
        )
        with torch.no_grad():
            context = model.prepare(graph)
            for spread in (0.01, 0.5, 3.0):
                x = random_positive((9, 12))
                y = x * random_positive((9, 12), spread)
                before = THOMPSON(x, y).max()
                after = THOMPSON(model.step(x, context), model.step(y, context)).max()
                worst = max(worst, float(after / before))
    assert worst <= model.guaranteed_rate()


class Unbudgeted(StrongSheafDEQ):
    def budgeted_logits(self):
        return 100.0 * self.logits.weight


class Unsplit(StrongSheafDEQ):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.gate = Gate(
            "unsplit", lambda plus, minus: torch.tanh(plus - minus), self.gate.coefficient
        )


@pytest.mark.parametrize(("broken", "gate"), [(Unbudgeted, "balance"), (Unsplit, "tanh")])
def test_the_rate_test_catches_a_broken_model(broken, gate):
    worst = 0.0
    pair = torch.tensor([[0, 1], [1, 0]])
    for seed in range(100):
        torch.manual_seed(seed)
        model = broken(3, 2, stalk_dim=1, channels=4, hidden=8, gate=gate, shift=1.3).double()
        with torch.no_grad():
            if broken is Unsplit:
                model.channel_mixing.mul_(2.0)
            model.drive.weight.zero_()  # a drive only lowers the rate
            context = model.prepare(Graph.build(torch.randn(2, 3, dtype=torch.float64), pair))
            x = random_positive((2, 4), 0.5)
            y = x * random_positive((2, 4), 0.01)
            after = THOMPSON(model.step(x, context), model.step(y, context)).max()
            worst = max(worst, float(after / THOMPSON(x, y).max()))
    assert worst > model.guaranteed_rate()


def test_budget_bounds_every_logit():
    torch.manual_seed(0)
    model = scaled(StrongSheafDEQ(3, 2, stalk_dim=2, channels=4, hidden=8).double(), 20.0)
    a1 = torch.cat([model.logit_source.weight, model.logit_target.weight], dim=1)  # (h, 2c)

    def logits(u):
        rows = u.exp().view(2, 2, 4)
        return (
            model.budgeted_logits() @ (a1 @ (rows / rows.sum(-1, keepdim=True)).reshape(-1)).relu()
        )

    for _ in range(30):
        jacobian = torch.autograd.functional.jacobian(
            logits, 2 * torch.randn(16, dtype=torch.float64)
        )
        assert float(jacobian.abs().sum(1).max()) <= model.budget


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("gate", sorted(GATES))
def test_each_level_of_a_cascade_contracts_given_the_level_below(gate, scale):
    torch.manual_seed(3)
    model = scaled(
        SheafCascade(3, 2, levels=3, channels=4, hidden=6, gate=gate, shift=1.4).double(), scale
    ).eval()
    graph = random_graph(seed=1)
    with torch.no_grad():
        context = model.prepare(graph)
        below = random_positive((9, 12))
        for level in range(3):
            step = model.level_map(level, model.sheaf(level, below, context), context)
            for spread in (0.01, 1.0, 4.0):
                x = random_positive((9, 12))
                y = x * random_positive((9, 12), spread)
                assert THOMPSON(step(x), step(y)).max() <= model.level_rate * THOMPSON(x, y).max()


def test_a_cascade_without_differences_reads_the_features_at_the_nodes_alone():
    """With the node encoders at zero, features reach the output through the differences or not at
    all."""
    torch.manual_seed(3)
    index = torch.randint(0, 7, (2, 16))
    graphs = [
        Graph.build(scale * torch.randn(7, 3, dtype=torch.float64), index) for scale in (1.0, 3.0)
    ]
    for differences in (True, False):
        model = (
            SheafCascade(3, 2, levels=2, channels=2, hidden=4, differences=differences)
            .double()
            .eval()
        )
        with torch.no_grad():
            model.encoder.weight.zero_()
            model.feature_drive.weight.zero_()
            first, second = (model.run(graph).logits for graph in graphs)
        assert torch.equal(first, second) != differences
    with_edges = (
        SheafCascade(3, 2, levels=2, channels=2, hidden=4, differences=False, edge_dim=2)
        .double()
        .eval()
    )
    given = Graph.build(graphs[0].x, index, torch.randn(16, 2, dtype=torch.float64))
    with torch.no_grad():
        assert not torch.equal(
            with_edges.run(given).logits,
            with_edges.run(
                Graph.build(given.x, given.edge_index, torch.zeros(16, 2, dtype=torch.float64))
            ).logits,
        )


@pytest.mark.parametrize("scale", SCALES)
def test_cascade_has_one_equilibrium_for_every_weight(scale):
    torch.manual_seed(int(scale * 10))
    model = scaled(
        SheafCascade(3, 2, levels=3, channels=3, hidden=6, shift=1.6).double(), scale
    ).eval()
    graph = random_graph(seed=2)
    solver = Picard(steps=3000, tolerance=1e-12, stop_early=True, stagnation_window=1500)
    states = []
    with torch.no_grad():
        for size in (1e-3, 1.0, 1e3):
            start = size * random_positive((9, 27), 1.0)
            states.append(
                model.run(graph, initial_state=start, solver=solver)
                .solution.raise_if_failed()
                .value
            )
        context = model.prepare(graph)
        staged = model.solve_staged(
            context, graph, solver=solver.with_steps(9000)
        ).raise_if_failed()
    for state in [*states, staged.value]:
        # A level may magnify the error of the level below by any factor: large weights cost digits,
        # not uniqueness.
        assert float(THOMPSON(state, states[0]).max()) < 1e-6


def test_strong_sheaf_has_one_equilibrium_for_large_weights():
    torch.manual_seed(0)
    model = scaled(
        StrongSheafDEQ(3, 2, stalk_dim=3, channels=3, hidden=6, gate="tanh").double(), 100.0
    )
    graph = random_graph(seed=2)
    solver = Picard(steps=3000, tolerance=1e-12, stop_early=True)
    with torch.no_grad():
        runs = [
            model.run(graph, initial_state=s * random_positive((9, 9)), solver=solver).solution
            for s in (1e-3, 1.0, 1e3)
        ]
    for run in runs:
        assert float(THOMPSON(run.raise_if_failed().value, runs[0].value).max()) < 1e-9


# ---------------------------------------------------------------------- staged and joint


def test_staged_residual_is_honest():
    torch.manual_seed(0)
    model = SheafCascade(3, 2, levels=3, level_steps=2, channels=3, hidden=6).double().eval()
    graph = random_graph(seed=3)
    with torch.no_grad():
        context = model.prepare(graph)
        short = model.solve(context, graph)
        long = model.solve_staged(context, graph, solver=Picard(steps=600, tolerance=1e-9))
        image = model.step(long.value, context)
    assert not short.converged
    assert short.steps == model.steps == 6
    assert long.converged
    relative = (image - long.value).abs().amax(1) / long.value.abs().amax(1)
    assert float(relative.max()) <= 1e-9


def test_implicit_and_unrolled_gradients_agree_at_the_equilibrium():
    gradients = []
    for rule in ("unrolled", "implicit"):
        torch.manual_seed(0)
        model = SheafCascade(
            3, 2, levels=2, level_steps=60, channels=2, hidden=4, gradient=rule
        ).double()
        model.run(random_graph(seed=4)).logits.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    # the backward tolerance is 1e-6
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)


def test_training_draws_its_steps_and_evaluation_does_not():
    torch.manual_seed(0)
    model = SheafCascade(
        3, 2, levels=2, level_steps=5, training_steps=(1, 3), channels=2, hidden=4
    ).double()
    graph = random_graph(seed=0)
    drawn = {model.run(graph).solution.steps for _ in range(20)}
    assert drawn == {2, 6}
    model.eval()
    assert model.run(graph).solution.steps == model.steps == 10


def test_tied_weights_do_not_depend_on_the_number_of_levels():
    counts = {SheafCascade(3, 2, levels=levels).num_parameters() for levels in (1, 4, 9)}
    assert len(counts) == 1
    assert SheafCascade(3, 2, levels=2, tied=False).num_parameters() > counts.pop()


def test_training_noise_is_drawn_once_a_solve_and_absent_in_evaluation():
    torch.manual_seed(0)
    model = SheafCascade(3, 2, levels=2, channels=3, feature_noise=0.3, edge_dropout=0.4).double()
    graph = random_graph(seed=0)
    assert model.stochastic_training
    with torch.no_grad():
        first, second = model.run(graph).logits, model.run(graph).logits
        context = model.prepare(graph)
        state = model.initial_state(context)
        torch.testing.assert_close(model.step(state, context), model.step(state, context))
        model.eval()
        calm, again = model.run(graph).logits, model.run(graph).logits
    assert not torch.allclose(first, second)
    assert torch.equal(calm, again)


# ---------------------------------------------------------------------- input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SheafCascade(3, 2, shift=1.1, gate="tanh"), "larger shift"),
        (lambda: SheafCascade(3, 2, shift=0.9), "above 1"),
        (lambda: SheafCascade(3, 2, gate="sigmoid"), "unknown gate"),
        (lambda: SheafCascade(3, 2, levels=0), "levels must be"),
        (lambda: SheafCascade(3, 2, edge_dropout=1.0), "edge_dropout"),
        (lambda: StrongSheafDEQ(3, 2, rate=1.0), "rate must lie"),
        (lambda: StrongSheafDEQ(3, 2, rate=0.1), "rate must lie"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_graph_without_edges_and_without_nodes():
    for model in (SheafCascade(3, 2), StrongSheafDEQ(3, 2)):
        lonely = Graph.build(torch.randn(4, 3), torch.zeros(2, 0, dtype=torch.int64))
        assert model.run(lonely).logits.shape == (4, 2)
        empty = Graph.build(torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.int64))
        assert model.run(empty).logits.shape == (0, 2)


def test_example_graphs_cover_odd_edges():
    assert any(bool((graph.source == graph.target).any()) for graph in example_graphs(3))
