"""All workers in this process, one turn at a time in an order drawn from a seed: exact and
repeatable."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from sheafdeq.distributed.engine import PartSource, failure, loaded, versions
from sheafdeq.distributed.mail import FaultyMail, Mail, MemoryMail, PostOffice
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.worker import Worker
from sheafdeq.distributed.workers import WorkerOptions, Workers
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import SheafDEQError, WorkerError

__all__ = ["InProcess"]


class InProcess(Workers):
    """``weights``: how often a part gets a turn, compared with the others (0.02: fifty times
    slower)."""

    name = "in-process"

    def __init__(
        self,
        parts: Sequence[PartSource],
        model: EquilibriumModel,
        *,
        seed: int = 0,
        weights: Mapping[int, float] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(parts, **options)
        self.parts, self.model = [loaded(part) for part in parts], model
        self.draw = random.Random(seed)
        self.office = PostOffice()
        self.workers: list[Worker | None] = [None] * self.count
        self.events: list[tuple[int, Message]] = []
        self.weights = [float((weights or {}).get(number, 1.0)) for number in range(self.count)]

    def start(self) -> None:
        """Make the workers."""
        for number in range(self.count):
            self.revive(number)

    def connect(self, sizes: Sequence[dict[str, Any]], width: int, dtype: str) -> None:
        """Memory needs no preparation."""

    def tell(self, part: int, message: Message) -> None:
        """Messages are encoded and decoded as over any other engine."""
        worker = self.workers[part]
        if worker is not None:
            worker.tell(Message.decode(message.encode()))

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """Give turns until somebody reports; nothing after many idle turns."""
        for _ in range(200 * self.count):
            if self.events:
                break
            alive = [number for number in range(self.count) if self.workers[number] is not None]
            if not alive:
                break
            number = self.draw.choices(alive, [self.weights[k] for k in alive])[0]
            self._turn(number)
        events, self.events = self.events, []
        return events

    def _turn(self, number: int) -> None:
        worker = self.workers[number]
        assert worker is not None
        try:
            for report in worker.turn():
                self.events.append((number, Message.decode(report.encode())))
        except (SheafDEQError, RuntimeError, ValueError, TypeError) as error:
            self.workers[number] = None
            self.events.append((number, failure(number, error)))

    def revive(self, part: int) -> None:
        """A new worker with the same boxes."""
        if self.workers[part] is not None:
            raise WorkerError(f"part {part} has a worker already")
        mail: Mail = MemoryMail(self.office, part)
        if not self.faults.none:
            mail = FaultyMail(mail, self.faults, part)
        self.workers[part] = Worker(
            self.parts[part], copy.deepcopy(self.model), mail, resend_seconds=0.0
        )
        self.events.append((part, Message("hello", versions())))

    def kill(self, part: int) -> None:
        """Forget the worker; its boxes stay."""
        if self.workers[part] is not None:
            self.workers[part] = None
            self.events.append((part, Message("died")))

    def stop(self) -> None:
        """Nothing is running."""
        self.workers = [None] * self.count
