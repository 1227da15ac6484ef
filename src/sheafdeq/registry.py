"""Names to models: what a configuration file, a sweep or the command line may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import InputError
from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["MODELS", "ModelSpec", "Shape", "build_model", "model_spec"]


@dataclass(frozen=True)
class Shape:
    """The sizes a task dictates: features in and out, and the paper's per-task budget (c = d*q, K)."""

    in_channels: int
    out_channels: int
    edge_dim: int | None
    stalk_dim: int  # d
    channels: int  # q
    steps: int  # K

    @property
    def width(self) -> int:
        """State width c = d*q."""
        return self.stalk_dim * self.channels


@dataclass(frozen=True)
class ModelSpec:
    """One model: how to build it, which options it takes, and its line of the architecture table."""

    name: str
    title: str  # as printed in tables
    family: str  # configurations of one family compete for one row of the compact table
    build: Callable[[Shape, dict[str, Any]], GraphModel]
    options: Mapping[str, Any] = field(default_factory=dict)  # every option with its default; others are errors
    grid: tuple[Mapping[str, Any], ...] = ({},)  # the configurations of the paper's full table
    propagation: str = ""
    well_posedness: str = ""
    gradient: str = ""
    inference: str = ""


def _sheaf_deq(shape: Shape, options: dict[str, Any]) -> SheafDEQ:
    return SheafDEQ(
        shape.in_channels,
        shape.out_channels,
        shape.stalk_dim,
        shape.channels,
        steps=shape.steps,
        edge_dim=shape.edge_dim,
        **options,
    )


_SHIFTS = tuple({"shift": shift} for shift in (1.2, 1.3, 1.4, 1.6))
_SHEAF_OPTIONS = {"shift": 1.3, "norm_order": 2.0, "gradient": "unrolled"}

_SPECS = (
    ModelSpec(
        "sheafdeq",
        "SheafDEQ",
        "sheafdeq",
        lambda shape, options: _sheaf_deq(shape, {**options, "pre_norm": True}),
        _SHEAF_OPTIONS,
        _SHIFTS,
        "adaptive sheaf propagation",
        "measured and certified per model (the published theorem has a counterexample)",
        "unrolled differentiation",
        "recurrence",
    ),
    ModelSpec(
        "sheafdeq-no-norm",
        "SheafDEQ without pre-norm (ablation)",
        "sheafdeq-no-norm",
        lambda shape, options: _sheaf_deq(shape, {**options, "pre_norm": False}),
        _SHEAF_OPTIONS,
        _SHIFTS,
        "adaptive sheaf propagation",
        "not provided",
        "unrolled differentiation",
        "recurrence",
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def model_spec(name: str) -> ModelSpec:
    """Look a model up by name."""
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}: choose one of {', '.join(sorted(MODELS))}")
    return MODELS[name]


def build_model(name: str, shape: Shape, **options: Any) -> GraphModel:
    """Build a model with its default options, some of them replaced. Unknown options are errors."""
    spec = model_spec(name)
    unknown = sorted(set(options) - set(spec.options))
    if unknown:
        known = ", ".join(sorted(spec.options)) or "none"
        raise InputError(f"model {name!r} has no option {', '.join(map(repr, unknown))}; it takes: {known}")
    return spec.build(shape, {**spec.options, **options})
