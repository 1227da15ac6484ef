"""Neural Sheaf Diffusion: the field's standard explicit sheaf network, with diagonal, full or
orthogonal maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.data.graph import Graph
from sheafdeq.derivatives import differentiable_once
from sheafdeq.edges import Edges
from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.errors import InputError
from sheafdeq.layers.checks import checked_dropout, checked_positive
from sheafdeq.layers.feature_encoder import FeatureEncoder
from sheafdeq.layers.sizes import StalkModel, StalkSizes
from sheafdeq.ops.sparse import aggregate

__all__ = ["NeuralSheafDiffusion", "SheafLayer", "householder", "inverse_square_root"]


class SheafLayer(nn.Module):
    r"""One diffusion step :math:`X \leftarrow (1 + \tanh \epsilon) X - \mathrm{ELU}(\Delta (I
    \otimes W_1) X W_2)`.

    A learner without bias gives the map of node v on edge {v, u} as tanh(lin [x_v ; x_u]): a
    diagonal, a matrix, or the lower triangle of Householder vectors. With D_v = sum over edges of
    F_v^T F_v,

    * diagonal and full: :math:`\Delta = (D + I)^{-1/2} L (D + I)^{-1/2}` with (block) roots, L_vv =
      D_v, L_vu = -F_v^T F_u;
    * orthogonal: maps are scaled by an edge weight sigmoid(lin[x_v ; x_u]) sigmoid(lin[x_u ; x_v]),
      D is the scalar sum of its squares.

    Shapes: x (n, d*q) -> (n, d*q), coordinate-major.
    """

    def __init__(self, stalk_dim: int, channels: int, maps: str) -> None:
        super().__init__()
        d, c = stalk_dim, stalk_dim * channels
        self.stalk_dim, self.channels, self.kind = d, channels, maps
        entries = {"diagonal": d, "full": d * d, "orthogonal": d * (d - 1) // 2}[maps]
        self.learner = nn.Linear(2 * c, entries, bias=False)
        self.edge_learner = nn.Linear(2 * c, 1, bias=False) if maps == "orthogonal" else None
        self.stalk_mixing = nn.Linear(d, d, bias=False)
        self.channel_mixing = nn.Linear(channels, channels, bias=False)
        self.epsilon = nn.Parameter(torch.empty(d, 1))
        self._start_mixings()

    def reset_parameters(self) -> None:
        """The learners as PyTorch starts them, W_1 the identity, W_2 orthogonal."""
        self.learner.reset_parameters()
        if self.edge_learner is not None:
            self.edge_learner.reset_parameters()
        self._start_mixings()

    def _start_mixings(self) -> None:
        nn.init.zeros_(self.epsilon)
        nn.init.eye_(self.stalk_mixing.weight)
        nn.init.orthogonal_(self.channel_mixing.weight)

    def forward(self, x: Tensor, seen: Tensor, graph: Graph, edges: Edges) -> Tensor:
        """``seen`` (n, c) is what the map learner reads (``x`` after dropout)."""
        n, d, q = len(x), self.stalk_dim, self.channels
        stalks = x.view(n, d, q)
        mixed = self.channel_mixing(self.stalk_mixing.weight @ stalks)
        diagonal, off = self.laplacian(seen, graph)
        change = self.diffuse(diagonal, off, mixed, edges)
        return ((1 + self.epsilon.tanh()) * stalks - functional.elu(change)).view(n, d * q)

    def maps(self, x: Tensor, graph: Graph, learner: nn.Linear) -> tuple[Tensor, Tensor]:
        """Raw learner outputs (e, k) for the receiving and the sending end of every stored edge."""
        c = x.shape[1]
        first, second = x @ learner.weight[:, :c].T, x @ learner.weight[:, c:].T
        source, target = graph.source, graph.target
        receiver = first.index_select(0, target) + second.index_select(0, source)
        return receiver, first.index_select(0, source) + second.index_select(0, target)

    def laplacian(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Diagonal blocks (n, ...) and, for every stored edge u -> v, block L_vu (e, ...) of the
        normalised Laplacian.

        Blocks are (d,) for diagonal maps and (d, d) otherwise.
        """
        n, d, target, source = len(x), self.stalk_dim, graph.target, graph.source
        receiver, sender = (raw.tanh() for raw in self.maps(x, graph, self.learner))
        share = graph.edges.share
        if share is not None and self.edge_learner is None:
            # F_v^T F_u counts w_e times; the root stays differentiable where w_e is zero
            root = (share + torch.finfo(share.dtype).tiny).sqrt().unsqueeze(1)
            receiver, sender = receiver * root, sender * root
        if self.kind == "diagonal":
            degree = receiver.new_zeros(n, d).index_add(0, target, receiver.square())
            root = (degree + 1).rsqrt()
            return root.square() * degree, -root.index_select(
                0, target
            ) * receiver * sender * root.index_select(0, source)
        if self.kind == "full":
            receiver, sender = receiver.view(-1, d, d), sender.view(-1, d, d)
            degree = x.new_zeros(n, d, d).index_add(0, target, receiver.transpose(1, 2) @ receiver)
            inverse_root: Tensor = inverse_square_root(
                degree + torch.eye(d, dtype=x.dtype, device=x.device)
            )
            off = (
                inverse_root.index_select(0, target)
                @ receiver.transpose(1, 2)
                @ sender
                @ inverse_root.index_select(0, source)
            )
            return (inverse_root @ degree @ inverse_root).clamp(-1, 1), -off.clamp(-1, 1)
        assert self.edge_learner is not None
        ends = self.maps(x, graph, self.edge_learner)
        weight = (ends[0].sigmoid() * ends[1].sigmoid()).square()  # of both ends' maps together
        if share is not None:
            weight = weight * share.unsqueeze(1)
        degree = weight.new_zeros(n, 1).index_add(0, target, weight)
        root = (degree + 1).rsqrt()
        scale = root.index_select(0, target) * weight * root.index_select(0, source)
        off = -scale.unsqueeze(2) * (
            householder(receiver, d).transpose(1, 2) @ householder(sender, d)
        )
        diagonal = (root.square() * degree).unsqueeze(2) * torch.eye(
            d, dtype=x.dtype, device=x.device
        )
        return diagonal, off

    def diffuse(self, diagonal: Tensor, off: Tensor, stalks: Tensor, edges: Edges) -> Tensor:
        """(n, d, q) -> (n, d, q): the Laplacian given by its blocks, applied."""
        n, d, q = stalks.shape
        if self.kind == "diagonal":
            received = aggregate(off.T.reshape(-1), stalks.transpose(0, 1).reshape(d * n, q), edges)
            return diagonal.unsqueeze(2) * stalks + received.view(d, n, q).transpose(0, 1)
        received = aggregate(off.transpose(0, 1).reshape(-1), stalks.reshape(n * d, q), edges)
        return diagonal @ stalks + received.view(d, n, q).transpose(0, 1)


