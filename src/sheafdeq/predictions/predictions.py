"""What is proved of the answers of one model on one graph, node by node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Predictions", "Scores"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Labels of the equilibrium, for the stored weights in exact arithmetic.

    A label is *proved* when, at the exact equilibrium for every choice of features within
    ``radius`` of the stored ones (in the maximum norm), its logit is above all others. Where
    ``delays`` holds, every asynchronous schedule with bounded delays ends at that equilibrium, so
    the proved labels are the labels it reaches.
    """

    model: str
    graph: str
    radius: float
    label: Tensor  # (n,) int64, of the state that was examined
    proved: Tensor  # (n,) bool
    margin: Tensor  # (n,) lead over every other label at the equilibrium, at least; nan: unknown
    lead: Tensor  # (n,) lead at the state that was examined
    distance: Tensor  # (n,) from state to equilibrium at most, largest entry; inf: unknown
    why: tuple[str, ...]  # (n,) "" where proved, else tie, rate or coupling and what it means
    grounds: str  # the theorem, in words
    reason: str | None  # why nothing is enclosed at all; None when every node has its bound
    delays: bool  # whether the statement holds under bounded delays too
    starts: str  # from where the equilibrium is reached, in words
    levels: tuple[dict[str, float], ...]  # residual, rate, gain and largest bound of every level
    state: Tensor  # the state that was examined
    reach: Tensor | None  # bounds of all its entries in log coordinates
    seconds: float
    processor_seconds: float  # of all threads together: what it costs on a busy machine, too
    coordinates: str = "log"  # of distance and reach: log of an entry, or plain

    @property
    def share(self) -> float:
        """The share of all nodes whose label is proved (1 on a graph without nodes)."""
        return float(self.proved.double().mean()) if self.proved.numel() else 1.0

    def scores(self, target: Tensor, mask: Tensor | None = None) -> Scores:
        """Counts over the nodes of ``mask`` (all by default) with their true labels ``target``."""
        chosen = torch.ones_like(self.proved) if mask is None else mask
        right = (self.label == target) & chosen
        return Scores(
            int(chosen.sum()),
            int((self.proved & chosen).sum()),
            int((self.proved & right).sum()),
            int(right.sum()),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the states, with plain numbers."""

        def numbers(values: Tensor) -> list[float | None]:
            return [float(f"{x:.6g}") if abs(x) < 1e300 else None for x in values.tolist()]

        return {
            "model": self.model,
            "graph": self.graph,
            "radius": self.radius,
            "grounds": self.grounds,
            "delays": self.delays,
            "starts": self.starts,
            "coordinates": self.coordinates,
            "reason": self.reason,
            "nodes": self.label.numel(),
            "proved": int(self.proved.sum()),
            "share": self.share,
            "levels": list(self.levels),
            "label": self.label.tolist(),
            "is_proved": self.proved.tolist(),
            "margin": numbers(self.margin.nan_to_num(nan=torch.inf)),
            "distance": numbers(self.distance),
            "why": list(self.why),
            "seconds": round(self.seconds, 3),
            "processor_seconds": round(self.processor_seconds, 3),
        }

    def report(self) -> str:
        """A few lines for people."""
        n = self.label.numel()
        lines = [f"{int(self.proved.sum())} of {n} labels proved ({100 * self.share:.2f} %)"]
        if self.radius:
            lines[0] += f" for all features within {self.radius:g} (maximum norm)"
        if self.reason is not None:
            lines.append(f"  not enclosed: {self.reason}")
        else:
            widest = float(self.distance.max()) if n else 0.0
            unit = "log of an entry" if self.coordinates == "log" else "an entry"
            lines.append(f"  distance to the equilibrium at most {widest:.2g} ({unit})")
            if bool(self.proved.any()):
                least = float(self.margin[self.proved].min())
                lines.append(f"  smallest proved margin {least:.3g}")
            counts = Counter(text.split(":")[0] for text in self.why if text)
            for name, count in sorted(counts.items()):
                first = next(i for i, text in enumerate(self.why) if text.startswith(name))
                lines.append(f"  {count} not proved ({name}), e.g. node {first}: {self.why[first]}")
        lines.append(f"  by {self.grounds}")
        lines.append(
            f"  every schedule with bounded delays ends with the proved labels, from {self.starts}"
            if self.delays
            else "  nothing is proved about late messages"
            + (f"; synchronous iteration from {self.starts}" if self.starts else "")
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class Scores:
    """Counts over scored nodes."""

    nodes: int
    proved: int
    proved_right: int  # proved, and the true label
    right: int

    @property
    def share(self) -> float:
        """Proved among the scored nodes."""
        return self.proved / self.nodes if self.nodes else 1.0

    def to_json(self) -> dict[str, Any]:
        """Counts and the share."""
        return {
            "nodes": self.nodes,
            "proved": self.proved,
            "proved_right": self.proved_right,
            "right": self.right,
            "share": self.share,
        }
