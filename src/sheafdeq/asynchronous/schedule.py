"""Who updates when, and how old the messages are: partial asynchronism as replayable data.

Time runs in slots t = 0, 1, 2, ... In slot t every node i of the active set updates once,

    H_i(t + 1) = T_i( H_i(t), { H_j(t - delay_{j -> i}(t)) : j -> i } ),        H_i(t + 1) = H_i(t)
    for all others.

A schedule is *partially asynchronous* with update window s and delay bound tau when, for all i, all
neighbours j and all t,

    (1) node i updates at least once in {t, ..., t + s - 1};
    (2) 0 <= delay_{j -> i}(t) <= tau and delay <= t (there is no state before the start);
    (3) node i reads its own state fresh, through a self-loop too.

:class:`Schedule` holds the parameters and a seed; the slots are a pure function of these and of the
edges, drawn slot by slot
from a counter-based generator (Philox keyed by seed, slot and purpose), so memory does not grow and
any run can be repeated.
:class:`Recording` is a stretch of slots written out in full (to store, edit or replay).
:class:`Conditions` checks the
three conditions, slot by slot, on either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sheafdeq.asynchronous.channel import RELIABLE, Channel, Link
from sheafdeq.asynchronous.stream import Purpose, stream
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError

__all__ = ["Conditions", "Recording", "Schedule", "Slot", "SlotSource", "Violation"]


@dataclass(frozen=True, eq=False)
class Slot:
    """What happens in slot ``time``."""

    time: int
    active: Tensor  # (a,) int64, ascending: the nodes that update
    delay: Tensor  # (edges into active,) int64, in the order of ``edges.edges_into(active)``
    # (a,) int64; None means fresh, which is the only thing condition (3) admits
    own_delay: Tensor | None = None


class SlotSource(Protocol):
    """Anything that produces slots: a :class:`Schedule`, a :class:`Recording`, or a schedule of
    your own."""

    @property
    def window(self) -> int:
        """The promised update window s (sleep included)."""

    @property
    def delay_bound(self) -> int:
        """The promised bound tau on every delay (losses included)."""

    def slots(self, edges: Edges) -> Iterator[Slot]:
        """Slot 0, slot 1, ..."""

    def describe(self) -> dict[str, Any]:
        """Everything needed to make the same slots again, ready for JSON."""


@dataclass(frozen=True)
class Schedule:
    """A random partially asynchronous schedule.

    Activations: the first update of a node is uniform on {0, ..., s - 1}, every further gap uniform
    on {1, ..., s}. (The paper
    fixes the window and leaves the law open; this one uses all admissible gaps.) Delays over a
    :data:`RELIABLE` channel are independent, uniform on {0, ..., min(tau, t)} for every edge and
    slot, as in the paper; so messages may overtake one another. Other channels (loss, duplication,
    order of arrival) are in :mod:`~sheafdeq.asynchronous.channel`.

    Sleep: with probability ``sleep`` a node that has just updated sleeps ``1 ... sleep_slots``
    slots more; the window
    that is promised, and checked, grows to ``s + sleep_slots``. Its neighbours keep reading what it
    last sent.

    ``(s, tau) = (1, 0)`` without sleep is synchronous iteration.
    """

    update_window: int = 1
    max_delay: int = 0
    seed: int = 0
    channel: Channel = RELIABLE
    sleep: float = 0.0
    sleep_slots: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("update_window", 1),
            ("max_delay", 0),
            ("seed", 0),
            ("sleep_slots", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not 0 <= self.sleep < 1:
            raise InputError(f"sleep must be a probability in [0, 1), got {self.sleep!r}")
        if (self.sleep > 0) != (self.sleep_slots > 0):
            raise InputError(
                f"sleep={self.sleep!r} and sleep_slots={self.sleep_slots!r}: give both (how "
                "often, how long at most) or neither"
            )

    @property
    def window(self) -> int:
        """s, plus the longest sleep."""
        return self.update_window + self.sleep_slots

    @property
    def delay_bound(self) -> int:
        """tau, or the longest staleness a lossy channel lets pass."""
        return self.channel.delay_bound(self.max_delay)

    @property
    def synchronous(self) -> bool:
        """Whether this is plain Picard iteration."""
        return self.window == 1 and self.delay_bound == 0

    def slots(self, edges: Edges) -> Iterator[Slot]:
        """Slot 0, 1, ... without end; every call starts again and yields the same slots."""
        n = edges.num_targets
        loops = (edges.source == edges.target).numpy()
        link = (
            None
            if self.channel.reliable
            else Link(self.channel, self.max_delay, self.seed, len(edges.source))
        )
        due = stream(self.seed, 0, Purpose.FIRST).integers(0, self.update_window, size=n)
        time = 0
        while True:
            awake = np.flatnonzero(due == time)
            due[awake] = time + self._gaps(time, len(awake))
            active = torch.from_numpy(awake)
            arriving = edges.edges_into(active).numpy()
            if link is not None:
                delay = link.advance(time)[arriving]
            elif self.max_delay == 0:
                delay = np.zeros(len(arriving), dtype=np.int64)
            else:
                delay = stream(self.seed, time, Purpose.DELAY).integers(
                    0, min(self.max_delay, time) + 1, size=len(arriving)
                )
            delay[loops[arriving]] = 0
            yield Slot(time, active, torch.from_numpy(delay))
            time += 1

    def _gaps(self, time: int, count: int) -> np.ndarray:
        gaps = stream(self.seed, time, Purpose.GAP).integers(1, self.update_window + 1, size=count)
        if self.sleep > 0:
            draw = stream(self.seed, time, Purpose.SLEEP)
            asleep = draw.random(count) < self.sleep
            gaps = gaps + asleep * draw.integers(1, self.sleep_slots + 1, size=count)
        return gaps

    def record(self, edges: Edges, slots: int) -> Recording:
        """The first ``slots`` slots in full."""
        taken = []
        for slot in self.slots(edges):
            if slot.time >= slots:
                break
            taken.append(slot)
        return Recording(
            tuple(taken), self.window, self.delay_bound, edges.num_targets, self.describe()
        )

    def with_seed(self, seed: int) -> Schedule:
        """Another sample of the same law."""
        return replace(self, seed=seed)

    def describe(self) -> dict[str, Any]:
        """Parameters and seed."""
        result: dict[str, Any] = {
            "update_window": self.update_window,
            "max_delay": self.max_delay,
            "seed": self.seed,
        }
        if self.channel != RELIABLE:
            result["channel"] = self.channel.to_json()
        if self.sleep > 0:
            result.update(sleep=self.sleep, sleep_slots=self.sleep_slots)
        return result

    @staticmethod
    def from_json(data: dict[str, Any]) -> Schedule:
        """The inverse of :meth:`describe`."""
        known = {"update_window", "max_delay", "seed", "channel", "sleep", "sleep_slots"}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(
                f"a schedule has no entry {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        channel = Channel(**data["channel"]) if "channel" in data else RELIABLE
        return Schedule(**{**data, "channel": channel})


@dataclass(frozen=True)
class Recording:
    """Slots written out: ``activations()`` is the (T, n) table; ``slots()`` replays them;
    ``check()`` judges them."""

    taken: tuple[Slot, ...]
    window: int
    delay_bound: int
    num_nodes: int
    origin: dict[str, Any] = field(default_factory=dict)

    def slots(self, edges: Edges) -> Iterator[Slot]:
        """The recorded slots, in order."""
        if edges.num_targets != self.num_nodes:
            raise InputError(
                f"the recording has {self.num_nodes} nodes, the graph {edges.num_targets}"
            )
        return iter(self.taken)

    def describe(self) -> dict[str, Any]:
        """Where the recording came from."""
        return {"recording": len(self.taken), **self.origin}

    def activations(self) -> Tensor:
        """(T, n) bool: which node updates in which slot."""
        table = torch.zeros(len(self.taken), self.num_nodes, dtype=torch.bool)
        for row, slot in zip(table, self.taken, strict=True):
            row[slot.active] = True
        return table

    def check(self, edges: Edges) -> list[Violation]:
        """All violations of the three conditions (none for an admissible recording)."""
        conditions = Conditions(edges, self.window, self.delay_bound)
        for slot in self.taken:
            conditions.see(slot)
        return conditions.finish()

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON: small graphs and short runs only; a :class:`Schedule` is a few numbers
        instead."""
        return {
            "window": self.window,
            "delay_bound": self.delay_bound,
            "num_nodes": self.num_nodes,
            "origin": self.origin,
            "slots": [
                {
                    "active": slot.active.tolist(),
                    "delay": slot.delay.tolist(),
                    **({} if slot.own_delay is None else {"own_delay": slot.own_delay.tolist()}),
                }
                for slot in self.taken
            ],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Recording:
        """The inverse of :meth:`to_json`."""

        def integers(values: list[int] | None) -> Tensor | None:
            return None if values is None else torch.tensor(values, dtype=torch.int64)

        taken = tuple(
            Slot(t, integers(s["active"]), integers(s["delay"]), integers(s.get("own_delay")))  # type: ignore[arg-type]
            for t, s in enumerate(data["slots"])
        )
        return Recording(
            taken, data["window"], data["delay_bound"], data["num_nodes"], data["origin"]
        )


@dataclass(frozen=True)
class Violation:
    """One breach of the definition."""

    condition: int  # 1, 2 or 3 as numbered above
    time: int
    message: str


class Conditions:
    """The three conditions of partial asynchronism, checked as the slots go by (memory: one number
    a node)."""

    def __init__(self, edges: Edges, window: int, delay_bound: int) -> None:
        self.edges, self.window, self.delay_bound = edges, window, delay_bound
        self.last_update = torch.full((edges.num_targets,), -1, dtype=torch.int64)
        self.time = 0
        self.violations: list[Violation] = []

    def see(self, slot: Slot, arriving: Tensor | None = None) -> None:
        """Check one slot; slots come in order. ``edges``: ``edges.edges_into(slot.active)``, if
        already known."""
        t = slot.time
        if t != self.time:
            raise InputError(f"slot {t} came where slot {self.time} was expected")
        # (1) Windows that end before this slot: a node that was silent for more than `window` slots
        # missed one.
        gap = t - self.last_update[slot.active]
        self._add(
            1,
            t,
            slot.active[gap > self.window],
            f"waited longer than the window of {self.window} slots",
        )
        arriving = self.edges.edges_into(slot.active) if arriving is None else arriving
        if len(slot.delay) != len(arriving):
            self.violations.append(
                Violation(2, t, f"{len(slot.delay)} delays for {len(arriving)} incoming edges")
            )
        else:
            target = self.edges.target[arriving]
            wrong = (slot.delay < 0) | (slot.delay > min(self.delay_bound, t))
            self._add(
                2, t, target[wrong], f"read a delay outside 0 ... min({self.delay_bound}, {t})"
            )
            own = (self.edges.source[arriving] == target) & (slot.delay != 0)
            self._add(3, t, target[own], "read its own state late through a self-loop")
        if slot.own_delay is not None:
            self._add(3, t, slot.active[slot.own_delay != 0], "read its own state late")
        self.last_update[slot.active] = t
        self.time += 1

    def finish(self) -> list[Violation]:
        """Check the windows that end with the last slot, and return everything found."""
        silent = (self.time - self.last_update > self.window).nonzero().flatten()
        self._add(1, self.time, silent, f"did not update in the last {self.window} slots")
        return self.violations

    def _add(self, condition: int, time: int, nodes: Tensor, message: str) -> None:
        if len(nodes):
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            self.violations.append(
                Violation(condition, time, f"node {int(nodes[0])}{more} {message}")
            )
