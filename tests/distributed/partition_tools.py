"""Graphs and models the tests of this folder share."""

from __future__ import annotations

from functools import partial

import torch

import graphs
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.registry import MODELS, Shape, build_model

SMALL = Shape(in_channels=3, out_channels=2, edge_dim=None, stalk_dim=2, channels=3, steps=4)
EDGED = Shape(in_channels=3, out_channels=2, edge_dim=2, stalk_dim=2, channels=3, steps=4)


def built(name: str, shape: Shape = SMALL, seed: int = 3, **options: object) -> EquilibriumModel:
    torch.manual_seed(seed)
    model = build_model(name, shape, **options).double().eval()
    assert isinstance(model, EquilibriumModel)
    return model


def recurrences() -> list[str]:
    """Registered models that are equilibria."""
    return [name for name in MODELS if isinstance(build_model(name, SMALL), EquilibriumModel)]


def runs_in_parts(name: str) -> bool:
    """Models that say otherwise are refused (a test)."""
    model = build_model(name, SMALL)
    return hasattr(model, "local_step") and getattr(model, "local_prepare", True)


LOCAL = [name for name in recurrences() if runs_in_parts(name)]


random_graph = partial(graphs.random_graph, channels=3)
