"""What is never certified: numbers that are not finite, and maps that are not the one the proof is
about."""

import json
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

from sheafdeq.certificates import Certificate, Effort, Level, Verdict, certify, use_rule
from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.theory.enclosure import Enclosure

FAST = Effort("fast", 60, 2, 2, 3, False)
MODELS = {
    "sheafdeq": lambda: SheafDEQ(2, 3, 2, 2),
    "strong-sheaf": lambda: StrongSheafDEQ(2, 3, 2, 2, hidden=4),
    "strong-attention": lambda: StrongAttnDEQ(2, 3, 2, 2, hidden=4),
    "cascade": lambda: SheafCascade(2, 3, 2, 2, levels=2, hidden=4),
    "ignn": lambda: IGNN(2, 3, 4),
    "appnp": lambda: APPNP(2, 3, 4),
    "eignn": lambda: EIGNN(2, 3, 4),
    "energy": lambda: EnergyGNN(2, 3, 2),
}


def ring(n: int = 5) -> Graph:
    index = torch.arange(n)
    edges = torch.stack([index, (index + 1) % n])
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    return Graph.build(x, torch.cat([edges, edges.flip(0)], dim=1))


@pytest.mark.parametrize("name", MODELS)
def test_a_parameter_that_is_not_finite_is_named_and_nothing_is_certified(name):
    for number, (parameter_name, _) in enumerate(MODELS[name]().named_parameters()):
        model = MODELS[name]()
        value = (float("nan"), float("inf"), float("-inf"))[number % 3]
        with torch.no_grad():
            dict(model.named_parameters())[parameter_name].view(-1)[0] = value
        certificate = certify(model, ring(), effort=FAST)
        assert certificate.verdict is Verdict.NOT_CERTIFIED
        assert parameter_name in certificate.reason
        assert parameter_name in certificate.report()
        json.dumps(certificate.to_json(), allow_nan=False)


def test_a_context_and_a_step_that_are_not_finite_are_named():
    model = APPNP(2, 3, 4).double()
    with torch.no_grad():
        for layer in model.encoder:
            layer.weight.fill_(1e200)
    certificate = certify(model, ring().to(torch.float64), effort=FAST)
    assert certificate.verdict is Verdict.NOT_CERTIFIED
    assert "context.drive" in certificate.reason
    model = EIGNN(2, 3, 4).double()
    with torch.no_grad():
        model.drive.weight.fill_(1e308)
        model.drive.bias.fill_(1.7e308)
        model.factor.fill_(1.0)
    graph = Graph.build(torch.ones(2, 2).double() * 1e-1, torch.tensor([[0, 1], [1, 0]]))
    certificate = certify(model, graph, effort=FAST)
    assert certificate.verdict is Verdict.NOT_CERTIFIED
    assert "not finite" in certificate.reason
    shifted = APPNP(2, 3, 4, shift=1.3)
    shifted.shift = float("nan")
    assert "option shift is nan" in certify(shifted, ring(), effort=FAST).reason
    with pytest.raises(InputError, match="not finite"):
        certify(IGNN(2, 3, 4), ring(), equilibrium=torch.full((5, 4), float("nan")))


def test_a_subclass_with_its_own_step_has_no_certificate():
    """Two equilibria under a rule that its parent has a right to."""

    class Bistable(StrongSheafDEQ):
        def step(self, state, context):
            return 1.0 + 3 * state**4 / (16 + state**4)

    certificate = certify(Bistable(2, 3, 2, 2, hidden=4), ring(), effort=FAST)
    assert certificate.verdict in (Verdict.NOT_CERTIFIED, Verdict.TWO_CANDIDATES)
    assert "overrides 'step'" in certificate.reason


@pytest.mark.parametrize(
    "name",
    [
        "prepare",
        "_normalised",
        "local_step",
        "width",
        "budget",
        "__getattribute__",
        "__deepcopy__",
        "shift",
    ],
)
def test_whatever_the_proof_may_use_is_not_overridden(name):
    original = getattr(StrongSheafDEQ, name, None)

    def same(self, *arguments):
        return original(self, *arguments)

    attribute = original if isinstance(original, property) else same
    if name == "shift":
        attribute = property(lambda self: 1.6, lambda self, value: None)
    elif name == "__deepcopy__":
        attribute = lambda self, memo: StrongSheafDEQ(2, 3, 2, 2, hidden=4)  # noqa: E731
    kind = types.new_class(
        "Mine", (StrongSheafDEQ,), {}, lambda space: space.update({name: attribute})
    )
    certificate = certify(kind(2, 3, 2, 2, hidden=4), ring(), effort=FAST)
    # what was copied is what is certified, and it is of the parent's class
    if name == "__deepcopy__":
        assert certificate.model == "StrongSheafDEQ"
        return
    assert certificate.verdict is not Verdict.CERTIFIED
    assert repr(name) in certificate.reason


