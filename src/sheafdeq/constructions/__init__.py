"""Models built to show something (``docs/theory.md``): three equilibria inside the paper's
hypotheses, and its Proposition 3.1."""

from __future__ import annotations

from sheafdeq.constructions.counterexample import Counterexample, counterexample
from sheafdeq.constructions.separation import SignedSeparation, signed_separation

__all__ = ["Counterexample", "SignedSeparation", "counterexample", "signed_separation"]
