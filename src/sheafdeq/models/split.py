"""Gates: how a signed propagation enters an update without losing strong subhomogeneity.

Let p be a signed propagation of the positive state and g >= |p| the same propagation with every coefficient replaced by a
nonnegative majorant. Then y+ = (g + p)/2 gathers what excites and y- = (g - p)/2 what inhibits a coordinate, both with
nonnegative coefficients, and

    T(H) = beta + B + gate(y+, y-)

contracts Thompson's metric with the gate's coefficient m(beta) when the coefficients are fixed, whatever their size and sign
(``docs/theory.md``, Theorem 18 and Corollary 19). ``tanh(p)``, the published activation, has no such bound: the entries of its
Jacobian can be large while p itself cancels.

    tanh       tanh y+ - tanh y-                  close to the published tanh while y+- are small
    rational   y+/(1 + y+) - y-/(1 + y-)          the smallest coefficient, the flattest gate
    balance    p / (eps + g)                      does not fall silent when weights are large
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sheafdeq.errors import InputError
from sheafdeq.theory.coefficients import m, m_balance, m_rational
from sheafdeq.theory.enclosure import Enclosure

__all__ = ["GATES", "Gate", "gate_by_name"]

BALANCE_FLOOR = 1e-2
"""eps of the balance gate."""


@dataclass(frozen=True)
class Gate:
    """A gate by its action on (p, g) and its coefficient.

    ``kernel`` is the name by which the native kernel knows the same action (``floor`` is eps there); a gate of one's own leaves
    it empty and is applied in PyTorch.
    """

    name: str
    apply: Callable[[Tensor, Tensor], Tensor]
    coefficient: Callable[[float], Enclosure]
    kernel: str | None = None
    floor: float = 0.0

    def checked_shift(self, shift: float, sensitivity: float = 1.0) -> float:
        """``shift`` as a float, if ``sensitivity * m(shift)`` is proved to be below one."""
        value = float(shift)
        if not (math.isfinite(value) and value > 1.0):
            raise InputError(f"shift must be finite and above 1 (it keeps the state positive), got {shift!r}")
        rate = sensitivity * self.coefficient(value).upper
        if not rate < 1.0:
            raise InputError(f"shift {shift!r} gives the {self.name} gate the rate {rate:.4f}, not below 1: take a larger shift")
        return value

    def checked_rate(self, rate: float, shift: float) -> float:
        """``rate`` as a float, if it leaves room above m(shift), the rate of the gate when the maps stand still."""
        still = self.coefficient(shift).upper
        if not still < rate < 1:
            raise InputError(f"rate must lie between m(beta) = {still:.4f} (no adaptivity) and 1, got {rate!r}; a larger shift lowers m")
        return float(rate)


def _tanh(p: Tensor, g: Tensor) -> Tensor:
    return torch.tanh(0.5 * (g + p)) - torch.tanh(0.5 * (g - p))


def _rational(p: Tensor, g: Tensor) -> Tensor:
    # a/(1+a) - b/(1+b) = (a - b) / ((1+a)(1+b)), without cancellation
    return p / ((1.0 + 0.5 * (g + p)) * (1.0 + 0.5 * (g - p)))


def _balance(p: Tensor, g: Tensor) -> Tensor:
    return p / (BALANCE_FLOOR + g)


GATES = {
    gate.name: gate
    for gate in (
        Gate("tanh", _tanh, m, "tanh"),
        Gate("rational", _rational, m_rational, "rational"),
        Gate("balance", _balance, m_balance, "balance", BALANCE_FLOOR),
    )
}


def gate_by_name(name: str) -> Gate:
    """Look a gate up."""
    if name not in GATES:
        raise InputError(f"unknown gate {name!r}: choose one of {', '.join(sorted(GATES))}")
    return GATES[name]
