"""The readings of SheafDEQ that runs have asked about."""

import pytest
import torch

from scripts import loaded
from sheafdeq.models import SheafDEQ
from sheafdeq.testing import ModelContract, example_graphs

readings = loaded("benchmarks/readings.py")
DOUBLE = torch.float64


class TestContractOfChannelMixers(ModelContract):
    def make_model(self):
        return readings.ChannelMixers(3, 2, 3, 2, steps=4)


class TestContractOfTorchBiases(ModelContract):
    def make_model(self):
        return readings.TorchBiases(3, 2, 3, 2, steps=4)


def test_two_channel_mixers_have_the_printed_number_of_parameters():
    assert SheafDEQ(3, 3, 3, 16).num_parameters() == 10_798
    assert readings.ChannelMixers(3, 3, 3, 16).num_parameters() == 11_045


def test_one_identity_among_the_mixers_is_the_text_s_model_with_an_identity_on_stalks():
    (graph, *_) = example_graphs(3)
    plain = SheafDEQ(3, 2, 3, 2, steps=4).to(DOUBLE)
    other = readings.ChannelMixers(3, 2, 3, 2, steps=4).to(DOUBLE)
    with torch.no_grad():
        plain.stalk_mixing.copy_(torch.eye(3))
        shared = {name: value for name, value in plain.state_dict().items() if "mixing" not in name}
        other.load_state_dict(shared, strict=False)
        other.first_mixing.copy_(plain.channel_mixing)
        other.second_mixing.copy_(torch.eye(2))
        graph = graph.to(dtype=DOUBLE)
        assert torch.allclose(plain.run(graph).logits, other.run(graph).logits, atol=1e-12)


def test_biases_start_as_pytorch_starts_them():
    model = readings.TorchBiases(3, 2, 3, 2)
    for layer in (model.drive, model.source_maps[0], model.readout):
        assert 0 < layer.bias.abs().max() <= layer.in_features**-0.5
    largest = model.stalk_mixing.detach().abs().max()
    assert 0 < largest <= 1  # Xavier uniform: at most sqrt(6 / (3 + 3))
