"""Every model can start anew, and starts as its constructor does."""

import pytest
import torch

from sheafdeq.registry import COMMUNITY, MODELS, build_model


def built(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(name, COMMUNITY)


@pytest.mark.parametrize("name", sorted(MODELS))
@torch.no_grad()
def test_a_reset_model_starts_as_a_new_one(name: str) -> None:
    fresh, used = built(name), built(name)
    for parameter in used.parameters():
        parameter.fill_(3.25)
    used.reset_parameters()
    for (label, start), (_, again) in zip(
        fresh.named_parameters(), used.named_parameters(), strict=True
    ):
        if bool((start == start.flatten()[0]).all()) and start.numel() > 1:  # not drawn
            assert torch.equal(start, again), label
        elif start.numel() > 20:
            assert not torch.equal(start, again) or start.std() == 0, label
            assert 0.6 < float(again.std() / start.std()) < 1.7, label
            assert float((again.mean() - start.mean()).abs()) < float(start.std()), label
        else:
            assert not bool((again == 3.25).any()), label
