"""Observations of trained recurrences: do they settle, from everywhere, and how fast?"""

from __future__ import annotations

from sheafdeq.diagnostics.multistart import Agreement, Band, MultiStart, multistart, random_start
from sheafdeq.diagnostics.residuals import Settling, Trajectory, continue_iteration, observed_rate
from sheafdeq.diagnostics.spectrum import Spectrum, spectral_radius

__all__ = [
    "Agreement",
    "Band",
    "MultiStart",
    "Settling",
    "Spectrum",
    "Trajectory",
    "continue_iteration",
    "multistart",
    "observed_rate",
    "random_start",
    "spectral_radius",
]
