"""What a rule is asked: a model on a graph, prepared in float64, and how hard to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["EFFORTS", "Effort", "Problem"]


@dataclass(frozen=True)
class Effort:
    """How hard to try. More effort finds more proofs and more second equilibria; it never changes
    what counts as one."""

    name: str
    steps: int  # of each solve
    starts: int  # tried in the search for a second equilibrium
    ball_evaluations: int  # enclosures spent on the largest ball, for each choice of weights
    box_rounds: int  # enclosures spent on shrinking the global box
    # spectral norms of all node blocks beside the entrywise bound; for certified models the
    # measured rates
    block_norms: bool


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("quick", 600, 3, 5, 8, False),
        Effort("normal", 1500, 7, 8, 40, True),
        Effort("thorough", 6000, 21, 14, 200, True),
    )
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A model and a graph in float64, prepared."""

    model: EquilibriumModel
    graph: Graph
    context: Any
    equilibrium: Tensor | None  # a state to examine, if the caller has one
    effort: Effort
    seed: int

    @property
    def title(self) -> str:
        """The model's name."""
        return type(self.model).__name__

    @property
    def place(self) -> str:
        """The graph in words."""
        return repr(self.graph)
