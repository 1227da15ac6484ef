"""SheafCascade: adaptive signed sheaf propagation whose equilibrium is guaranteed for every
weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from sheafdeq.adjoints import Adjoint
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.layers.cascade_level import CascadeLevel, Sheaf
from sheafdeq.layers.checks import checked_positive
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.dropout import dropout_mask
from sheafdeq.layers.edge_features import edge_feature_width, edge_features
from sheafdeq.layers.gates import gate_by_name
from sheafdeq.layers.initialise import linear, xavier
from sheafdeq.layers.masked_readout import MaskedReadout
from sheafdeq.layers.rows import bounded_rows
from sheafdeq.layers.sheaf_model import SheafModel, SheafModelOptions
from sheafdeq.ops.gated_step import block_product, edge_parts, edge_product, gated_map, two_parts
from sheafdeq.ops.sheaf_blocks import blocks_from_hidden, generate
from sheafdeq.recurrence import edge_field, node_field
from sheafdeq.solvers import Partition, Solution, Solver
from sheafdeq.solvers.iterate import Function

__all__ = ["CascadeContext", "Sheaf", "SheafCascade"]

MAP_SOFTENING = 1e-3
"""Maps are A / sqrt(||A||_F^2 + softening^2): unit norm in practice, smooth at zero, Lipschitz with
1/softening."""


@dataclass(frozen=True, eq=False)
class CascadeContext:
    """What stays constant during one solve: the features' share of every level, and the whole first
    sheaf."""

    edges: Edges
    edge_hidden: Tensor = edge_field()  # (e, h), or (e, L*h) when levels are not tied
    # (n, groups * c) the features' share of the drive, before ReLU
    node_drive: Tensor = node_field()
    first_blocks: Tensor = edge_field()  # (e, d, d) the first level reads the features alone
    first_diagonal: Tensor = node_field()  # (n, d, d)
    first_drive: Tensor = node_field()  # (n, c)
    drive_mask: Tensor | None = node_field(default=None)  # (n, c) dropout of every level's drive
    readout_mask: Tensor | None = node_field(default=None)  # (n, c) dropout
    features: Tensor | None = node_field(default=None)  # (n, f) what the readout's skip reads


class CascadeOptions(SheafModelOptions, total=False):
    """What :class:`SheafCascade` shares with other models."""

    solver: str | Solver | None
    gradient: str | Adjoint


class SheafCascade(SheafModel):
    r"""A tower of sheaf equilibria: each level settles on a sheaf inferred, without limits, from
    the level below.

    .. math::
        H_l^\star = \beta + B_l + \varphi(y_l^+, y_l^-), \qquad
        y_l^\pm = \tfrac12\bigl(|P_l|\,H_l^\star\,|W_2| \pm P_l H_l^\star W_2\bigr), \qquad
        (P_l, B_l) = \mathrm{Level}_l(H_{l-1}^\star), \quad H_0 = \text{features}

    where :math:`P_l` includes the stalk mixing :math:`W_1`. y+ collects what excites a coordinate
    and y- what inhibits it; both have nonnegative coefficients, which makes the update strongly
    subhomogeneous. Given the level below, a level contracts Thompson's metric with :math:`m(\beta)
    < 1` for **every** weight, so the tower has one equilibrium, reached from every positive start,
    synchronously or with bounded delays (``docs/theory.md``, Theorem 23 and Corollary 26).

    **One joint recurrence.** The state is (n, L*c), all levels side by side; :meth:`step` updates
    all of them at once, so solvers, diagnostics and the asynchronous simulator treat it as any
    other model. Training uses :meth:`solve_staged`: level by level, the sheaf inferred once for
    each level. Both have the same equilibrium.

    Args:
        in_channels: width f of the node features; -1: that of the first graph.
        out_channels: width o of the outputs.
        stalk_dim: stalk dimension d.
        channels: feature channels q; each level's state has c = d*q entries a node.
        levels: L.
        level_steps: Picard steps of every level; the horizon is ``steps = levels * level_steps``.
        training_steps: steps of every level while training, one of these drawn for each solve:
            cheaper than ``level_steps``, and the readout learns the equilibrium rather than one
            number of steps. Empty: always ``level_steps``.
        tied: one set of weights for all levels (the parameter count does not depend on L), or one
            for each.
        shift: beta; m(beta) < 1 needs 1.25 with the balance gate, 1.19968 with the tanh gate, any
            beta > 1 with the rational one.
        gate: how the propagation enters, ``"balance"``, ``"tanh"`` or ``"rational"``
            (:mod:`sheafdeq.layers.gates`).
        hidden: hidden width h of each map generator.
        edge_hidden: hidden width of the feature share of the generators.
        gain: factor on the Xavier values of W_2 (the tanh gate needs y+- near one at the start; the
            balance gate does not care).
        feature_noise: standard deviation of Gaussian noise on the node features while training,
            drawn once a solve.
        edge_dropout: share of the edges that carry no message while training, drawn once a solve.
        differences: whether the edges see the difference of the raw features at their ends and its
            length. Without, they see their own features (or nothing) and the states below, as the
            paper's SheafDEQ does.
        encoder: widths of a perceptron on the features
            (:class:`~sheafdeq.layers.feature_encoder.FeatureEncoder`); empty: none.
        harmonics: frequencies of the sines and cosines that stand beside each feature, for
            coordinates in [0, 1] (:func:`~sheafdeq.layers.feature_encoder.harmonic_features`).
        input_dropout: share of the raw features dropped while training, drawn once a solve.
        dropout: share of the hidden values of the encoder, of the drives and of the state at the
            readout dropped while training, one mask a solve; a masked drive is another B >= 0, so
            every training solve has the guarantee.
        skip: the readout also has a linear map of the (encoded) features.
        edge_dim: width of the edge features; None without.
        solver: ``None`` (``steps`` Picard steps, staged) or a solver object; its step limit is
            shared evenly by the levels.
        gradient: as for every equilibrium model; ``"implicit"`` is well posed for every weight
            here.

    Shapes: x (n, f), edge_index (2, e), edge_attr (e, edge_dim), output (n, o).
    """

    guaranteed = True

    def __init__(
        self,
        *sizes: int,
        levels: int = 8,
        level_steps: int = 8,
        training_steps: Sequence[int] = (),
        tied: bool = True,
        shift: float = 1.4,
        gate: str = "balance",
        hidden: int = 24,
        edge_hidden: int = 24,
        gain: float = 0.2,
        feature_noise: float = 0.0,
        edge_dropout: float = 0.0,
        differences: bool = True,
        **options: Unpack[CascadeOptions],
    ) -> None:
        checked_positive(
            levels=levels, level_steps=level_steps, hidden=hidden, edge_hidden=edge_hidden
        )
        training_steps = tuple(training_steps)
        for count in training_steps:
            checked_positive(training_steps=count)
        super().__init__(*sizes, steps=levels * level_steps, **options)
        if not feature_noise >= 0:
            raise InputError(f"feature_noise must be a non-negative number, got {feature_noise!r}")
        if not 0 <= edge_dropout < 1:
            raise InputError(f"edge_dropout must be in [0, 1), got {edge_dropout!r}")
        self.levels, self.tied = levels, bool(tied)
        self.training_steps = training_steps
        self.gate = gate_by_name(gate)
        self.shift = self.gate.checked_shift(shift)
        self.gain = float(gain)
        self.feature_noise, self.edge_dropout = float(feature_noise), float(edge_dropout)
        self.hidden, self.differences = hidden, bool(differences)
        features = self.inputs.out_channels
        edge_width = edge_feature_width(features, self.edge_dim, differences=self.differences)
        c = self.width
        groups = 1 if tied else levels
        self.encoder = linear(features, c)
        self.edge_encoder = nn.Sequential(
            linear(edge_width, edge_hidden), nn.ReLU(), Dense(edge_hidden, hidden * groups)
        )
        self.feature_drive = linear(features, c * groups, bias=False)
        self.level_modules = nn.ModuleList(
            CascadeLevel(c, self.stalk_dim, self.channels, hidden) for _ in range(groups)
        )
        self.readout_norm = nn.LayerNorm(c)
        self.output = MaskedReadout(c, self.out_channels, skip=features if self.skip else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for matrices (W_2 times ``gain``), zero for biases, LayerNorm at the
        identity."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                xavier(module.parameters())
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, CascadeLevel):
                xavier(module.parameters(recurse=False))
                with torch.no_grad():
                    module.channel_mixing.mul_(self.gain)

    @property
    def stochastic_training(self) -> bool:
        """Whether training mode draws at random."""
        rates = (self.feature_noise, self.edge_dropout, self.dropout, self.inputs.input_dropout)
        return max(rates) > 0 or len(self.training_steps) > 0

    @property
    def level_rate(self) -> float:
        """m(beta): the proven rate of every level in Thompson's metric, given the level below, for
        all weights (Corollary 19)."""
        return self.gate.coefficient(self.shift).upper

    # ------------------------------------------------------------------ the contract

    def prepare(self, graph: Graph) -> CascadeContext:
        """The features' share of every level, and the first sheaf, which reads the features
        alone."""
        graph = self.inputs(graph)
        edges, x = graph.edges, graph.x
        if self.training and self.feature_noise:
            x = x + self.feature_noise * torch.randn_like(x)
        edge_hidden = self.edge_encoder(edge_features(graph, x, differences=self.differences))
        if self.training and self.edge_dropout:
            keep = 1 - self.edge_dropout
            weight = edges.weight * torch.empty_like(edges.weight).bernoulli_(keep) / keep
            edges = edges.reweighted(weight)
        node_drive = self.feature_drive(x)
        base = self.encoder(x)
        mask = dropout_mask(base, self.dropout, self.training)
        sheaf = self._infer(0, base, base, edges, edge_hidden, node_drive, mask)
        return CascadeContext(
            edges,
            edge_hidden,
            node_drive,
            sheaf.blocks,
            sheaf.diagonal,
            sheaf.drive,
            mask,
            dropout_mask(base, self.dropout, self.training),
            x if self.skip else None,
        )

    def initial_state(self, context: CascadeContext) -> Tensor:
        """(n, L*c) the shift everywhere."""
        drive = context.first_drive
        return drive.new_full((len(drive), self.levels * self.width), self.shift)

    def step(self, state: Tensor, context: CascadeContext) -> Tensor:
        """All levels at once, each on the sheaf that the level below decides now."""
        return self._joint_step(state, None, context)

    def local_step(self, own: Tensor, received: Tensor, context: CascadeContext) -> Tensor:
        """The same update with edge k reading the source state ``received[k]`` (all levels of
        it)."""
        return self._joint_step(own, received, context)

    def readout(self, state: Tensor, context: CascadeContext) -> Tensor:
        """The last level, normalised, through a linear map."""
        result: Tensor = self.output(self.readout_norm(state[:, -self.width :]), context)
        return result

    # ------------------------------------------------------------------ solving

    def solve(self, context: CascadeContext, graph: Graph, **options: Any) -> Solution:
        """Staged by default; the joint iteration when steps, a start, a solver or an observer is
        given."""
        if all(value is None for name, value in options.items() if name != "adjoint"):
            return self.solve_staged(context, graph, adjoint=options.get("adjoint"))
        return super().solve(context, graph, **options)

    def solve_staged(
        self,
        context: CascadeContext,
        graph: Graph,
        *,
        solver: Solver | None = None,
        adjoint: Adjoint | None = None,
    ) -> Solution:
        """Level by level: infer the sheaf once, iterate the level, go on to the next.

        ``solver``'s step limit (default: the trained horizon) is shared evenly by the levels; every
        level starts at beta + B. While level l runs, the levels below are final, so a level's
        residual is that of the joint state in its columns, and the joint residual is the largest of
        them: CONVERGED here means CONVERGED there (by Thompson's metric, exactly; by a distance
        relative to the row, because a level's row is part of the joint one). With an implicit
        gradient ``solution.backward`` merges the backward solves of all levels.
        """
        if solver is None and self.training and self.training_steps:
            drawn = int(torch.randint(len(self.training_steps), (1,)))
            solver = self.solver.with_steps(self.training_steps[drawn])
        else:
            solver = solver if solver is not None else self.solver
            solver = solver.with_steps(max(1, solver.steps // self.levels))
        solver = self.judged(solver)
        adjoint = adjoint if adjoint is not None else self.adjoint
        partition = Partition(graph.graph_of_node, graph.num_graphs)
        below: Tensor | None = None
        parts: list[Solution] = []
        for level in range(self.levels):
            sheaf = self._sheaf(level, below, None, context)
            step = self.level_map(level, sheaf, context)
            start = sheaf.drive + self.shift
            solution = (
                adjoint.solve(step, start, solver, partition=partition)
                if torch.is_grad_enabled()
                else solver.solve(step, start, partition=partition)
            )
            parts.append(solution)
            below = solution.value
        return Solution.merged(parts)

    def solve_to_equilibrium(
        self, context: CascadeContext, graph: Graph, solver: Solver
    ) -> Solution:
        """Level by level, each to the tolerance and with the whole step limit; the tower is then at
        rest as one."""
        return self.solve_staged(
            context, graph, solver=solver.with_steps(solver.steps * self.levels)
        )

    def sheaf(self, level: int, below: Tensor | None, context: CascadeContext) -> Sheaf:
        """The sheaf of a level (0-based) that the state ``below`` (n, c) decides; level 0 reads the
        features."""
        if not 0 <= level < self.levels:
            raise InputError(f"level must be from 0 to {self.levels - 1}, got {level!r}")
        if level and below is None:
            raise InputError(f"level {level} needs the state of level {level - 1}")
        return self._sheaf(level, below, None, context)

    # ------------------------------------------------------------------ one level

    def _level(self, level: int) -> CascadeLevel:
        module = self.level_modules[0 if self.tied else level]
        assert isinstance(module, CascadeLevel)
        return module

    def _sheaf(
        self, level: int, own: Tensor | None, received: Tensor | None, context: CascadeContext
    ) -> Sheaf:
        if level == 0:
            return Sheaf(context.first_blocks, context.first_diagonal, context.first_drive)
        assert own is not None
        shares = (context.edges, context.edge_hidden, context.node_drive, context.drive_mask)
        return self._infer(level, own, received, *shares)

    def _infer(
        self,
        level: int,
        own: Tensor,
        received: Tensor | None,
        edges: Edges,
        edge_hidden: Tensor,
        node_drive: Tensor,
        drive_mask: Tensor | None,
    ) -> Sheaf:
        """From the level below (``received`` holds source rows for each edge, or is None or ``own``
        on a whole graph)."""
        module = self._level(level)
        group = 0 if self.tied else level
        d, q, h, c = self.stalk_dim, self.channels, self.hidden, self.width
        whole = received is None or received is own
        table = own if received is None or received is own else received
        z = module.norm(bounded_rows(own))
        z_table = z if whole else module.norm(bounded_rows(table))
        source, target = module.source(z_table), module.target(z)
        edge = edge_hidden[:, group * h : (group + 1) * h]
        weight, bias = module.maps.weight, module.maps.bias
        message = module.message_stalk @ z.view(-1, d, q) @ module.message_channel
        if whole:
            blocks, diagonal = generate(
                source, target, edge, weight, bias, edges, sign=-1, softening=MAP_SOFTENING
            )
            spread = block_product(blocks, diagonal, message, edges)
        else:
            hidden = edge + source + target.index_select(0, edges.target)
            blocks, diagonal = blocks_from_hidden(
                hidden, weight, bias, edges, sign=-1, softening=MAP_SOFTENING
            )
            arriving = module.message_stalk @ z_table.view(-1, d, q) @ module.message_channel
            spread = edge_product(blocks, arriving, edges) + diagonal @ message
        drive = (
            module.own(z) + node_drive[:, group * c : (group + 1) * c] + spread.reshape(-1, c)
        ).relu()
        return Sheaf(blocks, diagonal, drive if drive_mask is None else drive * drive_mask)

    def level_map(self, level: int, sheaf: Sheaf, context: CascadeContext) -> Function:
        """The map (n, c) -> (n, c) that level ``level`` iterates on a given sheaf; a contraction
        with :attr:`level_rate`."""
        module = self._level(level)
        blocks, diagonal = sheaf.blocks @ module.stalk_mixing, sheaf.diagonal @ module.stalk_mixing
        return gated_map(
            blocks,
            diagonal,
            module.channel_mixing,
            sheaf.drive + self.shift,
            self.gate,
            context.edges,
        )

    def _joint_step(self, own: Tensor, received: Tensor | None, context: CascadeContext) -> Tensor:
        c, d, q = self.width, self.stalk_dim, self.channels
        images = []
        for level in range(self.levels):
            columns, lower = slice(level * c, (level + 1) * c), slice((level - 1) * c, level * c)
            below = own[:, lower] if level else None
            below_received = received[:, lower] if level and received is not None else None
            sheaf = self._sheaf(level, below, below_received, context)
            state = own[:, columns].contiguous()
            if received is None:
                images.append(self.level_map(level, sheaf, context)(state))
                continue
            module = self._level(level)
            plus, minus = two_parts(sheaf.blocks @ module.stalk_mixing)
            own_plus, own_minus = two_parts(sheaf.diagonal @ module.stalk_mixing)
            mixing = two_parts(module.channel_mixing)
            h, arriving = state.view(-1, d, q), received[:, columns].reshape(-1, d, q)
            parts = edge_parts(
                (plus, own_plus),
                (minus, own_minus),
                (h @ mixing[0], h @ mixing[1]),
                (arriving @ mixing[0], arriving @ mixing[1]),
                context.edges,
            )
            images.append(
                sheaf.drive + self.shift + self.gate.of_parts(*parts).reshape(state.shape)
            )
        return torch.cat(images, dim=1)

    def __repr__(self) -> str:
        return (
            f"SheafCascade({self.in_channels}, {self.out_channels}, stalk_dim={self.stalk_dim}, "
            f"channels={self.channels}, "
            f"levels={self.levels}, tied={self.tied}, shift={self.shift:g}, steps={self.steps})"
        )
