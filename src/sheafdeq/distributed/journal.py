"""What happened in a distributed run: counts of every part, its course over wall time, deaths and
snapshots."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Journal"]

SUMMED = ("rounds", "sent", "resent", "sent_bytes", "read", "waited", "computed", "late")
LONGEST_COURSE = 400


class Journal:
    """Kept by the driver. Counts of a worker that died are those of its last report."""

    def __init__(self, parts: int) -> None:
        self.begun = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.sizes: list[dict[str, Any]] = [{} for _ in range(parts)]
        # counters of the worker that lives
        self.present: list[dict[str, Any]] = [{} for _ in range(parts)]
        self.past: list[list[dict[str, Any]]] = [[] for _ in range(parts)]  # of its predecessors
        self.courses: list[list[tuple[float, int, float | None, float]]] = [
            [] for _ in range(parts)
        ]
        self.restarts = [0] * parts
        self.memory: list[int | None] = [None] * parts

    def now(self) -> float:
        """Seconds since the journal was opened."""
        return time.monotonic() - self.begun

    def event(self, what: str, **facts: Any) -> None:
        """Write down one thing that happened now."""
        self.events.append({"seconds": round(self.now(), 4), "what": what, **facts})

    def died(self, part: int) -> None:
        """A worker is gone."""
        self.restarts[part] += 1
        self.past[part].append(self.present[part])
        self.present[part] = {}
        self.event("died", part=part)

    def facts(self, part: int, fields: dict[str, Any]) -> None:
        """A report with counters came in."""
        if "counters" not in fields:
            return
        self.present[part] = fields["counters"]
        self.memory[part] = fields.get("memory", self.memory[part])
        course = self.courses[part]
        waited = self.total(part, "waited")
        course.append(
            (round(self.now(), 4), int(fields["round"]), fields.get("residual"), round(waited, 4))
        )
        if len(course) > LONGEST_COURSE:  # keep the shape, at half the resolution
            del course[1:-1:2]

    def total(self, part: int, name: str) -> Any:
        """A count over all workers this part has had."""
        return sum(counters.get(name, 0) for counters in (*self.past[part], self.present[part]))

    def largest_staleness(self, part: int) -> int:
        """Measured at the reader, in rounds."""
        return max(
            (c.get("largest_staleness", 0) for c in (*self.past[part], self.present[part])),
            default=0,
        )

    def staleness(self) -> dict[str, int]:
        """Letters read, by staleness, all parts together."""
        histogram: dict[int, int] = {}
        for part in range(len(self.present)):
            for counters in (*self.past[part], self.present[part]):
                for age, count in counters.get("staleness", {}).items():
                    histogram[int(age)] = histogram.get(int(age), 0) + count
        return {str(age): count for age, count in sorted(histogram.items())}

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        parts = []
        for part in range(len(self.present)):
            totals = {name: self.total(part, name) for name in SUMMED}
            parts.append(
                {
                    **self.sizes[part],
                    **{
                        name: round(value, 4) if isinstance(value, float) else value
                        for name, value in totals.items()
                    },
                    "largest_staleness": self.largest_staleness(part),
                    "restarts": self.restarts[part],
                    "peak_memory_bytes": self.memory[part],
                    "course": [list(point) for point in self.courses[part]],
                }
            )
        return {
            "seconds": round(self.now(), 4),
            "restarts": sum(self.restarts),
            "largest_staleness": max((part["largest_staleness"] for part in parts), default=0),
            "late_reads": sum(part["late"] for part in parts),
            "messages": sum(part["sent"] for part in parts),
            "message_bytes": sum(part["sent_bytes"] for part in parts),
            "seconds_waiting": round(sum(part["waited"] for part in parts), 4),
            "staleness": self.staleness(),
            "parts": parts,
            "events": self.events,
        }