class NeuralSheafDiffusion(StalkModel, ExplicitModel):
    """Linear encoder with ELU, ``layers`` of :class:`SheafLayer` with their own maps, linear
    readout.

    Bodnar et al., "Neural Sheaf Diffusion", NeurIPS 2022, as released
    (twitter-research/neural-sheaf-diffusion: ``DiscreteDiag-``, ``DiscreteGeneral-`` and
    ``DiscreteBundleSheafDiffusion`` with normalised augmented Laplacian, left and right weights,
    ELU, tanh maps, and for orthogonal maps Householder products with edge weights). Deviations:
    logits instead of log-probabilities; the graph is an argument instead of a part of the model;
    the full variant's inverse square root is differentiated exactly instead of perturbing the
    matrix by random numbers. Not a model of the paper, whose DNSD descends from it.

    Args:
        sizes, named: ``in_channels`` f, ``out_channels`` o, ``stalk_dim`` d (at least 2 unless
            maps are diagonal), ``channels`` q.
        layers: number of diffusion steps.
        maps: ``"diagonal"``, ``"full"`` or ``"orthogonal"``.
        dropout: on the encoded features and before every layer, while training.
        input_dropout: share of the raw features dropped while training.

    Shapes: x (n, f) -> (n, o). Edge features are ignored.

    Invariants (each a test): on an undirected graph the Laplacian is symmetric with spectrum in [0,
    2].
    """

    edge_input = "ignored"
    weighted = True

    def __init__(
        self,
        *sizes: int,
        layers: int = 4,
        maps: str = "diagonal",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        **named: Unpack[StalkSizes],
    ) -> None:
        super().__init__(*sizes, **named)
        checked_positive(layers=layers)
        if maps not in ("diagonal", "full", "orthogonal"):
            raise InputError(f"maps must be 'diagonal', 'full' or 'orthogonal', got {maps!r}")
        if maps == "orthogonal" and self.stalk_dim < 2:
            raise InputError("orthogonal maps need a stalk dimension of at least 2, got 1")
        self.kind = maps
        self.dropout = checked_dropout(dropout)
        self.inputs = FeatureEncoder(self.in_channels, input_dropout=input_dropout)
        self.encoder = nn.Linear(self.in_channels, self.width)
        self.layers = nn.ModuleList(
            SheafLayer(self.stalk_dim, self.channels, maps) for _ in range(layers)
        )
        self.readout = nn.Linear(self.width, self.out_channels)

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        of_graph, d = graph.edges, self.stalk_dim
        edges = of_graph.heads(d) if self.kind == "diagonal" else of_graph.blocks(d)
        state = functional.dropout(
            functional.elu(self.inputs.first(self.encoder, graph)), self.dropout, self.training
        )
        for k, layer in enumerate(self.layers):
            seen = functional.dropout(state, self.dropout, self.training) if k else state
            state = layer(state, seen, graph, edges)
        result: Tensor = self.readout(state)
        return result


