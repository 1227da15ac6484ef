"""Drawn schedules with late messages, held against the proved labels (Corollary 40b).

A schedule is run until its labels have settled: the state is at rest, or the work is done. The
work of a schedule with update window s and delays up to tau is enough for ``ROUNDS`` rounds in
which every message is read afresh: a round takes about (s + tau) / 2 slots more than one gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sheafdeq.asynchronous import Schedule, simulate_many
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.predictions.predictions import Predictions

__all__ = ["LateMessages", "drawn_schedules", "under_schedules"]

ROUNDS = 45
"""Rounds of fresh messages; a trained cascade of eight levels is within 1e-5 of rest by then."""
TOGETHER = 100
"""Schedules that share their slots: small active sets are evaluated as one."""
HISTORY_BYTES = 2 * 2**30
SHORTEST_WINDOW = 8
"""Update windows are drawn from here on: with shorter ones a node mostly repeats itself."""


@dataclass(frozen=True)
class LateMessages:
    """What the schedules ended with."""

    schedules: int
    longest_delay: int
    longest_window: int
    nodes: int
    proved: int
    differing: int  # proved labels that some schedule did not end with: must be none
    differing_unproved: int
    largest_residual: float  # of the synchronous map at the last state, over all schedules
    mean_work: float  # updates a node

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return dict(vars(self))


def drawn_schedules(count: int, longest: int = 64, seed: int = 0) -> list[Schedule]:
    """Windows from :data:`SHORTEST_WINDOW` to ``longest``, delays from 0 to it; the first: both
    at their longest."""
    if count < 1 or longest < SHORTEST_WINDOW:
        raise InputError(
            f"at least one schedule and delays up to {SHORTEST_WINDOW} or more are needed, got "
            f"{count!r} and {longest!r}"
        )
    generator = torch.Generator().manual_seed(seed)

    def drawn(low: int) -> int:
        return int(torch.randint(low, longest + 1, (1,), generator=generator))

    first = seed * count  # of its own for every schedule of every seed
    rest = [Schedule(drawn(SHORTEST_WINDOW), drawn(0), seed=first + k) for k in range(1, count)]
    return [Schedule(longest, longest, seed=first), *rest]


@torch.no_grad()
def under_schedules(
    model: EquilibriumModel, graph: Graph, result: Predictions, drawn: Sequence[Schedule]
) -> LateMessages:
    """Run schedules and count proved labels that are not the labels reached.

    The model runs in the precision it has: that of float32 is far below every proved margin worth
    the name, and a difference would be counted.
    """
    model = model.eval()
    context = model.prepare(graph)
    differing = torch.zeros_like(result.proved)
    residual = work = 0.0
    schedules, count = sorted(drawn, key=_updates), len(drawn)
    for first in range(0, count, TOGETHER):
        group = schedules[first : first + TOGETHER]
        runs = simulate_many(
            model,
            graph,
            group,
            work=_updates(group[-1]),
            context=context,
            history_bytes=HISTORY_BYTES,
        )
        for run in runs:
            label = model.readout(run.state, context).argmax(1)  # type: ignore[operator]
            differing |= label != result.label
            residual, work = max(residual, run.residual), work + run.work
    return LateMessages(
        count,
        max(schedule.delay_bound for schedule in drawn),
        max(schedule.window for schedule in drawn),
        graph.num_nodes,
        int(result.proved.sum()),
        int((differing & result.proved).sum()),
        int((differing & ~result.proved).sum()),
        residual,
        work / count,
    )


def _updates(schedule: Schedule) -> float:
    """Mean updates a node that make :data:`ROUNDS` rounds."""
    gap = (schedule.window + 1) / 2
    return ROUNDS * (1.0 + schedule.delay_bound / (2 * gap))
