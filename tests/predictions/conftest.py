"""Small random problems, and the fifty-digit equilibria they are held against."""

from pathlib import Path

import mpmath
import pytest
import torch

from scripts import loaded
from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade, SheafDEQ, StrongSheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ


@pytest.fixture(scope="session")
def exact():
    """The module of equations in fifty digits (``exact.py`` beside this file)."""
    place = Path(__file__).with_name("exact.py")
    module = loaded(place)
    with mpmath.workdps(module.DIGITS):
        yield module


@pytest.fixture(scope="session")
def draw():
    """seed -> (cascade, graph): gates, ties, loops, parallel edges, isolated nodes, edge
    features."""

    def make(seed: int, **options):
        generator = torch.Generator().manual_seed(seed)

        def chance(*values):
            return values[int(torch.randint(len(values), (1,), generator=generator))]

        n, f, edge_dim = chance(1, 3, 4, 5), chance(1, 2, 3), chance(None, None, 1)
        count = chance(0, n, 2 * n, 3 * n)
        edges = torch.randint(n, (2, count), generator=generator)
        attr = None if edge_dim is None else torch.randn(count, 1, generator=generator).double()
        x = torch.randn(n, f, generator=generator).double() * chance(0.3, 1.0, 3.0)
        graph = Graph.build(x, edges, attr)
        torch.manual_seed(seed)
        settings = {
            "stalk_dim": chance(1, 2, 3),
            "channels": chance(2, 3),
            "levels": chance(1, 2, 3),
            "hidden": chance(3, 5),
            "edge_hidden": 4,
            "tied": chance(True, False),
            "gate": chance("balance", "tanh", "rational"),
            "shift": chance(1.4, 2.0),
            "differences": chance(True, True, False),
            "edge_dim": edge_dim,
            **options,
        }
        model = SheafCascade(f, chance(2, 3), **settings).double()
        size = chance(1.0, 1.5, 2.5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(size)
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model, graph

    return make


@pytest.fixture(scope="session")
def draw_contracting():
    """(kind, seed) -> (model, graph) of the models with a rate, and of SheafDEQs of gentle
    weights."""

    def make(kind: str, seed: int):
        generator = torch.Generator().manual_seed(7919 * seed + len(kind))

        def chance(*values):
            return values[int(torch.randint(len(values), (1,), generator=generator))]

        n, f, edge_dim = chance(1, 3, 4), chance(1, 2), chance(None, 1)
        count = chance(0, n, 2 * n)
        edges = torch.randint(n, (2, count), generator=generator)
        attr = None if edge_dim is None else torch.randn(count, 1, generator=generator).double()
        graph = Graph.build(torch.randn(n, f, generator=generator).double(), edges, attr)
        torch.manual_seed(seed)
        size, stalks, channels = chance(0.5, 1.0, 3.0), chance(1, 2), chance(2, 3)
        options = {"edge_dim": edge_dim, "shift": chance(1.6, 2.5)}
        if kind == "SheafDEQ":
            model = SheafDEQ(f, 3, stalks, channels, **options)
            size = chance(0.2, 0.5, 0.8)
        else:
            options["gate"] = chance("rational", "tanh", "balance")
            options["shift"] = chance(2.0, 3.0)
            made = {"StrongSheafDEQ": StrongSheafDEQ, "StrongAttnDEQ": StrongAttnDEQ}[kind]
            model = made(f, 3, stalks, channels, hidden=4, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(size)
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        return model.double(), graph

    return make