def test_what_the_proof_does_not_use_may_be_overridden():
    class Mine(StrongSheafDEQ):
        """Another start, another readout, another solve and a helper."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.note = "mine"

        def initial_state(self, context):
            return 2 * super().initial_state(context)

        def readout(self, state, context):
            return state

        def solve(self, context, graph, **options):
            return super().solve(context, graph, **options)

        def my_helper(self):
            return self.note

    torch.manual_seed(0)
    parent = StrongSheafDEQ(2, 3, 2, 2, hidden=4)
    torch.manual_seed(0)
    certificate = certify(Mine(2, 3, 2, 2, hidden=4), ring(), effort=FAST)
    assert certificate.verdict is Verdict.CERTIFIED
    assert certificate.rate == certify(parent, ring(), effort=FAST).rate


def test_objects_that_were_changed_have_no_certificate(monkeypatch):
    def reason(change, model=None):
        model = model or StrongAttnDEQ(2, 3, 2, 2, hidden=4)
        change(model)
        certificate = certify(model, ring(), effort=FAST)
        assert certificate.verdict is not Verdict.CERTIFIED
        return certificate.reason

    class Odd(nn.Linear):
        def forward(self, x):
            return super().forward(x).exp()

    assert "replaced on this object" in reason(
        lambda m: setattr(m, "step", types.MethodType(lambda self, s, c: s * s, m))
    )
    assert "hook" in reason(
        lambda m: m.key.register_forward_hook(lambda module, inputs, output: 5 * output)
    )
    assert "'key' is a" in reason(lambda m: setattr(m, "key", Odd(4, 4, bias=False)))
    assert "gate" in reason(
        lambda m: setattr(m, "gate", replace(m.gate, coefficient=lambda shift: Enclosure(0.1, 0.1)))
    )
    torch.nn.utils.parametrizations.weight_norm(
        model := StrongAttnDEQ(2, 3, 2, 2, hidden=4), "own_bias", dim=None
    )
    assert certify(model, ring(), effort=FAST).verdict is not Verdict.CERTIFIED
    monkeypatch.setattr(
        StrongAttnDEQ, "_averages", lambda self, own, table, pattern, context: own.expand(2, -1, -1)
    )
    assert "replaced after" in reason(lambda m: None)


def test_rules_of_ones_own_keep_to_their_class_too():
    class Mine(IGNN):
        pass

    class Other(Mine):
        def update(self, own, table, pattern, context):
            return 2 * super().update(own, table, pattern, context)

    def mine(problem):
        return Certificate(
            Verdict.NOT_CERTIFIED, Level.NONE, problem.title, problem.place, grounds="mine"
        )

    use_rule(Mine, mine)
    assert certify(Mine(2, 3), ring(), effort=FAST).grounds == "mine"
    assert "overrides 'update'" in certify(Other(2, 3), ring(), effort=FAST).reason
    use_rule(Mine, mine, free=("update",))
    assert certify(Other(2, 3), ring(), effort=FAST).grounds == "mine"


@pytest.mark.parametrize("scale", [1e8, 1e11, 1e14, 1e40, 1e150, 1e300])
def test_features_of_any_size_are_answered(scale):
    graph = ring().to(torch.float64)
    graph = Graph.build(
        (scale * graph.x).clamp(-1e300, 1e300), torch.stack([graph.source, graph.target])
    )
    torch.manual_seed(1)
    certificate = certify(SheafDEQ(2, 2, 2, 2).double(), graph, effort=FAST)
    assert certificate.verdict is Verdict.CERTIFIED or certificate.reason


def test_weights_of_any_size_are_answered():
    cascade = SheafCascade(2, 2, 2, 2, levels=3, hidden=4).double()
    with torch.no_grad():
        for parameter in cascade.parameters():
            parameter.mul_(1e30)
    certificate = certify(cascade, ring(), effort=FAST)
    # the rate of a level does not depend on the weights
    assert certificate.verdict is Verdict.CERTIFIED
    assert certificate.proved == {}  # ... and the couplings have no bound that float64 can hold
    attention = StrongAttnDEQ(2, 2, 2, 2, hidden=4).double()
    with torch.no_grad():
        attention.query.weight.mul_(1e155)
        attention.key.weight.mul_(1e155)
    certificate = certify(attention, ring(), effort=FAST)
    assert certificate.verdict is Verdict.CERTIFIED or certificate.reason
