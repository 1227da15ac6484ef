"""When an iteration stops, and what its end is called."""

from __future__ import annotations

from dataclasses import dataclass

from sheafdeq.distances import RELATIVE_ENTRY, Distance, distance_by_name
from sheafdeq.errors import InputError

__all__ = ["Stopping"]


@dataclass(frozen=True)
class Stopping:
    """When to stop, and what to call it.

    ``tolerance=None`` never reports convergence. ``stop_early=False`` runs exactly ``steps``
    (the paper's finite horizon) and judges only the end. ``stagnation_window`` steps without one
    per cent of progress end a graph when stopping early. ``trace=False`` measures only the last
    step (training speed). ``distance=None`` leaves the choice to the model that is solved
    (Thompson's where states are positive); without a model it is ``relative-entry``.
    ``probe=False`` takes residuals at their word, without asking how far another rounding of the
    state moves its image.
    """

    steps: int
    tolerance: float | None = 1e-6
    stop_early: bool = False
    distance: Distance | None = None
    stagnation_window: int = 200
    divergence_factor: float = 1e8
    trace: bool = True
    probe: bool = True

    def __post_init__(self) -> None:
        if self.distance is not None:
            object.__setattr__(self, "distance", distance_by_name(self.distance))
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise InputError(f"steps must be a non-negative integer, got {self.steps!r}")
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"tolerance must be positive or None, got {self.tolerance!r}")
        if self.stop_early and self.tolerance is None:
            raise InputError(
                "stopping early needs a tolerance; give one, or run a fixed number of steps"
            )
        if self.stagnation_window < 2:
            raise InputError(
                f"stagnation_window must be at least 2, got {self.stagnation_window!r}"
            )

    @property
    def measure(self) -> Distance:
        """The distance residuals are measured in."""
        return RELATIVE_ENTRY if self.distance is None else self.distance
