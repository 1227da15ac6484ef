"""What ships for testing models against the shared contract."""

from __future__ import annotations

from sheafdeq.testing.contracts import (
    ContractViolation,
    Finding,
    ModelContract,
    check_model,
    example_graphs,
)
from sheafdeq.testing.problems import LinearAverage, constant_sheaf_deq, two_node_graph

__all__ = [
    "ContractViolation",
    "Finding",
    "LinearAverage",
    "ModelContract",
    "check_model",
    "constant_sheaf_deq",
    "example_graphs",
    "two_node_graph",
]
