"""Constructors share sizes and options with their base classes; the user sees one signature."""

import copy
import inspect
import pydoc

import pytest
import torch

from sheafdeq import SheafDEQ
from sheafdeq.models import GAT, GCN, SheafCascade, SheafCascadeLayer, StrongAttnDEQ
from sheafdeq.registry import MODELS

KINDS = sorted({spec.build.constructor for spec in MODELS.values()}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_signature_has_every_name(kind: type) -> None:
    parameters = inspect.signature(kind).parameters
    assert list(parameters)[:2] == ["in_channels", "out_channels"]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    assert {parameter.kind for parameter in parameters.values()} <= set(named)
    assert all(p.default is not p.empty for p in list(parameters.values())[2:])
    everything = {name: parameter.default for name, parameter in parameters.items()}
    kind(**everything | {"in_channels": 4, "out_channels": 3})  # each name is taken


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_unknown_name_lists_the_known_ones(kind: type) -> None:
    with pytest.raises(TypeError) as caught:
        kind(4, 3, nonsense=1)
    text = str(caught.value)
    assert kind.__name__ in text
    assert all(name in text for name in ("nonsense", *inspect.signature(kind).parameters))


def test_wrong_arguments_name_the_class() -> None:
    with pytest.raises(TypeError, match="SheafDEQ: too many positional"):
        SheafDEQ(4, 3, 2, 5, 6)
    with pytest.raises(TypeError, match="GCN: multiple values for argument 'in_channels'"):
        GCN(4, 3, in_channels=4)
    with pytest.raises(TypeError, match="out_channels"):
        GAT(4)
    with pytest.raises(TypeError, match="did you mean 'dropout'"):
        SheafDEQ(4, 3, dropuot=0.2)
    # the horizon of a cascade is its levels times their steps
    with pytest.raises(TypeError, match="takes no 'steps'"):
        SheafCascade(4, 3, steps=3)


@pytest.mark.parametrize("kind", [SheafDEQ, GAT, StrongAttnDEQ])
def test_sizes_by_place_and_by_name_are_one_model(kind: type) -> None:
    names = list(inspect.signature(kind).parameters)[:4]
    torch.manual_seed(0)
    placed = kind(4, 3, 2, 5)
    torch.manual_seed(0)
    named = kind(**dict(zip(names, (4, 3, 2, 5), strict=True)))
    for (name, one), other in zip(placed.state_dict().items(), named.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert repr(copy.deepcopy(placed)) == repr(named)


def test_help_shows_inherited_options() -> None:
    text = pydoc.render_doc(SheafDEQ)
    assert "stalk_dim: 'int' = 3" in text
    assert "gradient: 'str | Adjoint' = 'unrolled'" in text


def test_options_of_ones_own_stay_open() -> None:
    class Mine(SheafCascadeLayer):
        def __init__(self, *sizes: int, **options) -> None:
            self.noted = options.pop("note", None)
            super().__init__(*sizes, **options)

    assert Mine(4, 6, note="kept").noted == "kept"
    assert {"levels", "dropout", "options"} <= set(inspect.signature(Mine).parameters)
