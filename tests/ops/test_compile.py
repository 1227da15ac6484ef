"""``torch.compile`` of the step: offered on any device, held against the eager step on the CPU."""

from __future__ import annotations

import pytest
import torch

from ops.test_sheaf_step import (
    disagreement,
    random_graph,
    sheaf_step,
    sheaf_step_reference,
    step_arguments,
    value_and_gradients,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_step_agrees() -> None:
    graph = random_graph(60, 300, 1)
    tensors = step_arguments(graph, 3, 4, 6)
    layout = graph.edges

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        return sheaf_step(*inputs, None, 1.3, 2.0, True, layout, 3, 4)  # type: ignore[arg-type]

    try:
        compiled = torch.compile(step)
        ours = value_and_gradients(compiled, tensors[:12])
    except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:
        if "compiler" in str(error).lower():
            pytest.skip("PyTorch finds no C++ compiler here")
        raise
    theirs = value_and_gradients(sheaf_step_reference, tensors, 1.3, 2.0, True, layout, 3, 4)
    assert disagreement(ours, theirs) < 1e-11
