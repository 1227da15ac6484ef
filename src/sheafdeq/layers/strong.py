"""What the models share whose guaranteed rate is chosen: a gate, its shift, and a budget."""

from __future__ import annotations

from typing_extensions import Unpack

from sheafdeq.distances import THOMPSON
from sheafdeq.equilibrium import EquilibriumModel, Solving
from sheafdeq.layers.gates import gate_by_name

__all__ = ["StrongModel", "StrongOptions"]


class StrongOptions(Solving, total=False):
    """The options of every :class:`StrongModel`, where its constructor explains them."""

    shift: float
    gate: str
    rate: float
    gain: float
    edge_dim: int | None


class StrongModel(EquilibriumModel):
    """A strongly subhomogeneous update, whose sensitivity to the state keeps a budget.

    Args:
        shift: beta; large shifts leave a larger budget.
        gate: ``"tanh"``, ``"rational"`` or ``"balance"`` (:mod:`sheafdeq.layers.gates`).
        rate: the guaranteed rate, between m(beta) and 1; it fixes the budget.
        gain: factor on the Xavier values of the last mixing, so that y+- start near one.
        edge_dim: width of the edge features; None without.
        solving: ``steps``, ``solver`` and ``gradient``, as for every equilibrium model;
            ``gradient="implicit"`` is well posed for every weight.
    """

    guaranteed = True
    distance = THOMPSON  # states are positive

    def __init__(
        self,
        *,
        shift: float = 1.6,
        gate: str = "rational",
        rate: float = 0.95,
        gain: float = 1.0,
        edge_dim: int | None = None,
        **solving: Unpack[Solving],
    ) -> None:
        super().__init__(**solving)
        self.gate = gate_by_name(gate)
        self.shift = self.gate.checked_shift(shift)
        self.rate, self.gain = self.gate.checked_rate(rate, self.shift), float(gain)
        self.edge_dim = edge_dim or None

    @property
    def budget(self) -> float:
        """rate / m(beta) - 1: k_0, the Lipschitz constant every logit of the sheaf keeps
        (Theorem 22); D, the sensitivity the attention may have (Theorem 24)."""
        return self.rate / self.gate.coefficient(self.shift).upper - 1.0

    def guaranteed_rate(self) -> float:
        """The proven contraction rate in Thompson's metric, for these and all other weights
        (Theorems 22 and 24)."""
        return self.rate
