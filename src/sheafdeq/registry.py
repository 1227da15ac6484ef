"""Names to models: what a configuration file, a sweep or the command line may ask for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sheafdeq.equilibrium import EquilibriumModel, GraphModel
from sheafdeq.errors import InputError, OptionError
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.dnsd import DNSD
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.gat import GAT
from sheafdeq.models.gcn import GCN
from sheafdeq.models.graph_attn_deq import GraphAttnDEQ
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.models.mlp import MLP
from sheafdeq.models.neural_sheaf_diffusion import NeuralSheafDiffusion
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.sheaf_relay import SheafRelay
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.options import (
    Limits,
    OptionType,
    check_options,
    constructor_parameters,
    option_types,
    unknown_name,
)
from sheafdeq.regular_file import read_toml
from sheafdeq.solvers import Anderson
from sheafdeq.solvers.fixed_point import FixedPointSolver
from sheafdeq.user_models import installed_names, use_model, user_class

__all__ = ["COMMUNITY", "MODELS", "ModelSpec", "Shape", "build_model", "model_spec", "use_model"]


_LARGEST_SIZES = {
    "in_channels": 10**7,
    "out_channels": 10**7,
    "edge_dim": 10**6,
    "stalk_dim": 1024,
    "channels": 10**6,
    "steps": 10**4,
}


@dataclass(frozen=True)
class Shape:
    """The sizes a task dictates: features in and out, and the paper's per-task budget (c = d*q,
    K)."""

    in_channels: int
    out_channels: int
    edge_dim: int | None
    stalk_dim: int  # d
    channels: int  # q
    steps: int  # K

    def __post_init__(self) -> None:
        for name, largest in _LARGEST_SIZES.items():
            value = getattr(self, name)
            if value is None and name == "edge_dim":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
                raise InputError(
                    f"{name} must be a whole number from 1 to {largest:,}, got {value!r}"
                )

    @property
    def width(self) -> int:
        """State width c = d*q."""
        return self.stalk_dim * self.channels


COMMUNITY = Shape(in_channels=2, out_channels=3, edge_dim=None, stalk_dim=3, channels=16, steps=20)
"""The community benchmark; the paper's printed parameter counts need three input features instead
of the real two."""


@dataclass(frozen=True)
class Builder:
    """Sizes and options in, a model out. The constructor's signature says which options there are,
    with which defaults and types."""

    constructor: type[GraphModel]
    sizes: Mapping[str, str]  # parameter -> field of Shape
    fixed: Mapping[str, Any] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # parameters that are no options
    different: Mapping[str, Any] = field(default_factory=dict)  # defaults unlike the constructor's
    edge_switch: bool = False  # option edge_features: whether the task's are taken

    def __call__(self, shape: Shape, options: dict[str, Any]) -> GraphModel:
        """Build the model. A size that is an option too is the task's where the option is None."""
        arguments = {name: getattr(shape, size) for name, size in self.sizes.items()}
        if self.edge_switch and not options.pop("edge_features"):
            arguments["edge_dim"] = None
        solver = options.pop("solver", None)
        asked = options.pop("tolerance", None) if "tolerance" in self.settings else None
        arguments |= {
            name: value
            for name, value in options.items()
            if value is not None or name not in self.sizes
        }
        model = self.constructor(**arguments, **self.fixed)
        if isinstance(model, EquilibriumModel):
            _set_solver(model, solver, asked)
        return model

    def options(self) -> dict[str, Any]:
        """Every option with its default, as JSON writes it."""
        parameters, hints = constructor_parameters(self.constructor)
        found: dict[str, Any] = {}
        for name, parameter in parameters.items():
            default = self.different.get(name, parameter.default)
            taken = (name in self.sizes and name not in self.different) or name in self.fixed
            if taken or name in (*self.hidden, "solver") or default is inspect.Parameter.empty:
                continue
            if hints.get(name) is float and isinstance(default, int):
                default = float(default)
            found[name] = list(default) if isinstance(default, tuple) else default
        return {**found, "edge_features": True} if self.edge_switch else found

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Sizes the task gives and the solver the model brings: options as well, where None leaves
        them as they are. A record holds those that were given."""
        names = [name for name in self.sizes if name not in (*_OF_THE_TASK, *self.different)]
        parameters, _ = constructor_parameters(self.constructor)
        if "solver" in parameters and "solver" not in (*self.hidden, *self.fixed):
            names += ["solver"] if "tolerance" in parameters else ["solver", "tolerance"]
        return dict.fromkeys(names)


_OF_THE_TASK = ("in_channels", "out_channels", "edge_dim")
"""What no option may say otherwise than the data."""

_SETTING_TYPES = {"solver": Literal["picard", "anderson"] | None, "tolerance": float | None}


def _set_solver(model: EquilibriumModel, name: str | None, tolerance: float | None) -> None:
    """Another method, or the same one that stops at a tolerance; steps and distance stay."""
    solver = model.solver
    if not isinstance(solver, FixedPointSolver):
        return
    if name == "anderson" and not isinstance(solver, Anderson):
        solver = Anderson(stopping=solver.stopping).with_stopping(stop_early=True)
    if tolerance is not None:
        solver = solver.with_stopping(tolerance=tolerance, stop_early=True)
    model.solver = solver


_LARGEST_OPTIONS = {
    name: Limits(low, high)
    for low, high, names in (
        (1, 1000, ("layers", "levels")),
        (1, 1024, ("stalk_dim", "heads")),
        (1, 10**4, ("steps", "level_steps", "training_steps")),
        (1, 4096, ("hidden", "edge_hidden", "state_width", "message_width", "channels", "width")),
        (1, 4096, ("encoder",)),
        (1, 10**6, ("max_nodes",)),
        (1, math.inf, ("norm_order",)),
        (0, 32, ("harmonics",)),
    )
    for name in names
}
"""Sizes an option may ask for; what a constructor builds in a loop is bounded tightly."""


@dataclass(frozen=True)
class ModelSpec:
    """One model: how to build it, which options it takes, and its line of the architecture
    table."""

    name: str
    title: str  # as printed in tables
    build: Builder
    grid: Sequence[Mapping[str, Any]] = ({},)  # the configurations of the paper's full table
    propagation: str = ""
    well_posedness: str = ""
    gradient: str = ""
    inference: str = ""
    # the paper's count; keys: value of ``maps``, or ""
    printed_parameters: Mapping[str, int] = field(default_factory=dict)
    in_paper: bool = True
    # configurations of one family compete for one row of the compact table; empty: the name
    family: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Every option with its default; others are errors."""
        return self.build.options()

    @cached_property
    def types(self) -> dict[str, OptionType]:
        """The values every option takes, from the constructor's annotations."""
        _, hints = constructor_parameters(self.build.constructor)
        if "solver" in self.build.settings:
            hints |= _SETTING_TYPES
        return option_types(hints, {**self.build.settings, **self.options}, _LARGEST_OPTIONS)


