"""The mathematics of ``docs/theory.md`` as executable objects.

:mod:`.coefficients` (enclosures of the contraction coefficients; needs neither torch nor a model),
:mod:`.counterexample` (three
equilibria inside the paper's hypotheses), :mod:`.separation` (its Proposition 3.1).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sheafdeq.theory.enclosure import Enclosure

if TYPE_CHECKING:
    from sheafdeq.theory.counterexample import Counterexample
    from sheafdeq.theory.separation import SignedSeparation, signed_separation

__all__ = ["Counterexample", "Enclosure", "SignedSeparation", "signed_separation"]

_HOME = {
    "Counterexample": "counterexample",
    "SignedSeparation": "separation",
    "signed_separation": "separation",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch and the models only when it is asked for, so that the coefficients stay
    light."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
