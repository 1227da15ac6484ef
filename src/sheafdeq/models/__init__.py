"""Models. Each file holds one; all share the contract of :mod:`sheafdeq.recurrence`."""

from __future__ import annotations

from sheafdeq.models.operator import SheafOperator
from sheafdeq.models.sheaf import CellularSheaf
from sheafdeq.models.sheaf_deq import SheafDEQ

__all__ = ["CellularSheaf", "SheafDEQ", "SheafOperator"]
