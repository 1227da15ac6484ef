"""Names to models: what a configuration file, a sweep or the command line may ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sheafdeq.equilibrium import GraphModel
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
from sheafdeq.options import Limits, OptionType, check_options, option_types, unknown_name

__all__ = ["COMMUNITY", "MODELS", "ModelSpec", "Shape", "build_model", "model_spec"]


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
    """Sizes and options in, a model out; the constructor it calls says which types the options
    have."""

    constructor: type[GraphModel]
    build: Callable[[Shape, dict[str, Any]], GraphModel]

    def __call__(self, shape: Shape, options: dict[str, Any]) -> GraphModel:
        """Build the model; ``options`` is the builder's to change."""
        return self.build(shape, options)


_LARGEST_OPTIONS = {
    name: Limits(1, high)
    for high, names in (
        (1000, ("layers", "levels")),
        (10**4, ("steps", "level_steps", "training_steps")),
        (4096, ("hidden", "edge_hidden", "state_width", "message_width", "channels", "width")),
        (10**6, ("max_nodes",)),
        (math.inf, ("norm_order",)),
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
    family: str  # configurations of one family compete for one row of the compact table
    build: Builder
    # every option with its default; others are errors
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[Mapping[str, Any], ...] = ({},)  # the configurations of the paper's full table
    propagation: str = ""
    well_posedness: str = ""
    gradient: str = ""
    inference: str = ""
    # the paper's count; keys: value of ``maps``, or ""
    printed_parameters: Mapping[str, int] = field(default_factory=dict)
    in_paper: bool = True

    @cached_property
    def types(self) -> dict[str, OptionType]:
        """The values every option takes, from the constructor's annotations."""
        return option_types(self.build.constructor.__init__, self.options, _LARGEST_OPTIONS)


_SHIFTS = tuple({"shift": shift} for shift in (1.2, 1.3, 1.4, 1.6))
_SHEAF_OPTIONS = {"shift": 1.3, "norm_order": 2.0, "gradient": "unrolled"}


def _stalked(
    model: type[GraphModel], *, steps: bool = False, edges: bool = False, **fixed: Any
) -> Builder:
    """A builder for models sized by (d, q): stalks or heads."""

    def build(shape: Shape, options: dict[str, Any]) -> GraphModel:
        sizes: dict[str, Any] = {"steps": shape.steps} if steps else {}
        if edges and options.pop("edge_features", True):
            sizes["edge_dim"] = shape.edge_dim
        sizes |= {**options, **fixed}
        return model(
            shape.in_channels, shape.out_channels, shape.stalk_dim, shape.channels, **sizes
        )

    return Builder(model, build)


def _wide(model: type[GraphModel], *, steps: str | None = None) -> Builder:
    """A builder for models sized by c alone; ``steps`` names the argument that takes K, if there is
    one."""

    def build(shape: Shape, options: dict[str, Any]) -> GraphModel:
        sizes = {**({steps: shape.steps} if steps else {}), **options}
        return model(shape.in_channels, shape.out_channels, shape.width, **sizes)

    return Builder(model, build)


def _energy(shape: Shape, options: dict[str, Any]) -> EnergyGNN:
    """EnergyGNN has a state width of its own."""
    edge_dim = shape.edge_dim if options.pop("edge_features") else None
    return EnergyGNN(shape.in_channels, shape.out_channels, edge_dim=edge_dim, **options)


def _cascade(shape: Shape, options: dict[str, Any]) -> SheafCascade:
    """The cascade's horizon is levels * level_steps; ``channels`` replaces the task's q for each
    level."""
    channels = options.pop("channels") or shape.channels
    return SheafCascade(
        shape.in_channels,
        shape.out_channels,
        shape.stalk_dim,
        channels,
        edge_dim=shape.edge_dim,
        **options,
    )


_SPECS = (
    ModelSpec(
        "mlp",
        "MLP",
        "mlp",
        _wide(MLP, steps="layers"),
        {"dropout": 0.5},
        propagation="none",
        well_posedness="not required",
        gradient="backpropagation",
        inference="feed-forward",
        printed_parameters={"": 42_675},
    ),
    ModelSpec(
        "appnp",
        "APPNP",
        "appnp",
        _wide(APPNP, steps="steps"),
        {"alpha": 0.1, "dropout": 0.5, "gradient": "unrolled"},
        propagation="graph convolution",
        well_posedness="contraction of rate 1 - alpha",
        gradient="unrolled differentiation",
        inference="K-step recurrence",
        printed_parameters={"": 2_691},
    ),
    ModelSpec(
        "appnp-tanh",
        "APPNP, shifted tanh",
        "appnp",
        _wide(APPNP, steps="steps"),
        {"alpha": 0.1, "shift": 1.25, "dropout": 0.5, "gradient": "unrolled"},
        ({"shift": 1.25}, {"shift": 1.65}),
        propagation="graph convolution",
        well_posedness="contraction of rate 1 - alpha (tanh is 1-Lipschitz); positive "
        "subhomogeneity",
        gradient="unrolled differentiation",
        inference="K-step recurrence",
        printed_parameters={"": 2_691},
    ),
    ModelSpec(
        "ignn",
        "IGNN",
        "ignn",
        _wide(IGNN),
        {"kappa": 0.9, "steps": 50, "tolerance": 1e-6, "gradient": "implicit"},
        propagation="graph convolution",
        well_posedness="projected weight norm",
        gradient="implicit differentiation",
        inference="recurrence to tolerance",
        printed_parameters={"": 2_643},
    ),
    ModelSpec(
        "eignn",
        "EIGNN",
        "eignn",
        _wide(EIGNN),
        {"gamma": 0.9, "self_loops": False, "normalise": False, "max_nodes": 10_000},
        propagation="graph convolution",
        well_posedness="norm-bounded positive semidefinite mixing",
        gradient="closed-form adjoint",
        inference="direct solution",
        printed_parameters={"": 2_643},
    ),
    ModelSpec(
        "energygnn",
        "EnergyGNN",
        "energygnn",
        Builder(EnergyGNN, _energy),
        {
            "state_width": 7,
            "hidden": 4,
            "message_width": 2,
            "beta": 0.04,
            "activation": "softplus",
            "edge_features": True,
            "steps": 200,
            "tolerance": 1e-5,
        },
        propagation="edge energy",
        well_posedness="strongly convex energy",
        gradient="implicit differentiation",
        inference="optimisation",
        printed_parameters={"": 340},
    ),
    ModelSpec(
        "graph-attn-deq",
        "GraphAttnDEQ",
        "graph-attn-deq",
        _stalked(GraphAttnDEQ, steps=True, edges=True),
        {
            "shift": 1.3,
            "pre_norm": False,
            "norm_order": 2.0,
            "edge_features": True,
            "gradient": "unrolled",
        },
        _SHIFTS,
        "graph attention",
        "not provided",
        "unrolled differentiation",
        "K-step recurrence",
        {"": 9_555},
    ),
    ModelSpec(
        "loop-transformer",
        "Loop Transformer",
        "loop-transformer",
        _stalked(LoopTransformer, steps=True, edges=True),
        {"dropout": 0.1, "edge_features": True, "gradient": "unrolled"},
        propagation="graph attention",
        well_posedness="not provided",
        gradient="unrolled differentiation",
        inference="K-step recurrence",
        printed_parameters={"": 21_843},
    ),
    ModelSpec(
        "sheafdeq",
        "SheafDEQ",
        "sheafdeq",
        _stalked(SheafDEQ, steps=True, edges=True, pre_norm=True),
        _SHEAF_OPTIONS,
        _SHIFTS,
        "adaptive sheaf propagation",
        "measured and certified per model (the published theorem has a counterexample)",
        "unrolled differentiation",
        "recurrence",
        {"": 11_045},
    ),
    ModelSpec(
        "sheafdeq-no-norm",
        "SheafDEQ without pre-norm (ablation)",
        "sheafdeq-no-norm",
        _stalked(SheafDEQ, steps=True, edges=True, pre_norm=False),
        _SHEAF_OPTIONS,
        _SHIFTS,
        "adaptive sheaf propagation",
        "not provided",
        "unrolled differentiation",
        "recurrence",
        {"": 11_045},
    ),
    ModelSpec(
        "strong-sheaf",
        "Strong SheafDEQ",
        "strong-sheaf",
        _stalked(StrongSheafDEQ, steps=True, edges=True),
        {
            "shift": 1.6,
            "gate": "rational",
            "rate": 0.95,
            "hidden": 32,
            "gain": 1.0,
            "gradient": "unrolled",
        },
        propagation="adaptive sheaf propagation",
        well_posedness="strong subhomogeneity, for every weight",
        gradient="unrolled differentiation",
        inference="recurrence",
        in_paper=False,
    ),
    ModelSpec(
        "strong-attention",
        "Strong GraphAttnDEQ",
        "strong-attention",
        _stalked(StrongAttnDEQ, steps=True, edges=True),
        {
            "shift": 1.6,
            "gate": "rational",
            "rate": 0.95,
            "hidden": 32,
            "gain": 1.0,
            "gradient": "unrolled",
        },
        propagation="normalised graph attention",
        well_posedness="strong subhomogeneity, for every weight",
        gradient="unrolled differentiation",
        inference="recurrence",
        in_paper=False,
    ),
    ModelSpec(
        "sheaf-cascade",
        "Sheaf Cascade",
        "sheaf-cascade",
        Builder(SheafCascade, _cascade),
        {
            "levels": 8,
            "level_steps": 8,
            "training_steps": [],
            "channels": None,
            "tied": True,
            "shift": 1.4,
            "gate": "balance",
            "hidden": 24,
            "edge_hidden": 24,
            "gain": 0.2,
            "feature_noise": 0.0,
            "edge_dropout": 0.0,
            "differences": True,
            "gradient": "unrolled",
        },
        propagation="adaptive sheaf propagation, level by level",
        well_posedness="strong subhomogeneity, for every weight",
        gradient="unrolled differentiation",
        inference="recurrence",
        in_paper=False,
    ),
    ModelSpec(
        "sheaf-relay",
        "Sheaf Relay",
        "sheaf-relay",
        _stalked(SheafRelay, edges=True),
        {
            "hidden": 16,
            "transport": "free",
            "core_rate": 0.9,
            "max_degree": 64,
            "steps": 1000,
            "tolerance": 1e-6,
            "gradient": "unrolled",
        },
        propagation="transport along paths that do not turn back",
        well_posedness="acyclic outside the 2-core, contraction inside, for every weight",
        gradient="unrolled differentiation",
        inference="recurrence to tolerance",
        in_paper=False,
    ),
    ModelSpec(
        "dnsd",
        "DNSD",
        "dnsd",
        _stalked(DNSD),
        {"maps": "diagonal", "activation": "tanh", "gate": False, "layers": 12},
        tuple(
            {"maps": maps, "activation": activation}
            for maps in ("diagonal", "full")
            for activation in ("tanh", "relu")
        ),
        "sheaf propagation, untied layers",
        "not required",
        "backpropagation",
        "feed-forward",
        {"diagonal": 11_691, "full": 25_659},
    ),
    ModelSpec(
        "nsd",
        "Neural Sheaf Diffusion",
        "nsd",
        _stalked(NeuralSheafDiffusion),
        {"maps": "diagonal", "layers": 4, "dropout": 0.0},
        tuple({"maps": maps} for maps in ("diagonal", "full", "orthogonal")),
        "sheaf Laplacian, untied layers",
        "not required",
        "backpropagation",
        "feed-forward",
        in_paper=False,
    ),
    ModelSpec(
        "gcn",
        "GCN",
        "gcn",
        _wide(GCN),
        {"layers": 2, "dropout": 0.5},
        propagation="graph convolution",
        well_posedness="not required",
        gradient="backpropagation",
        inference="feed-forward",
        in_paper=False,
    ),
    ModelSpec(
        "gat",
        "GAT",
        "gat",
        _stalked(GAT),
        {"layers": 2, "dropout": 0.5},
        propagation="graph attention",
        well_posedness="not required",
        gradient="backpropagation",
        inference="feed-forward",
        in_paper=False,
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def model_spec(name: str) -> ModelSpec:
    """Look a model up by name."""
    if name not in MODELS:
        raise unknown_name("there is no model", name, MODELS)
    return MODELS[name]


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
