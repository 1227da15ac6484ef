"""Rows between parts: one-way, versioned, the newest wins.

A part never waits for a letter to arrive anywhere; it writes, and reads what is there. Letters may
be lost, come twice or overtake each other: a reader keeps the newest version it has seen, and a
writer that has nothing better to do writes again. ``keep`` lays the own state aside where it
survives the worker.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Protocol

from torch import Tensor

from sheafdeq.errors import InputError

__all__ = ["NO_FAULTS", "Faults", "FaultyMail", "Kind", "Mail", "MemoryMail", "PostOffice"]


class Kind(IntEnum):
    """What a letter holds."""

    HALO = 0  # rows of the sender's state, for the reader's halo
    SNAPSHOT = 1  # the same, frozen for one measurement of the residual
    GRADIENT = 2  # cotangents of halo rows, on their way back to the owner


class Mail(Protocol):
    """The letter box of one part."""

    lossy: bool  # whether letters can be lost, so that the newest must be sent again while idle

    def send(self, to: int, kind: Kind, version: int, rows: Tensor) -> None:
        """Write to part ``to``."""

    def newest(self, sender: int, kind: Kind) -> tuple[int, Tensor] | None:
        """The letter from part ``sender`` that lies in the box (version, rows), if any."""

    def keep(self, version: int, *states: Tensor) -> None:
        """Lay states of this part aside; they replace what was kept before."""

    def kept(self) -> tuple[int, list[Tensor]] | None:
        """What was kept last, also by a worker that is no more."""

    def tick(self) -> None:
        """One turn of the worker has passed."""


class PostOffice:
    """Letter boxes in the memory of one process: for tests, exact and repeatable."""

    def __init__(self) -> None:
        self.letters: dict[tuple[int, int, Kind], tuple[int, Tensor]] = {}
        self.states: dict[int, tuple[int, list[Tensor]]] = {}


class MemoryMail:
    """The box of one part in a :class:`PostOffice`."""

    lossy = False

    def __init__(self, office: PostOffice, part: int) -> None:
        self.office, self.part = office, part

    def send(self, to: int, kind: Kind, version: int, rows: Tensor) -> None:
        """A copy is put into the box; the reader may find it at once."""
        self.office.letters[self.part, to, kind] = (version, rows.detach().clone())

    def newest(self, sender: int, kind: Kind) -> tuple[int, Tensor] | None:
        """What was put there last."""
        return self.office.letters.get((sender, self.part, kind))

    def keep(self, version: int, *states: Tensor) -> None:
        """Copies of the states."""
        self.office.states[self.part] = (version, [state.detach().clone() for state in states])

    def kept(self) -> tuple[int, list[Tensor]] | None:
        """The last copies."""
        return self.office.states.get(self.part)

    def tick(self) -> None:
        """Nothing is under way."""


@dataclass(frozen=True)
class Faults:
    """What happens to letters between the sender and the box: seeded, so that a run can be
    repeated.

    ``loss``, ``duplication``: probabilities. ``delay``: a letter is held for up to this many turns
    of its sender, each for its own time, so that letters overtake each other.
    """

    loss: float = 0.0
    duplication: float = 0.0
    delay: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplication"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name} must be a probability in [0, 1), got {value!r}")
        if self.delay < 0:
            raise InputError(f"delay must be a number of turns, 0 or more, got {self.delay!r}")

    @property
    def none(self) -> bool:
        """Whether letters pass untouched."""
        return not (self.loss or self.duplication or self.delay)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; ``Faults(**data)`` is the inverse."""
        return asdict(self)


NO_FAULTS = Faults()


@dataclass
class _Held:
    turns: int
    to: int
    kind: Kind
    version: int
    rows: Tensor


class FaultyMail:
    """Loses, repeats and delays what goes out through another box."""

    lossy = True

    def __init__(self, inner: Mail, faults: Faults, part: int) -> None:
        self.inner, self.faults = inner, faults
        self.draw = random.Random(f"{faults.seed}/{part}")
        self.held: list[_Held] = []

    def send(self, to: int, kind: Kind, version: int, rows: Tensor) -> None:
        """Decide by lot."""
        if self.draw.random() < self.faults.loss:
            return
        for _ in range(1 + (self.draw.random() < self.faults.duplication)):
            turns = self.draw.randint(0, self.faults.delay)
            if turns:
                self.held.append(_Held(turns, to, kind, version, rows.detach().clone()))
            else:
                self.inner.send(to, kind, version, rows)

    def newest(self, sender: int, kind: Kind) -> tuple[int, Tensor] | None:
        """Reading is not disturbed."""
        return self.inner.newest(sender, kind)

    def keep(self, version: int, *states: Tensor) -> None:
        """Keeping is not disturbed."""
        self.inner.keep(version, *states)

    def kept(self) -> tuple[int, list[Tensor]] | None:
        """Keeping is not disturbed."""
        return self.inner.kept()

    def tick(self) -> None:
        """Letters whose time has come go out."""
        self.inner.tick()
        for letter in self.held:
            letter.turns -= 1
        for letter in [letter for letter in self.held if letter.turns <= 0]:
            self.inner.send(letter.to, letter.kind, letter.version, letter.rows)
        self.held = [letter for letter in self.held if letter.turns > 0]
