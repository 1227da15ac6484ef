"""The peer of the fused kernel: the same SheafDEQ step as anyone would first write it in PyG.

For every stored edge the two states are concatenated, two perceptrons give the maps, and
``propagate`` gathers, multiplies and scatters. The equation, the parameters and the numbers are
those of ``sheafdeq.models.SheafDEQ``; only the route differs: the first generator layer runs on
edges, and autograd keeps every intermediate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["MessagePassingStep"]


class MessagePassingStep(MessagePassing):  # type: ignore[misc]
    """T(H) = tanh(P_{F(H)} (I (x) W_1) H W_2) + beta + B on the parameters of a given SheafDEQ."""

    def __init__(self, model: SheafDEQ) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.model = model

    def forward(
        self,
        state: Tensor,
        drive: Tensor,
        edge_index: Tensor,
        degree: Tensor,
        edge_weight: Tensor,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """One step (n, c) -> (n, c)."""
        model = self.model
        n, d, q = len(state), model.stalk_dim, model.channels
        rows = state.view(n, d, q)
        normalised = rows
        if model.pre_norm:
            normalised = rows / torch.linalg.vector_norm(
                rows, ord=model.norm_order, dim=-1, keepdim=True
            ).clamp(min=1e-12)
        stalks, channels = model.mixing()
        values = stalks @ rows @ channels
        change = self.propagate(
            edge_index,
            normalised=normalised.reshape(n, d * q),
            values=values,
            degree=degree,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
        )
        return torch.tanh((values + change).view(n, d * q)) + model.shift + drive

    def message(
        self,
        normalised_i: Tensor,
        normalised_j: Tensor,
        values_i: Tensor,
        values_j: Tensor,
        degree_i: Tensor,
        edge_weight: Tensor,
        edge_attr: Tensor | None,
    ) -> Tensor:
        """What one stored edge adds to its target, (e, d, q)."""
        d = self.model.stalk_dim
        parts = [normalised_j, normalised_i, *([] if edge_attr is None else [edge_attr])]
        both = torch.cat(parts, dim=1)
        source = self.model.source_maps(both).view(-1, d, d)
        target = self.model.target_maps(both).view(-1, d, d)
        source = source / source.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        target = target / target.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        across = torch.bmm(source, values_j) * edge_weight.view(-1, 1, 1)
        own = torch.bmm(target, values_i) / degree_i.view(-1, 1, 1)
        return torch.bmm(target.transpose(1, 2), across - own)
