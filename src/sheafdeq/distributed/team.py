"""The driver's view of all workers: start them, talk to all, notice who died, bring them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sheafdeq.distributed.engine import Engine, check_versions
from sheafdeq.distributed.journal import Journal
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.yardstick import Yardstick
from sheafdeq.errors import DataError, InputError, WorkerError
from sheafdeq.solvers import Solution

__all__ = ["Outcome", "Team"]

MOST_RESTARTS = 1000
"""Restarts of one part before the run is given up: something kills it every time."""
MOST_EARLY_RESTARTS = 5
_ERRORS = {"InputError": InputError, "DataError": DataError}
Watcher = Callable[["Team"], None]


class Team:
    """All workers of one engine. Use it as a context manager: leaving it ends them.

    ``watch`` is called between reports, to show progress or to disturb. ``silence``: seconds
    without any report after which the run is given up.
    """

    def __init__(
        self, engine: Engine, *, watch: Watcher | None = None, silence: float = 300.0
    ) -> None:
        self.engine, self.watch, self.silence = engine, watch, silence
        self.count = engine.count
        self.journal = Journal(self.count)
        self.prepared: list[dict[str, Any]] = [{} for _ in range(self.count)]
        self.preparations: list[Message | None] = [None] * self.count
        self.solve = 0
        self.connected: tuple[int, str] | None = None
        self.last_report = time.monotonic()

    def __enter__(self) -> Team:
        try:
            self.engine.start()
            self._gather("hello")
        except BaseException:
            self.engine.stop()
            raise
        self.journal.event("started", parts=self.count, engine=self.engine.name)
        return self

    def __exit__(self, *problem: object) -> None:
        self.engine.stop()

    # ------------------------------------------------------------------ talking

    def tell_all(self, message: Message) -> None:
        """The same command for everyone."""
        for part in range(self.count):
            self.engine.tell(part, message)

    def listen(self) -> Iterator[tuple[int, Message]]:
        """Reports as they come. Failures raise; the dead are replaced, which is reported as
        ``died``, then ``resumed``."""
        if self.watch is not None:
            self.watch(self)
        for part, message in self.engine.hear(0.2):
            self.last_report = time.monotonic()
            self.journal.facts(part, message.fields)
            if message.kind == "hello":
                check_versions(part, message.fields)
            elif message.kind == "failed":
                kind = _ERRORS.get(message.fields["type"], WorkerError)
                detail = (
                    message.fields["text"]
                    if kind is not WorkerError
                    else f"{message.fields['type']}: {message.fields['text']}"
                )
                raise kind(f"part {part}: {detail}")
            elif message.kind == "died":
                self._replace(part)
            yield part, message
        if time.monotonic() - self.last_report > self.silence:
            raise WorkerError(
                f"no worker has reported for {self.silence:g} seconds: the run is given up"
            )

    def _replace(self, part: int) -> None:
        self.journal.died(part)
        if self.journal.restarts[part] > MOST_RESTARTS:
            raise WorkerError(
                f"the worker of part {part} died {MOST_RESTARTS} times: the run is given up"
            )
        preparation = self.preparations[part]
        if preparation is None and self.journal.restarts[part] > MOST_EARLY_RESTARTS:
            raise WorkerError(
                f"the worker of part {part} died {MOST_EARLY_RESTARTS} times before it had any "
                "work: look at its machine's memory"
            )
        self.engine.revive(part)
        if preparation is not None:
            self.engine.tell(part, preparation)
            self.engine.tell(part, Message("resume"))

    def neighbours_publish(self, part: int) -> None:
        """Where letters can be lost, a worker that came back needs those of its neighbours
        again."""
        if self.engine.lossy:
            for other in range(self.count):
                if other != part:
                    self.engine.tell(other, Message("publish"))

    def _gather(self, kind: str) -> list[Message]:
        """One report of this kind from every part (a revived one sends it again)."""
        found: dict[int, Message] = {}
        while len(found) < self.count:
            for part, message in self.listen():
                if message.kind == kind and message.fields.get("solve", self.solve) == self.solve:
                    found[part] = message
        return [found[part] for part in range(self.count)]

    # ------------------------------------------------------------------ solving

    def prepare(
        self,
        *,
        damping: float,
        undamped: int,
        distance: str,
        parameters: dict[str, Tensor] | None = None,
        yardstick: Yardstick | None = None,
        rows: list[Tensor] | None = None,
        start: Tensor | None = None,
        training: bool = False,
        gradient: str | None = None,
        seed: int | None = None,
        slowdown: Mapping[int, float] | None = None,
    ) -> None:
        """Begin a solve: everyone computes its context and start.

        ``rows[p]``: the nodes of part p in the whole graph, needed to divide ``start`` and the
        yardstick's weights. ``gradient``: record the pass for an ``unrolled`` or ``implicit``
        gradient. ``seed``: of what parts draw while training. ``slowdown[p]``: part p takes so many
        times as long as it needs.
        """
        for part in slowdown or {}:
            if not 0 <= part < self.count:
                raise InputError(
                    f"there is no part {part} to slow down: parts are numbered 0 to "
                    f"{self.count - 1}"
                )
        self.solve += 1
        fields: dict[str, Any] = {
            "solve": self.solve,
            "damping": damping,
            "undamped": undamped,
            "distance": distance,
            "training": training,
            "gradient": gradient,
            "seed": seed,
            "metric": None if yardstick is None else yardstick.metric,
            "levels": 1 if yardstick is None else yardstick.levels,
        }
        shared = {f"model/{name}": tensor for name, tensor in (parameters or {}).items()}
        for part in range(self.count):
            tensors = dict(shared)
            if start is not None and rows is not None:
                tensors["start"] = start[rows[part]]
            if yardstick is not None and yardstick.weights is not None and rows is not None:
                tensors["weights"] = yardstick.weights[rows[part]]
            factor = float((slowdown or {}).get(part, 1.0))
            message = self.preparations[part] = Message(
                "prepare", {**fields, "slowdown": factor}, tensors
            )
            self.engine.tell(part, message)
        for part, message in enumerate(self._gather("prepared")):
            self.prepared[part] = message.fields
            self.journal.sizes[part] = message.fields["sizes"]
        shape = (self.prepared[0]["width"], self.prepared[0]["dtype"])
        if shape != self.connected:
            self.connected = shape
            sizes = [{"own": facts["own"], "readers": facts["readers"]} for facts in self.prepared]
            self.engine.connect(sizes, *shape)

    @property
    def num_graphs(self) -> int:
        """Graphs of the batch."""
        return int(self.prepared[0]["graphs"])

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""
        result: torch.dtype = getattr(torch, self.prepared[0]["dtype"])
        return result

    def assemble(self, pieces: dict[int, Message], what: Sequence[str]) -> dict[str, Tensor]:
        """``outputs`` and ``state`` of all nodes, in the order of the whole graph."""
        if not what:
            return {}
        nodes = torch.cat([pieces[part].tensors["nodes"] for part in range(self.count)])
        result = {}
        for name in what:
            rows = torch.cat([pieces[part].tensors[name] for part in range(self.count)])
            result[name] = torch.empty_like(rows)
            result[name][nodes] = rows
        return result


@dataclass(frozen=True, eq=False)
class Outcome:
    """The end of a distributed solve. The value of the solution has no rows: states are in
    ``tensors`` if asked for."""

    solution: Solution
    metric: Tensor | None  # (levels,) residuals in the metric of the yardstick
    tensors: dict[str, Tensor]
