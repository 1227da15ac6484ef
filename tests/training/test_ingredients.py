"""The ingredients of reliable training: random solves, weight average, augmentation, penalty
ramp."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sheafdeq.data import load_task
from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import EdgeDistance
from sheafdeq.errors import InputError
from sheafdeq.registry import Shape, build_model
from sheafdeq.training.augmentation import augmented, check_augmentation
from sheafdeq.training.average import WeightAverage
from sheafdeq.training.config import AugmentationConfig, PenaltyConfig, SolveConfig, TrainingConfig
from sheafdeq.training.interrupt import Suspended
from sheafdeq.training.loop import Trainer, evaluate
from sheafdeq.training.penalty import SettlingPenalty, _independent_nodes, sampled_row_sums
from sheafdeq.training.run import train
from sheafdeq.training.run_identity import task_of
from sheafdeq.training.solving import check_solves, random_positive_start, run_for_training
from sheafdeq.training.sweep import question

SHAPE = Shape(2, 3, None, 2, 3, 4)
EVERYTHING = {
    "graphs_per_update": 1,
    "weight_average": 0.9,
    "solves": {
        "steps": [2, 5],
        "random_start": 0.5,
        "start_scale": [0.01, 100.0],
        "step_noise": 0.01,
        "detached_steps": [0, 2],
    },
    "augmentation": {
        "feature_noise": 0.1,
        "feature_shift": 0.2,
        "edge_dropout": 0.2,
        "edge_noise": 0.1,
    },
    "penalties": {
        "residual_weight": 1.0,
        "residual_max_weight": 0.1,
        "jacobian_weight": 0.01,
        "row_sum_weight": 0.01,
        "ramp": [0.2, 0.8],
    },
}


@pytest.fixture
def graph() -> Graph:
    return load_task(
        "community", level=10, nodes=30, k=3, train_seeds=[1, 2], test_seeds=[3]
    ).train.graph


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build_model("sheafdeq", SHAPE, shift=1.3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"graphs_per_update": None}, {"keep": "last", "score_every": 3}],
    ids=["by graph", "whole", "scored seldom"],
)
def test_a_resumed_run_with_every_ingredient_is_bitwise_the_uninterrupted_one(
    small, tmp_path, changes
):
    config = small(max_epochs=4, **{**EVERYTHING, **changes})
    uncut = train(config, out=tmp_path / "uncut")
    seen = iter([None, "pause"])
    with pytest.raises(Suspended):
        train(config, out=tmp_path / "cut", suspend_when=lambda metrics: next(seen))
    resumed = train(config, out=tmp_path / "cut")
    assert resumed.record.curves == uncut.record.curves
    assert resumed.record.scores == uncut.record.scores
    assert resumed.record.checkpoint == uncut.record.checkpoint  # SHA-256 of the files


def test_scoring_seldom_changes_what_is_seen_and_nothing_else(small):
    config = small(**EVERYTHING, keep="last")
    often, seldom = (train(config.replace(score_every=k)) for k in (1, 4))
    for (name, one), other in zip(
        often.model.state_dict().items(), seldom.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    assert seldom.record.scores == often.record.scores
    curve = often.record.curves["validation"]
    expected = [value if epoch in (0, 4, 6) else None for epoch, value in enumerate(curve)]
    assert seldom.record.curves["validation"] == expected
    assert question(config.replace(score_every=4)) == question(config)


def test_defaults_leave_old_runs_their_names(small):
    assert not {"solves", "augmentation", "weight_average"} & set(small().payload())
    assert "ramp" not in small().payload()["penalties"]
    config = small(**EVERYTHING)
    assert TrainingConfig.parse(config.payload()) == config


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"solves": {"random_start": 0.5}}, "need each other"),
        ({"solves": {"start_scale": [0.1, 1.0]}}, "need each other"),
        ({"solves": {"random_start": 0.5, "start_scale": [2.0, 1.0]}}, "start_scale"),
        ({"solves": {"steps": [5, 2]}}, "steps must be a range"),
        ({"solves": {"steps": [0, 2]}}, "steps must be a range"),
        ({"solves": {"stps": [1, 2]}}, "stps"),
        ({"penalties": {"ramp": [0.1, 0.2]}}, "ramp has no effect"),
        ({"penalties": {"residual_weight": 1.0, "ramp": [0.5, 0.2]}}, "0 <= a <= b <= 1"),
        ({"weight_average": 1.0}, "weight_average"),
        ({"augmentation": {"edge_dropout": 1.0}}, "edge_dropout"),
        ({"score_every": 2, "keep": "last"}, "needs graphs_per_update"),
        ({"score_every": 2, "graphs_per_update": 1}, 'keep = "last"'),
        (
            {"score_every": 2, "graphs_per_update": 1, "keep": "last", "schedule": "plateau"},
            "plateau",
        ),
    ],
)
def test_contradictions_are_named(small, values, word):
    with pytest.raises(InputError, match=word):
        small(**values)


@pytest.mark.parametrize(
    ("name", "options", "solves", "word"),
    [
        ("mlp", {}, {"steps": (1, 2)}, "feed-forward"),
        ("sheaf-cascade", {}, {"steps": (1, 2)}, "training_steps"),
        ("sheafdeq", {"gradient": "implicit"}, {"step_noise": 0.1}, "one fixed map"),
        ("sheafdeq", {"gradient": "truncated:2"}, {"detached_steps": (1, 2)}, "unrolled"),
    ],
)
def test_options_that_mean_nothing_for_a_model_are_refused(name, options, solves, word):
    model = build_model(name, SHAPE, **options)
    with pytest.raises(InputError, match=word):
        check_solves(SolveConfig(**solves), model)
    check_solves(SolveConfig(), model)


# ---------------------------------------------------------------------- solves


def test_without_options_the_training_pass_is_the_models_own(graph, model):
    output, _ = run_for_training(model, graph, SolveConfig())
    assert torch.equal(output.logits, model.run(graph).logits)


def test_the_number_of_steps_is_drawn_from_the_whole_range(graph, model):
    taken = {
        run_for_training(model, graph, SolveConfig(steps=(2, 4)))[0].solution.steps
        for _ in range(30)
    }
    assert taken == {2, 3, 4}


def test_random_starts_have_the_scales_asked_for(graph, model):
    state = random_positive_start(torch.empty(4000, 3), (1e-3, 1e-3))
    assert float(state.min()) > 0
    assert float(state.log().mean()) == pytest.approx(-6.9078, abs=0.05)
    assert float(state.log().std()) == pytest.approx(1.0, abs=0.05)
    medians = [
        float(random_positive_start(torch.empty(100, 3), (1e-2, 1e2)).median()) for _ in range(200)
    ]
    assert min(medians) < 0.05
    assert max(medians) > 20
    always = SolveConfig(random_start=1.0, start_scale=(10.0, 10.0))
    assert not torch.equal(
        run_for_training(model, graph, always)[0].logits, model.run(graph).logits
    )


def test_noise_disturbs_every_step_and_leaves_the_state_an_image(graph, model):
    seen: list[torch.Tensor] = []
    step = model.step
    model.step = lambda state, context: seen.append(step(state, context)) or seen[-1]
    output, context = run_for_training(model, graph, SolveConfig(step_noise=0.1))
    assert any(torch.equal(output.solution.value, image) for image in seen)
    plain = step(step(model.initial_state(context), context), context)
    assert not torch.allclose(seen[1], plain)


def test_detached_steps_move_the_state_but_carry_no_gradient(graph, model):
    output, _ = run_for_training(model, graph, SolveConfig(steps=(2, 2), detached_steps=(3, 3)))
    torch.testing.assert_close(output.logits, model.run(graph, steps=5).logits)
    output.logits.sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with torch.no_grad():
        start = model.solve(model.prepare(graph), graph, steps=3).value
    model.run(graph, steps=2, initial_state=start).logits.sum().backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


# ---------------------------------------------------------------------- weight average


def test_the_average_is_the_recursion_of_its_docstring():
    layer = torch.nn.Linear(2, 1)
    average = WeightAverage(layer, 0.5)
    expected = layer.weight.detach().clone()
    for update in range(1, 30):
        with torch.no_grad():
            layer.weight.copy_(torch.randn(1, 2))
        average.update(layer)
        decay = min(0.5, update / (update + 9))
        expected = decay * expected + (1 - decay) * layer.weight.detach()
    torch.testing.assert_close(average.values["weight"], expected)
    own = layer.weight.detach().clone()
    with average.applied(layer):
        torch.testing.assert_close(layer.weight.detach(), expected)
    assert torch.equal(layer.weight.detach(), own)


def test_the_averaged_parameters_are_scored_and_kept(small):
    config = small(weight_average=0.8, max_epochs=8)
    result = train(config)
    again = evaluate(result.model, task_of(config))
    assert again.scores["validation"] == pytest.approx(
        max(result.record.curves["validation"]), rel=1e-5
    )
    trainer = Trainer(config, task_of(config))
    for _ in range(3):
        trainer.advance()
    assert trainer.average is not None
    own = dict(trainer.model.named_parameters())
    assert any(not torch.equal(value, own[name]) for name, value in trainer.average.values.items())


# ---------------------------------------------------------------------- augmentation


def test_augmentation_changes_features_and_edges_only_as_asked(graph):
    torch.manual_seed(0)
    shifted = augmented(graph, AugmentationConfig(feature_shift=1.0))
    offsets = shifted.x - graph.x
    for number in range(graph.num_graphs):
        rows = offsets[graph.graph_ids == number]
        torch.testing.assert_close(rows, rows[:1].expand_as(rows))
    assert not torch.allclose(offsets[0], offsets[-1])
    assert torch.equal(shifted.edge_index, graph.edge_index)
    noisy = augmented(graph, AugmentationConfig(feature_noise=0.1))
    assert 0.05 < float((noisy.x - graph.x).std()) < 0.2
    thinned = augmented(graph, AugmentationConfig(edge_dropout=0.3))
    assert torch.equal(thinned.x, graph.x)
    kept = {(int(u), int(v)) for u, v in thinned.edge_index.T}
    assert kept < {(int(u), int(v)) for u, v in graph.edge_index.T}
    assert all((v, u) in kept for u, v in kept)  # both directions go together
    rebuilt = Graph.build(thinned.x, thinned.edge_index, batch=thinned.graph_of_node)
    assert torch.equal(rebuilt.edge_index, thinned.edge_index)


def test_edge_features_follow_their_edges(graph):
    marked = replace(graph, edge_attr=graph.edge_index.T.float())
    thinned = augmented(marked, AugmentationConfig(edge_dropout=0.3))
    assert torch.equal(thinned.edge_attr, thinned.edge_index.T.float())


def test_noise_on_edge_features_keeps_signs_and_zeros_and_nothing_else(graph):
    values = torch.linspace(-1, 1, 2 * graph.num_edges).view(-1, 2)
    values[0] = 0.0
    marked = replace(graph, edge_attr=values)
    noisy = augmented(marked, AugmentationConfig(edge_noise=0.1))
    assert torch.equal(noisy.edge_attr.sign(), values.sign())
    spread = (noisy.edge_attr / values)[values != 0].log().std()
    assert 0.05 < float(spread) < 0.2
    assert torch.equal(noisy.x, graph.x)
    assert torch.equal(noisy.edge_index, graph.edge_index)
    assert augmented(graph, AugmentationConfig(edge_noise=0.1)).edge_attr is None


def test_edges_that_are_scored_may_not_be_dropped():
    with pytest.raises(InputError, match="scores every edge"):
        check_augmentation(AugmentationConfig(edge_dropout=0.1), object.__new__(EdgeDistance))


# ---------------------------------------------------------------------- penalty ramp


def test_the_ramp_rises_between_its_shares():
    def factors(ramp):
        penalty = SettlingPenalty(PenaltyConfig(residual_weight=1.0, ramp=ramp))
        return [penalty.factor(epoch, 8) for epoch in range(9)]

    assert factors((0.25, 0.75)) == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert factors((0.5, 0.5)) == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert factors(None) == [1] * 9


def test_before_the_ramp_a_penalised_run_is_the_plain_one(small):
    weights = {"residual_weight": 100.0, "steps": 1, "ramp": [0.5, 0.9]}
    plain, penalised = (
        train(small(max_epochs=8, penalties=p)).record.curves["loss"] for p in ({}, weights)
    )
    assert penalised[:4] == plain[:4]
    assert penalised[6:] != plain[6:]


# ---------------------------------------------------------------------- row sums


def test_sampled_row_sums_are_those_of_the_dense_jacobian():
    torch.manual_seed(0)
    graph = load_task(
        "community", level=5, nodes=30, k=2, train_seeds=[1], test_seeds=[3]
    ).train.graph.to(dtype=torch.float64)
    model = build_model("sheafdeq", SHAPE, shift=1.3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    context = model.prepare(graph)
    state = model.solve(context, graph, steps=3).value.detach()
    columns = state.shape[1]
    dense = torch.autograd.functional.jacobian(
        lambda x: model.step(x.reshape(state.shape).exp(), context).log().reshape(-1),
        state.log().reshape(-1),
    )
    exact = dense.abs().sum(dim=1)
    seen = set()
    for _ in range(20):
        generator = torch.get_rng_state()
        sums = sampled_row_sums(model, state, context, graph, step=1e-6)
        torch.set_rng_state(generator)  # the same draws again
        nodes = _independent_nodes(graph)
        chosen = torch.randint(columns, (len(nodes),))
        torch.testing.assert_close(sums, exact[nodes * columns + chosen], rtol=1e-4, atol=1e-6)
        seen |= set(nodes.tolist())
    assert len(seen) > 15  # every node has its chance


def test_independent_nodes_read_no_common_node(graph):
    for _ in range(5):
        nodes = _independent_nodes(graph)
        read = [{int(v), *graph.source[graph.target == v].tolist()} for v in nodes]
        assert len(set().union(*read)) == sum(map(len, read))


def test_the_row_sum_penalty_has_gradients_and_vanishes_below_its_target(graph, model):
    output = model.run(graph)
    for target, zero in ((1e-3, False), (1e6, True)):
        model.zero_grad()
        penalty = SettlingPenalty(PenaltyConfig(row_sum_weight=1.0, row_sum_target=target))
        value = penalty(output, model, graph)
        assert (float(value.detach()) == 0) == zero
        value.backward(retain_graph=True)
        largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
        assert (largest == 0) == zero
