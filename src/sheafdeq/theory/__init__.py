"""The mathematics of ``docs/theory.md`` as executable objects.

:mod:`.coefficients` (enclosures of the contraction coefficients), :mod:`.counterexample` (three equilibria inside the
paper's hypotheses), :mod:`.separation` (its Proposition 3.1).
"""

from sheafdeq.theory.counterexample import Counterexample, counterexample
from sheafdeq.theory.enclosure import Enclosure
from sheafdeq.theory.separation import SignedSeparation, signed_separation

__all__ = ["Counterexample", "Enclosure", "SignedSeparation", "counterexample", "signed_separation"]
