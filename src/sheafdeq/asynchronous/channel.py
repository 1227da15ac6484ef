"""Channels between neighbours: what happens to a message between being sent and being read.

Every node sends its state along all its edges in every slot. The copy sent in slot s arrives in
slot s + d with d uniform on {0, ..., tau}; in slot t the receiver holds one message, and its
*delay* is t minus the slot in which that message was sent.

* **loss** p: a message is lost with probability p, so the receiver goes on reading an older one and
  delays grow past tau. After ``limit`` slots without anything newer the link retransmits until it
  succeeds, so delays stay bounded by ``limit``: partial asynchronism with a larger bound. The trace
  says how large they really were.
* **duplication** p: with probability p a second copy arrives at a time of its own.
* **reordering**: a receiver that numbers its messages keeps the newest (False); one that does not
  reads whatever arrived last, so that an old message can replace a newer one (True) and delays
  reach 2 tau. Of several that arrive in one slot it reads the oldest last: the worst case.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sheafdeq.asynchronous.stream import Purpose, stream
from sheafdeq.errors import InputError

__all__ = ["RELIABLE", "Channel", "Link"]


@dataclass(frozen=True)
class Channel:
    """What the links do to messages. All zero (:data:`RELIABLE`): independent delays, the paper's
    model."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: bool = False
    in_order: bool = False  # a message-by-message link even without any fault
    limit: int = 64  # slots without news after which a lossy link retransmits until it succeeds

    def __post_init__(self) -> None:
        for name in ("loss", "duplication"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name} must be a probability in [0, 1), got {value!r}")
        if self.limit < 1:
            raise InputError(f"limit must be at least 1 slot, got {self.limit!r}")
        if self.in_order and self.reordering:
            raise InputError("a channel delivers in_order or with reordering, not both")

    @property
    def reliable(self) -> bool:
        """Whether this is the paper's model, without messages of its own."""
        return not (self.loss or self.duplication or self.reordering or self.in_order)

    def delay_bound(self, max_delay: int) -> int:
        """The largest delay that can be read over this channel."""
        # Unnumbered: the last arrival may be tau old, and nothing newer need arrive for another tau
        # slots.
        bound = 2 * max_delay if self.reordering else max_delay
        if self.loss and self.limit < bound:
            raise InputError(
                f"limit {self.limit} is below the bound {bound} without loss: raise "
                f"it to at least {bound}"
            )
        return self.limit if self.loss else bound

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; ``Channel(**data)`` is the inverse."""
        return asdict(self)


RELIABLE = Channel()


class Link:
    """The state of all e links of a graph, advanced slot by slot.

    Memory: 2 (tau + 1) small integers for each edge (transit times still under way) and the slot
    number of the message held.
    """

    _LOST = -1

    def __init__(self, channel: Channel, max_delay: int, seed: int, edges: int) -> None:
        self.channel, self.max_delay, self.seed = channel, max_delay, seed
        self.bound = channel.delay_bound(max_delay)
        self.held = np.zeros(edges, dtype=np.int64)  # everyone knows the start
        # first and second copies
        self.transit = np.full((2, max_delay + 1, edges), self._LOST, dtype=np.int16)

    def advance(self, time: int) -> np.ndarray:
        """Send, lose, deliver; (e,) the delay of the message every edge holds in slot ``time``."""
        channel, depth, edges = self.channel, self.max_delay + 1, self.held.shape[0]
        draw = stream(self.seed, time, Purpose.LINK)
        row = time % depth
        first = draw.integers(0, depth, size=edges, dtype=np.int16)
        if channel.loss:
            first[draw.random(edges) < channel.loss] = self._LOST
        self.transit[0, row] = first
        self.transit[1, row] = self._LOST
        if channel.duplication:
            second = draw.integers(0, depth, size=edges, dtype=np.int16)
            second[(draw.random(edges) >= channel.duplication) | (first == self._LOST)] = self._LOST
            self.transit[1, row] = second
        # Newest last when messages are numbered (the newest stays), oldest last when they are not.
        ages = range(min(self.max_delay, time) + 1)
        for age in ages if channel.reordering else reversed(ages):
            arrived = (self.transit[:, (time - age) % depth] == age).any(axis=0)
            if channel.reordering:
                self.held[arrived] = time - age
            else:
                np.maximum(self.held, time - age, out=self.held, where=arrived)
        delay = time - self.held
        late = delay > self.bound
        if late.any():
            self.held[late] = time - draw.integers(
                0, min(self.max_delay, time) + 1, size=int(late.sum())
            )
            delay = time - self.held
        return delay
