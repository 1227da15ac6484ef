"""Encoder, dropout and skip: nothing by default, one mask a solve, off in evaluation mode."""

import pytest
import torch

from sheafdeq.certificates import Verdict, certify
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.layers.feature_encoder import FeatureEncoder, harmonic_features
from sheafdeq.models import EIGNN, GAT, GCN, IGNN, MLP, SheafCascade, SheafDEQ, SheafDEQLayer
from sheafdeq.models.neural_sheaf_diffusion import NeuralSheafDiffusion
from sheafdeq.predictions import certify_predictions
from sheafdeq.recurrence import restrict
from sheafdeq.solvers import Status
from sheafdeq.testing import ModelContract
from sheafdeq.training.loop import is_stochastic

OPTIONS = {"encoder": (7,), "input_dropout": 0.3, "dropout": 0.4}
MODELS = {
    "sheafdeq": lambda **o: SheafDEQ(20, 2, 2, 3, readout_norm=True, skip=True, **o),
    "cascade": lambda **o: SheafCascade(20, 2, 2, 3, levels=2, skip=True, **o),
    "ignn": lambda **o: IGNN(20, 2, 6, **o),
    "eignn": lambda **o: EIGNN(20, 2, 6, **o),
    "gcn": lambda **o: GCN(20, 2, 6, **o),
    "gat": lambda **o: GAT(20, 2, 2, 3, **o),
}


def words(n: int = 30, dtype: torch.dtype = torch.float32) -> Graph:
    """A bag of words: one entry in twenty."""
    x = torch.zeros(n, 20, dtype=dtype)
    x[torch.arange(n), torch.randint(20, (n,))] = 1 + torch.rand(n, dtype=dtype)
    edges = torch.randint(n, (2, 3 * n))
    return Graph.build(x, torch.cat([edges, edges.flip(0)], dim=1))


class TestEncodedSheafDEQ(ModelContract):
    def make_model(self) -> SheafDEQ:
        return SheafDEQ(3, 2, 2, 3, encoder=(4, 5), dropout=0.5, readout_norm=True, skip=True)


class TestEncodedCascade(ModelContract):
    def make_model(self) -> SheafCascade:
        return SheafCascade(
            3, 2, 2, 3, levels=2, level_steps=3, encoder=(16,), skip=True, differences=False
        )


@pytest.mark.parametrize("name", MODELS)
def test_training_draws_and_evaluation_does_not(name: str) -> None:
    torch.manual_seed(0)
    graph, model = words(), MODELS[name](**OPTIONS)
    assert is_stochastic(model)
    assert not torch.equal(model.run(graph).logits, model.run(graph).logits)
    model.eval()
    assert torch.equal(model.run(graph).logits, model.run(graph).logits)


@pytest.mark.parametrize("name", ["sheafdeq", "cascade"])
def test_one_mask_a_solve(name: str) -> None:
    """The prepared map is one fixed map, masks included, and it settles in training mode."""
    torch.manual_seed(1)
    graph, model = words(), MODELS[name](**OPTIONS)
    context = model.prepare(graph)
    state = model.initial_state(context)
    assert torch.equal(model.step(state, context), model.step(state, context))
    assert context.readout_mask is not None
    assert int((context.readout_mask == 0).sum()) > 0
    part, _ = restrict(context, torch.tensor([3, 5]))
    assert torch.equal(part.readout_mask, context.readout_mask[[3, 5]])
    if model.guaranteed:
        assert model.run_to_equilibrium(graph).solution.status is Status.CONVERGED


def test_a_masked_drive_is_a_drive() -> None:
    torch.manual_seed(2)
    graph, model = words(), MODELS["cascade"](dropout=0.5)
    context = model.prepare(graph)
    sheaf = model.sheaf(1, torch.rand(30, 6) + 1, context)
    assert bool((sheaf.drive >= 0).all())
    assert bool((sheaf.drive[context.drive_mask == 0] == 0).all())


def test_the_sparse_product_is_the_dense_one() -> None:
    torch.manual_seed(3)
    graph, encoder = words(dtype=torch.float64), FeatureEncoder(20, (7,)).double()
    assert graph.sparse_features is not None
    expected = encoder.layers[0](graph.x).relu()
    torch.testing.assert_close(encoder(graph).x, expected)
    parameters = list(encoder.parameters())
    slopes = torch.autograd.grad(encoder(graph).x.square().sum(), parameters)
    dense = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(slopes, dense)
    assert Graph.build(torch.randn(4, 3), torch.zeros(2, 0).long()).sparse_features is None


