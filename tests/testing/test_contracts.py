"""The checker must reject what is broken: one deliberately wrong model for every property."""

import pytest
import torch

from sheafdeq.models import SheafDEQ
from sheafdeq.testing import ContractViolation, LinearAverage, check_model


class NodeNumberLeaks(LinearAverage):
    """Not equivariant: the update depends on the node's number."""

    def local_step(self, own, received, context):
        number = torch.arange(len(own), dtype=own.dtype)[:, None]
        return super().local_step(own, received, context) + 0.01 * number


class Impure(LinearAverage):
    """Remembers how often it was called."""

    calls = 0

    def step(self, state, context):
        self.calls += 1
        return super().step(state, context) + 1e-6 * self.calls


class LocalDiffers(LinearAverage):
    """The synchronous step forgets a factor that the local one has."""

    def step(self, state, context):
        return 1.001 * super().step(state, context)


class SeesTheWholeGraph(LinearAverage):
    """Each node reads a global mean, so a batch changes its graphs and nodes cannot update
    alone."""

    def local_step(self, own, received, context):
        return super().local_step(own, received, context) + 0.1 * own.mean()


class WrongGradient(LinearAverage):
    """Half of the encoder's gradient is lost."""

    def prepare(self, graph):
        context = super().prepare(graph)
        half = 0.5 * context.drive + 0.5 * context.drive.detach()
        return type(context)(context.edges, half)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (NodeNumberLeaks, "permutation"),
        (Impure, "purity"),
        (LocalDiffers, "local_step"),
        (SeesTheWholeGraph, "batch = single"),
        (SeesTheWholeGraph, "restriction"),
        (WrongGradient, "gradient"),
    ],
)
def test_a_broken_model_is_rejected_by_name(broken, named):
    with pytest.raises(ContractViolation, match=named):
        check_model(broken(3, 2))


def test_sound_models_pass():
    assert all(finding.ok for finding in check_model(LinearAverage(3, 2)))
    assert len(check_model(SheafDEQ(3, 2, 2, 3, steps=3))) == 14
