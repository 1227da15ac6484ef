"""A multi-layer perceptron on the node features alone: the graph-agnostic lower bound."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import ExplicitModel
from sheafdeq.layers.checks import checked_dropout, checked_positive
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.feature_encoder import FeatureEncoder
from sheafdeq.layers.sizes import WideModel

__all__ = ["MLP"]


class MLP(WideModel, ExplicitModel):
    r"""K linear layers with ReLU and dropout between them; edges are never read.

    .. math:: f \to c \to \dots \to c \to o \quad (K \text{ linear maps in all})

    Follows the paper's appendix ("Feature-only MLP", depth parity: K is the iteration budget of the
    recurrent models). No deviation. 42,675 parameters at f = 3, c = 48, K = 20, o = 3.

    Args:
        in_channels: f.
        out_channels: o.
        width: c.
        layers: K >= 1 (one layer is the linear map f -> o).
        dropout: after every hidden ReLU, while training.
        input_dropout: share of the raw features dropped while training.

    Shapes: x (n, f) -> (n, o).
    """

    edge_input = "ignored"
    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 48,
        layers: int = 20,
        *,
        dropout: float = 0.5,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(in_channels, out_channels, width)
        checked_positive(layers=layers)
        self.dropout = checked_dropout(dropout)
        self.inputs = FeatureEncoder(in_channels, input_dropout=input_dropout)
        sizes = [in_channels, *[width] * (layers - 1), out_channels]
        self.layers = nn.ModuleList(Dense(a, b) for a, b in pairwise(sizes))
        self.reset_parameters()

    def logits(self, graph: Graph) -> Tensor:
        """(n, f) -> (n, o)."""
        hidden = self.inputs.first(self.layers[0], graph)
        for layer in self.layers[1:]:
            hidden = layer(functional.dropout(hidden.relu(), self.dropout, self.training))
        return hidden
