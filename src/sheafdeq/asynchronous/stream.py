"""Random numbers that belong to a slot: a counter-based generator, so that slot t needs no memory
of the slots before it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = ["Purpose", "stream"]


class Purpose(IntEnum):
    """What the numbers are for; each purpose has a stream of its own."""

    FIRST = 0
    GAP = 1
    SLEEP = 2
    DELAY = 3
    LINK = 4


def stream(seed: int, time: int, purpose: Purpose) -> np.random.Generator:
    """Philox keyed by ``seed``, started at the counter of (``time``, ``purpose``); streams are
    2**128 numbers apart."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, int(purpose), time]))
