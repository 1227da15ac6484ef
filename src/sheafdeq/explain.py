"""Edge masks of PyG's explainers: ``Explainer(explainable(model), GNNExplainer(), ...)``.

An explainer looks for modules of PyG's ``MessagePassing`` and hands each of them a mask of the
edges. Models of this package have none, so :class:`Explainable` carries one that does nothing but
receive the mask, and hands it on as ``edge_weight``: how much each edge counts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.conv import MessagePassing

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import InputError

__all__ = ["Explainable", "explainable"]


class Explainable(nn.Module):
    """A model whose edges an explainer of PyG can mask; without a mask it is the model itself.

    Args:
        model: any model or layer that takes ``edge_weight``.
    """

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        if not isinstance(model, GraphModel) or not model.weighted:
            raise InputError(
                f"{type(model).__name__} takes no edge_weight, so its edges cannot be masked: ask "
                "for node masks only (edge_mask_type=None)"
            )
        self.model = model
        self.port = MessagePassing()

    def forward(self, x: Tensor, edge_index: Tensor, **options: Any) -> Any:
        """Outputs of the model, every edge counted by its mask."""
        mask = self.port._edge_mask if self.port.explain else None
        if mask is None:
            return self.model(x, edge_index, **options)
        share = mask.sigmoid() if self.port._apply_sigmoid else mask
        given = options.pop("edge_weight", None)
        if given is not None:
            share = share * given
        return self.model(x, edge_index, edge_weight=share, **options)


def explainable(model: GraphModel) -> Explainable:
    """``model`` with a place for edge masks."""
    return Explainable(model)
