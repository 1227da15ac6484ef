"""Gates: how a signed propagation enters an update without losing strong subhomogeneity.

Let p be a signed propagation of the positive state and g >= |p| the same propagation with every
coefficient replaced by a nonnegative majorant. Then y+ = (g + p)/2 gathers what excites and y- = (g
- p)/2 what inhibits a coordinate, both with nonnegative coefficients, and

    T(H) = beta + B + gate(y+, y-)

**y+ and y- are computed as what they are: sums of nonnegative terms.** As differences of the
rounded p and g they lose everything when weights are large (g and p near 1e6, their difference near
1: float32 keeps a tenth of it). A sum of nonnegative terms keeps its relative precision whatever
the weights, and the gates turn that into the same precision of T. With A = A+ - A- and W = W+ - W-
into positive and negative parts,  y+ = A+ H W+ + A- H W-  and  y- = A+ H W- + A- H W+
(:func:`~sheafdeq.ops.gated_step.two_parts`).

contracts Thompson's metric with the gate's coefficient m(beta) when the coefficients are fixed,
whatever their size and sign (``docs/theory.md``, Theorem 18 and Corollary 19). ``tanh(p)``, the
published activation, has no such bound: the entries of its Jacobian can be large while p itself
cancels.

    tanh       tanh y+ - tanh y-                  close to the published tanh while y+- are small
    rational   y+/(1 + y+) - y-/(1 + y-)          the smallest coefficient, the flattest gate
    balance    (y+ - y-) / (eps + y+ + y-)        does not fall silent when weights are large
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
ROUNDING_SLACK = 1e-4
"""The budget of a model with a guaranteed rate is met with this much to spare, so that rounding in
its rescaled weights cannot exceed it."""


@dataclass(frozen=True)
class Gate:
    """A gate by its action on (y+, y-), its coefficient and its slope.

    ``slope`` is the supremum of |d phi / dp| + |d phi / dg| over |p| <= g (max sech^2 and max (1 +
    a)^-2 for the split gates, (eps + 2g) / (eps + g)^2 for balance); None where none is known.
    ``kernel`` is the name by which the native kernel knows the same action (``floor`` is eps
    there); a gate of one's own leaves it empty and is applied in PyTorch.
    """

    name: str
    of_parts: Callable[[Tensor, Tensor], Tensor]
    coefficient: Callable[[float], Enclosure]
    slope: float | None = None
    kernel: str | None = None
    floor: float = 0.0

    def apply(self, p: Tensor, g: Tensor) -> Tensor:
        """The gate as a function of p and g >= |p|. Exact arithmetic only: steps use
        :attr:`of_parts`, which does not cancel."""
        return self.of_parts(0.5 * (g + p), 0.5 * (g - p))

    def checked_shift(self, shift: float, sensitivity: float = 1.0) -> float:
        """``shift`` as a float, if ``sensitivity * m(shift)`` is proved to be below one."""
        value = float(shift)
        if not (math.isfinite(value) and value > 1.0):
            raise InputError(
                f"shift must be finite and above 1 (it keeps the state positive), got {shift!r}"
            )
        rate = sensitivity * self.coefficient(value).upper
        if not rate < 1.0:
            raise InputError(
                f"shift {shift!r} gives the {self.name} gate the rate {rate:.4f}, "
                "not below 1: take a larger shift"
            )
        return value

    def checked_rate(self, rate: float, shift: float) -> float:
        """``rate`` as a float, if it leaves room above m(shift), the rate of the gate when the maps
        stand still."""
        still = self.coefficient(shift).upper
        if not still < rate < 1:
            raise InputError(
                f"rate must lie between m(beta) = {still:.4f} (no adaptivity) and 1, "
                f"got {rate!r}; a larger shift lowers m"
            )
        return float(rate)


def _bounded(part: Tensor) -> Tensor:
    """Infinite parts (an overflow in the sums) count as very large ones: gates saturate long
    before."""
    return part.clamp(max=torch.finfo(part.dtype).max / 8)


def _tanh(plus: Tensor, minus: Tensor) -> Tensor:
    return torch.tanh(plus) - torch.tanh(minus)


def _rational(plus: Tensor, minus: Tensor) -> Tensor:
    # a/(1+a) - b/(1+b) = (a - b) / ((1+a)(1+b)), without cancellation; two divisions, because the
    # product may overflow
    plus, minus = _bounded(plus), _bounded(minus)
    return (plus - minus) / (1.0 + plus) / (1.0 + minus)


def _balance(plus: Tensor, minus: Tensor) -> Tensor:
    plus, minus = _bounded(plus), _bounded(minus)
    return (plus - minus) / (BALANCE_FLOOR + plus + minus)


GATES = {
    gate.name: gate
    for gate in (
        Gate("tanh", _tanh, m, 1.0, "tanh"),
        Gate("rational", _rational, m_rational, 1.0, "rational"),
        Gate("balance", _balance, m_balance, 1.0 / BALANCE_FLOOR, "balance", BALANCE_FLOOR),
    )
}


def gate_by_name(name: str) -> Gate:
    """Look a gate up."""
    if name not in GATES:
        raise InputError(f"unknown gate {name!r}: choose one of {', '.join(sorted(GATES))}")
    return GATES[name]
