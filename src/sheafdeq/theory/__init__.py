"""Proved numbers: enclosures of the contraction coefficients of ``docs/theory.md``, in directed
decimal arithmetic. Needs neither torch nor a model."""

from __future__ import annotations

from sheafdeq.theory.enclosure import Enclosure

__all__ = ["Enclosure"]
