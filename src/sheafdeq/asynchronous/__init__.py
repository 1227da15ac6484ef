"""Asynchronous inference: late, lost and repeated messages, nodes that update when they please."""

from __future__ import annotations

from sheafdeq.asynchronous.channel import RELIABLE, Channel
from sheafdeq.asynchronous.schedule import (
    Conditions,
    Recording,
    Schedule,
    Slot,
    SlotSource,
    Violation,
)
from sheafdeq.asynchronous.simulate import Simulation, simulate, simulate_many
from sheafdeq.asynchronous.study import StalenessStudy, staleness_study
from sheafdeq.asynchronous.trace import Trace

__all__ = [
    "RELIABLE",
    "Channel",
    "Conditions",
    "Recording",
    "Schedule",
    "Simulation",
    "Slot",
    "SlotSource",
    "StalenessStudy",
    "Trace",
    "Violation",
    "simulate",
    "simulate_many",
    "staleness_study",
]
