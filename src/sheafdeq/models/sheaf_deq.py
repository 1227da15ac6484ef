"""SheafDEQ: a graph equilibrium with adaptive, signed, matrix-valued sheaf propagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import Solving
from sheafdeq.errors import InputError
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.layers.initialise import linear, xavier
from sheafdeq.layers.masked_readout import MaskedReadout
from sheafdeq.layers.operator import SheafOperator
from sheafdeq.layers.restriction import (
    FirstLayer,
    checked_norm_order,
    linear_layers,
    map_generator,
    normalise_rows,
    restriction_maps,
)
from sheafdeq.layers.sheaf_model import SheafModel, SheafModelOptions
from sheafdeq.ops.sheaf_propagate import Layers, Tables, sheaf_propagate
from sheafdeq.ops.sheaf_step import PackedWeights, StepOptions, StepWeights, sheaf_step
from sheafdeq.recurrence import edge_field, node_field

__all__ = ["SheafContext", "SheafDEQ"]


@dataclass(frozen=True, eq=False)
class SheafContext:
    """What stays constant during one solve."""

    edges: Edges
    drive: Tensor = node_field()  # (n, c) B(X) >= 0
    # (e, 2h) first-layer contribution of the edge features
    edge_hidden: Tensor | None = edge_field(default=None)
    readout_mask: Tensor | None = node_field(default=None)  # (n, c) dropout
    features: Tensor | None = node_field(default=None)  # (n, f) what the readout's skip reads
    weights: Tensor | None = None  # the step's parameters in one row


class SheafOptions(SheafModelOptions, Solving, total=False):
    """What :class:`SheafDEQ` shares with other models."""


class SheafDEQ(SheafModel):
    r"""The state decides restriction maps on every edge, the maps decide a sheaf operator, the
    operator acts on the state.

    .. math::
        H^\star = \tanh\bigl(P_{F(H^\star)} (I_n \otimes W_1) H^\star W_2\bigr) + \beta + B(X)

    with :math:`P_F = I - D^{-1/2} L_F D^{-1/2}` the scalar-degree-normalised sheaf propagation
    (:class:`~sheafdeq.layers.operator.SheafOperator`), :math:`F(H)` the maps inferred from the
    row-normalised state (:mod:`~sheafdeq.layers.restriction`) and :math:`B(X) = \mathrm{ReLU}(X A +
    b)` the drive.

    The published well-posedness theorem for this update does not hold as stated (``docs/theory.md``
    has the counterexample): whether the equilibrium is unique and reached is a property of the
    trained weights. The solution's status reports what happened; ``sheafdeq certify`` says what can
    be proved.

    Parameters (state-dict names in brackets): drive [``drive``], generators of the maps
    [``source_maps``, ``target_maps``], stalk mixing W_1 (d x d) [``stalk_mixing``], channel mixing
    W_2 (q x q) [``channel_mixing``], readout [``readout``]. With ``mixers="channels"`` W_1 is
    (q x q) [``first_mixing``], the propagated state is H W_1 W_2, and nothing mixes stalks: at
    f = 3 the model then has the 11,045 parameters that the paper prints, where its text gives
    10,798 (``docs/results.md`` says what each reading learns).

    Args:
        in_channels: width f of the node features; -1: that of the first graph.
        out_channels: width o of the outputs.
        stalk_dim: stalk dimension d.
        channels: feature channels q; the state has c = d*q entries a node, coordinate-major.
        shift: beta > 1 keeps every iterate positive.
        steps: Picard steps of the trained horizon K.
        edge_dim: width of the edge features, which enter the map generators; None without.
        pre_norm: row-normalise the state before the generators (False is the paper's ablation).
        norm_order: p in [1, inf] of that normalisation.
        mixers: ``"stalks"``: W_1 acts on stalks, as in the equation; ``"channels"``: on channels.
        encoder: widths of a perceptron on the features
            (:class:`~sheafdeq.layers.feature_encoder.FeatureEncoder`); empty: none.
        harmonics: frequencies of the sines and cosines that stand beside each feature, for
            coordinates in [0, 1] (:func:`~sheafdeq.layers.feature_encoder.harmonic_features`).
        input_dropout: share of the raw features dropped while training, drawn once a solve.
        dropout: share of the hidden values of the encoder, of the drive and of the state at the
            readout dropped while training, one mask a solve. A masked drive is another drive, so
            what is proved for every drive holds of every training solve.
        readout_norm: LayerNorm of the state before the readout.
        skip: the readout also has a linear map of the (encoded) features.
        solver: ``None``/``"picard"`` (exactly ``steps`` steps), ``"anderson"``, or a solver object.
        gradient: ``"unrolled"`` (the paper's), ``"implicit"``, ``"truncated:k"``, or an adjoint
            object.

    Shapes: x (n, f), edge_index (2, e), edge_attr (e, edge_dim), output (n, o).

    Invariants (each a test): maps do not change when the state is scaled; with ``pre_norm`` the
    propagation is positively homogeneous; every iterate after the first lies in [beta - 1, beta + 1
    + B(X)]; node permutations commute with the step; a batch gives each graph what it would get
    alone.

    Special graphs: an isolated node receives nothing and its diagonal block is the identity;
    self-loops and duplicate edges count as stored edges; directed input is used as given (degrees
    count incoming edges). A graph without nodes gives an empty output.

    Reference: Bourgerie, Girdzijauskas, Fodor, "Fixed Points Without Fixed Diffusion", 2026.
    """

    def __init__(
        self,
        *sizes: int,
        shift: float = 1.3,
        pre_norm: bool = True,
        norm_order: float = 2,
        mixers: Literal["stalks", "channels"] = "stalks",
        readout_norm: bool = False,
        **options: Unpack[SheafOptions],
    ) -> None:
        super().__init__(*sizes, **options)
        if not float(shift) > 1.0 or float(shift) == float("inf"):
            raise InputError(
                "shift must be a finite number above 1 (it keeps the state "
                f"positive), got {shift!r}"
            )
        self.shift = float(shift)
        self.pre_norm = bool(pre_norm)
        self.norm_order = checked_norm_order(norm_order)
        if mixers not in ("stalks", "channels"):
            raise InputError(f"mixers must be 'stalks' or 'channels', got {mixers!r}")
        self.mixers = mixers
        edge_dim = self.edge_dim or 0
        d, q, c, features = self.stalk_dim, self.channels, self.width, self.inputs.out_channels
        self.drive = linear(features, c)
        self.source_maps = map_generator(c, edge_dim, d)
        self.target_maps = map_generator(c, edge_dim, d)
        if mixers == "stalks":
            self.stalk_mixing = nn.Parameter(torch.empty(d, d))
        else:
            self.first_mixing = nn.Parameter(torch.empty(q, q))
        self.channel_mixing = nn.Parameter(torch.empty(q, q))
        self.readout = MaskedReadout(
            c, self.out_channels, norm=readout_norm, skip=features if self.skip else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for every matrix, zero for every bias, LayerNorm at the identity."""
        xavier(self.parameters())
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    # ------------------------------------------------------------------ the contract

    def prepare(self, graph: Graph) -> SheafContext:
        """Drive, edges, and the edge features' share of the first generator layer."""
        edge_hidden = None
        if graph.edge_attr is not None:
            edge_hidden = graph.edge_attr @ self._first_layer().edge.T
        graph = self.inputs(graph)
        drive = self.drive(graph.x).relu()
        mask = dropout_mask(drive, self.dropout, self.training)
        return SheafContext(
            graph.edges,
            drive if mask is None else drive * mask,
            edge_hidden,
            dropout_mask(drive, self.dropout, self.training),
            graph.x if self.skip else None,
            self._weights().packed().values,
        )

    def initial_state(self, context: SheafContext) -> Tensor:
        """All ones, each row scaled to unit Euclidean norm: 1/sqrt(c)."""
        return torch.full_like(context.drive, self.width**-0.5)

    def step(self, state: Tensor, context: SheafContext) -> Tensor:
        """T(H) = tanh(P_{F(H)} (I (x) W_1) H W_2) + beta + B."""
        options = StepOptions(
            self.shift,
            self.norm_order,
            self.pre_norm,
            context.edges,
            self.stalk_dim,
            self.channels,
        )
        weights: StepWeights | PackedWeights
        if context.weights is None:
            weights = self._weights()
        else:
            h, inputs = linear_layers(self.source_maps)[0].weight.shape
            weights = PackedWeights(context.weights, h, inputs, self.stalk_dim, self.channels)
        return sheaf_step(state, context.drive, weights, context.edge_hidden, options)

    def local_step(self, own: Tensor, received: Tensor, context: SheafContext) -> Tensor:
        """The same update with edge k reading the source state ``received[k]``."""
        return self.gathered_step(
            own, received, torch.arange(len(received), device=own.device), context
        )

    def gathered_step(
        self, own: Tensor, table: Tensor, index: Tensor, context: SheafContext
    ) -> Tensor:
        """The same update with edge k reading ``table[index[k]]``: the table is projected before it
        is gathered."""
        first = self._first_layer()
        tables = Tables(
            self._normalised(table) @ first.source.T,
            self._normalised(own) @ first.target.T + first.bias,
            context.edge_hidden,
            self._values(table).reshape(table.shape),
            self._values(own).reshape(own.shape),
        )
        edges = context.edges.reading(index, len(table))
        propagated = sheaf_propagate(
            tables, self._layers()[1], edges, self.stalk_dim, self.channels
        )
        return torch.tanh(propagated) + self.shift + context.drive

    # ------------------------------------------------------------------ the sheaf

    def operator(self, state: Tensor, context: SheafContext) -> SheafOperator:
        """The sheaf operator the state decides, P_{F(H)}, with its maps: for inspection and as the
        step's plain twin."""
        first = self._first_layer()
        normalised = self._normalised(state)
        source_hidden = (normalised @ first.source.T)[context.edges.source]
        target_hidden = (normalised @ first.target.T + first.bias)[context.edges.target]
        maps = restriction_maps(
            self.source_maps,
            self.target_maps,
            source_hidden,
            target_hidden,
            context.edge_hidden,
            self.stalk_dim,
        )
        return SheafOperator(context.edges, *maps)

    def mixing(self) -> tuple[Tensor, Tensor]:
        """What the state is multiplied by: (d, d) on stalks and (q, q) on channels. A product of
        two mixers is rounded once, here; step and certificates have that matrix."""
        if self.mixers == "stalks":
            return self.stalk_mixing, self.channel_mixing
        stalks = torch.eye(self.stalk_dim).to(self.channel_mixing)
        return stalks, self.first_mixing @ self.channel_mixing

    def _weights(self) -> StepWeights:
        return StepWeights(*self._layers(), *self.mixing())

    def _layers(self) -> tuple[Layers, Layers]:
        """First and second layers of both generators."""
        pairs = zip(linear_layers(self.source_maps), linear_layers(self.target_maps), strict=True)
        first, second = (
            Layers(source.weight, source.bias, target.weight, target.bias)
            for source, target in pairs
        )
        return first, second

    def _normalised(self, state: Tensor) -> Tensor:
        return (
            normalise_rows(state, self.stalk_dim, self.channels, self.norm_order)
            if self.pre_norm
            else state
        )

    def _values(self, state: Tensor) -> Tensor:
        """(rows, c) -> (rows, d, q): W_1 H_v W_2."""
        stalks, channels = self.mixing()
        return stalks @ state.view(-1, self.stalk_dim, self.channels) @ channels

    def _first_layer(self) -> FirstLayer:
        return FirstLayer(self.source_maps, self.target_maps, self.width)

    def __repr__(self) -> str:
        extra = "" if self.pre_norm else ", pre_norm=False"
        if self.edge_dim:
            extra += f", edge_dim={self.edge_dim}"
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"stalk_dim={self.stalk_dim}, "
            f"channels={self.channels}, "
            f"shift={self.shift:g}, steps={self.steps}{extra})"
        )
