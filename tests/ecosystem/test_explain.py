"""PyG's explainers find the edges an equilibrium uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer

from sheafdeq import SheafCascade, SheafDEQ, SheafRelay, explainable
from sheafdeq.errors import InputError

# two components: nothing in the second one can matter for node 0
EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5], [1, 0, 2, 1, 4, 3, 5, 4]])
X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "make", [lambda: SheafDEQ(3, 2, steps=5), lambda: SheafCascade(3, 2, levels=2, level_steps=3)]
)
def test_a_mask_lies_on_the_edges_that_matter(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    explainer = Explainer(
        explainable(model),
        algorithm=GNNExplainer(epochs=15),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "node",
            "return_type": "raw",
        },
    )
    found = explainer(X, EDGES, index=0)
    assert found.edge_mask.shape == (8,)
    assert bool((found.edge_mask[4:] == 0).all())  # the other component
    assert bool((found.edge_mask[:2] > 0).all())
    assert found.node_mask.shape == X.shape


def test_without_a_mask_it_is_the_model_itself() -> None:
    torch.manual_seed(0)
    model = SheafDEQ(3, 2)
    wrapped = explainable(model)
    assert torch.equal(wrapped(X, EDGES), model(X, EDGES))
    assert set(wrapped.state_dict()) == {f"model.{name}" for name in model.state_dict()}
    with pytest.raises(InputError, match="no edge_weight"):
        explainable(SheafRelay(3, 2))