def householder(parameters: Tensor, d: int) -> Tensor:
    """(e, d(d-1)/2) -> (e, d, d) orthogonal: the product of d reflections.

    Reflection k has the vector (0, .., 0, 1, free entries), the columns of a unit lower triangular
    matrix.
    """
    rows, columns = torch.tril_indices(d, d, offset=-1, device=parameters.device)
    vectors = torch.eye(d, dtype=parameters.dtype, device=parameters.device).repeat(
        len(parameters), 1, 1
    )
    vectors = vectors.index_put(
        (torch.arange(len(parameters), device=parameters.device).unsqueeze(1), rows, columns),
        parameters,
    )
    result = torch.eye(d, dtype=parameters.dtype, device=parameters.device).expand(
        len(parameters), d, d
    )
    for k in range(d):
        vector = vectors[:, :, k : k + 1]
        result = result - (result @ vector) * (
            2 / vector.square().sum(1, keepdim=True)
        ) @ vector.transpose(1, 2)
    return result


class _InverseSquareRoot(torch.autograd.Function):
    """A^{-1/2} of symmetric positive definite matrices, differentiated by the Daleckii-Krein
    formula.

    Its divided differences (f(a) - f(b)) / (a - b) with f = x^{-1/2} are -1 / (sqrt(a) sqrt(b)
    (sqrt(a) + sqrt(b))): equal eigenvalues need no care.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        root = values.sqrt()
        ctx.save_for_backward(root, vectors)
        result: Tensor = vectors / root.unsqueeze(-2) @ vectors.transpose(-1, -2)
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        root, vectors = ctx.saved_tensors
        a, b = root.unsqueeze(-1), root.unsqueeze(-2)
        inner = vectors.transpose(-1, -2) @ grad @ vectors
        result: Tensor = vectors @ (-inner / (a * b * (a + b))) @ vectors.transpose(-1, -2)
        return result


def inverse_square_root(matrix: Tensor) -> Tensor:
    """(..., d, d) symmetric positive definite -> its inverse square root."""
    result: Tensor = _InverseSquareRoot.apply(matrix)  # type: ignore[no-untyped-call]
    return result
