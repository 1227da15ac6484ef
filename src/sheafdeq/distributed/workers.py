"""What engines that start workers of their own keep of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from sheafdeq.distributed.engine import PartSource
from sheafdeq.distributed.mail import NO_FAULTS, Faults

__all__ = ["WorkerOptions", "Workers"]


class WorkerOptions(TypedDict, total=False):
    """The options of every :class:`Workers`."""

    threads: int
    faults: Faults


class Workers:
    """How many there are, and how they work.

    Args:
        parts: one for each worker.
        threads: of torch, in every worker.
        faults: what happens to letters on purpose.
    """

    def __init__(
        self, parts: Sequence[PartSource], *, threads: int = 1, faults: Faults = NO_FAULTS
    ) -> None:
        self.count, self.threads, self.faults = len(parts), threads, faults
        self.lossy = not faults.none