_ENDS = {"in_channels": "in_channels", "out_channels": "out_channels"}
_WIDE = {**_ENDS, "width": "width"}
_STALKS = {**_ENDS, "stalk_dim": "stalk_dim", "channels": "channels"}
_HEADS = {**_ENDS, "heads": "stalk_dim", "channels": "channels"}
_STEPS = {"steps": "steps"}
_EDGES = {"edge_dim": "edge_dim"}


_BUILDERS = {
    "mlp": Builder(MLP, {**_WIDE, "layers": "steps"}),
    "appnp": Builder(APPNP, _WIDE | _STEPS, hidden=("shift",)),
    "appnp-tanh": Builder(APPNP, _WIDE | _STEPS, different={"shift": 1.25}),
    "ignn": Builder(IGNN, _WIDE),
    "eignn": Builder(EIGNN, _WIDE, hidden=("steps", "gradient", "solver")),
    "energygnn": Builder(EnergyGNN, _ENDS | _EDGES, edge_switch=True),
    "graph-attn-deq": Builder(GraphAttnDEQ, _HEADS | _STEPS | _EDGES, edge_switch=True),
    "loop-transformer": Builder(LoopTransformer, _HEADS | _STEPS | _EDGES, edge_switch=True),
    "sheafdeq": Builder(SheafDEQ, _STALKS | _STEPS | _EDGES, {"pre_norm": True}),
    "sheafdeq-no-norm": Builder(SheafDEQ, _STALKS | _STEPS | _EDGES, {"pre_norm": False}),
    "strong-sheaf": Builder(StrongSheafDEQ, _STALKS | _STEPS | _EDGES),
    "strong-attention": Builder(StrongAttnDEQ, _HEADS | _STEPS | _EDGES),
    "sheaf-cascade": Builder(SheafCascade, _STALKS | _EDGES, different={"channels": None}),
    "sheaf-relay": Builder(SheafRelay, _STALKS | _EDGES),
    "dnsd": Builder(DNSD, _STALKS),
    "nsd": Builder(NeuralSheafDiffusion, _STALKS),
    "gcn": Builder(GCN, _WIDE),
    "gat": Builder(GAT, _HEADS),
}

_TABLE = read_toml(Path(__file__).parent / "models" / "architecture.toml")

MODELS: dict[str, ModelSpec] = {
    name: ModelSpec(name, build=build, **_TABLE[name]) for name, build in _BUILDERS.items()
}


_USERS: dict[tuple[str, type[GraphModel]], ModelSpec] = {}


def model_spec(name: str) -> ModelSpec:
    """Look a model up by name: the package's, an installed one, or ``package.module:Class``
    (:mod:`sheafdeq.user_models`)."""
    if name in MODELS:
        return MODELS[name]
    found = user_class(name)
    if found is None:
        raise unknown_name("there is no model", name, [*MODELS, *installed_names()])
    if (name, found) not in _USERS:
        _USERS[name, found] = _user_spec(name, found)
    return _USERS[name, found]


def _user_spec(name: str, constructor: type[GraphModel]) -> ModelSpec:
    """What the signature says: a parameter without a default is the task's to give, the others are
    options; ``edge_dim`` is always the task's."""
    known = {field.name: field.name for field in fields(Shape)} | {
        "width": "width",
        "heads": "stalk_dim",
    }
    sizes = {}
    for key, parameter in constructor_parameters(constructor)[0].items():
        if key in (*_ENDS, *_EDGES) or parameter.default is parameter.empty:
            if key not in known:
                raise OptionError(
                    f"model {name}: its constructor needs {key!r}, which no task gives: give it "
                    f"a default (a task gives {', '.join(known)})"
                )
            sizes[key] = known[key]
    if not set(_ENDS) <= set(sizes):
        raise OptionError(f"model {name}: its constructor must take in_channels and out_channels")
    title = constructor.__name__
    return ModelSpec(name, title, Builder(constructor, sizes), in_paper=False)


def build_model(name: str, shape: Shape, **options: Any) -> GraphModel:
    """Build a model with its default options, some of them replaced.

    Unknown options, values of a wrong type and values the model does not take are an
    :class:`~sheafdeq.errors.OptionError`.
    """
    spec = model_spec(name)
    check_options(options, spec.types, f"model {name!r}")
    try:
        return spec.build(shape, {**spec.options, **options})
    except OptionError:
        raise
    except InputError as error:
        raise OptionError(f"model {name!r}: {error}") from error