def test_sparse_dropout_drops_and_scales() -> None:
    torch.manual_seed(4)
    graph = words(2000, torch.float64)
    model = MLP(20, 2, 6, 2, input_dropout=0.25).double()
    layer = torch.nn.Linear(20, 1, bias=False).double()
    torch.nn.init.ones_(layer.weight)
    dropped = model.inputs.first(layer, graph).flatten() / graph.x.sum(1)
    assert set(dropped.detach().mul(3).round().long().tolist()) == {0, 4}
    assert abs(float((dropped == 0).double().mean()) - 0.25) < 0.05


def test_without_options_nothing_is_there() -> None:
    graph, encoder = words(), FeatureEncoder(20)
    assert encoder(graph) is graph
    assert not list(encoder.parameters())
    assert dropout_mask(graph.x, 0.5, training=False) is None
    names = [name for name, _ in SheafDEQ(3, 2).named_parameters()]
    assert not any(name.startswith("inputs") or "norm" in name for name in names)


def test_lazy_width_passes_through_the_encoder() -> None:
    graph = words()
    for model in (SheafDEQ(-1, 2, 2, 3, encoder=(5,)), SheafCascade(-1, 2, 2, 3, encoder=(5,))):
        assert model.eval().run(graph).logits.shape == (30, 2)


def test_the_guarantee_survives_encoder_dropout_and_skip() -> None:
    torch.manual_seed(5)
    certificate = certify(MODELS["cascade"](**OPTIONS), words(6), effort="quick")
    assert certificate.verdict is Verdict.CERTIFIED

    class Doubled(FeatureEncoder):  # what no proof has seen
        def forward(self, graph: Graph) -> Graph:
            return graph.with_features(2 * graph.x)

    model = SheafCascade(20, 2, 2, 3, levels=2)
    model.inputs = Doubled(20)
    assert certify(model, words(6), effort="quick").verdict is not Verdict.CERTIFIED


def test_labels_behind_an_encoder_are_not_proved() -> None:
    graph = words(6)
    reasons = [
        certify_predictions(SheafDEQ(20, 2, 2, 3, steps=5, **options), graph).reason
        for options in ({"encoder": (4,)}, {"skip": True})
    ]
    assert "encoder" in reasons[0]
    assert "skip" in reasons[1]


def test_wrong_values_are_named() -> None:
    with pytest.raises(InputError, match="input_dropout must be in"):
        NeuralSheafDiffusion(3, 2, input_dropout=1.0)
    with pytest.raises(InputError, match="encoder must be a positive integer"):
        SheafDEQ(3, 2, encoder=(0,))
    with pytest.raises(InputError, match="a layer has no readout"):
        SheafDEQLayer(3, 6, skip=True)


def test_harmonics_are_sines_and_cosines_an_octave_apart() -> None:
    x = torch.rand(5, 2, dtype=torch.float64)
    harmonics = harmonic_features(x, 3)
    expected = [x]
    for wave in (torch.sin, torch.cos):
        expected += [wave(torch.pi * 2**j * x) for j in range(3)]
    torch.testing.assert_close(harmonics, torch.cat(expected, dim=1))
    assert harmonic_features(x, 0) is x


@pytest.mark.parametrize("encoder", [(), (6,)])
@pytest.mark.parametrize("name", MODELS)
def test_every_encoded_model_reads_harmonics(name: str, encoder: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    graph, model = words(), MODELS[name](harmonics=2, encoder=encoder).eval()
    assert model.inputs(graph).x.shape[1] == (encoder[-1] if encoder else 100)
    with torch.no_grad():
        for parameter in model.parameters():  # first layers, of nodes (100) and differences (101)
            if parameter.dim() == 2 and parameter.shape[1] in (100, 101):
                parameter[:, :20] = 0  # the features themselves; what is left has period two
    moved = graph.with_features(graph.x + 2.0)
    torch.testing.assert_close(
        model.run(moved).logits, model.run(graph).logits, rtol=1e-3, atol=1e-4
    )


def test_harmonics_are_outside_the_enclosures() -> None:
    torch.manual_seed(0)
    model, graph = SheafCascade(20, 2, 2, 3, levels=2, harmonics=2).eval(), words()
    assert certify(model, graph).verdict is Verdict.CERTIFIED
    assert "harmonics" in certify_predictions(model, graph).reason
    with pytest.raises(InputError, match="harmonics"):
        SheafCascade(20, 2, 2, 3, harmonics=-1)
