"""What a model is called with: tensors, as in PyG, or one object that holds them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.errors import InputError

__all__ = ["given_graph"]


def given_graph(x: Any, edge_index: Any, edge_attr: Any, batch: Any, edge_weight: Any) -> Graph:
    """The graph of tensors, or of one object that holds them."""
    if edge_index is not None and (isinstance(x, Tensor) or not hasattr(x, "x")):
        return Graph.build(x, edge_index, edge_attr, batch, edge_weight=edge_weight)
    beside = {
        "edge_index": edge_index,
        "edge_attr": edge_attr,
        "batch": batch,
        "edge_weight": edge_weight,
    }
    given = [name for name, value in beside.items() if value is not None]
    if isinstance(x, Tensor):
        raise InputError("edge_index is missing: call model(x, edge_index) or model(data)")
    if given:
        raise InputError(
            f"a {type(x).__name__} brings its own edges: leave {' and '.join(given)} out, or give "
            "x as a tensor"
        )
    return Graph.of(x)
