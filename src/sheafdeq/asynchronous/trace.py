"""What a run really did: how stale its messages were and how much it worked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Trace"]


@dataclass
class Trace:
    """Counted while a schedule runs.

    *Staleness* counts the messages that were read, by their delay in slots. *Work* is the mean
    number of updates a node has made, the horizontal axis of every asynchronous figure (one
    synchronous iteration is work 1).
    """

    num_nodes: int
    # delays[k]: messages read k slots old
    delays: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    updates: Tensor = field(init=False)  # (n,) updates of every node
    slots: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        self.updates = torch.zeros(self.num_nodes, dtype=torch.int64)

    def see(self, active: Tensor, delay: Tensor) -> None:
        """Count one slot."""
        counts = np.bincount(delay.numpy(), minlength=len(self.delays))
        if len(counts) > len(self.delays):
            self.delays = np.pad(self.delays, (0, len(counts) - len(self.delays)))
        self.delays += counts
        self.updates[active] += 1
        self.total += len(active)
        self.slots += 1

    @property
    def work(self) -> float:
        """Mean updates a node."""
        return self.total / self.num_nodes if self.num_nodes else 0.0

    @property
    def messages(self) -> int:
        """Messages read."""
        return int(self.delays.sum())

    @property
    def mean_delay(self) -> float:
        """Mean staleness of the messages that were read, in slots."""
        return float(self.delays @ np.arange(len(self.delays))) / max(self.messages, 1)

    @property
    def largest_delay(self) -> int:
        """Largest staleness that was read, in slots."""
        used = np.flatnonzero(self.delays)
        return int(used[-1]) if len(used) else 0

    def merged(self, other: Trace) -> Trace:
        """Both runs counted together."""
        length = max(len(self.delays), len(other.delays))
        result = Trace(self.num_nodes)
        result.delays = np.pad(self.delays, (0, length - len(self.delays))) + np.pad(
            other.delays, (0, length - len(other.delays))
        )
        result.updates = self.updates + other.updates
        result.slots, result.total = self.slots + other.slots, self.total + other.total
        return result

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "slots": self.slots,
            "work": self.work,
            "updates": {"min": int(self.updates.min()), "max": int(self.updates.max())}
            if self.num_nodes
            else None,
            "messages": self.messages,
            "staleness": {
                "mean": self.mean_delay,
                "max": self.largest_delay,
                "histogram": self.delays.tolist(),
            },
        }
