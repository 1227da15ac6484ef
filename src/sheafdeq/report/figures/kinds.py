"""Every figure the records allow, or those of some kinds."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.errors import RecordError
from sheafdeq.records import DIAGNOSIS_SCHEMA, STALENESS_SCHEMA
from sheafdeq.report.figures.continued import continued_full, continued_short, settling
from sheafdeq.report.figures.frontier import frontiers
from sheafdeq.report.figures.picture import Drawing
from sheafdeq.report.figures.source import Source, by_task
from sheafdeq.report.figures.staleness import faults, tau_sweep, trajectories
from sheafdeq.report.figures.variability import training_variability
from sheafdeq.report.style import style

__all__ = [
    "draw_all",
]


def draw_all(
    sources: Sequence[Source], only: Sequence[str] | None = None, until: int | None = None
) -> list[Drawing]:
    """Every figure the records allow, or those of the kinds in ``only``; continued iteration up to
    the iteration ``until``.

    A sealed record that lacks what its schema promises is a :class:`RecordError`.
    """
    try:
        return _draw_all(sources, only, until)
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        StopIteration,
        OverflowError,
    ) as error:
        others = sorted({str(source.path) for source in sources if source.run is None})
        raise RecordError(
            f"a record does not have the shape of its schema ({type(error).__name__}: {error}); "
            f"one of {len(others)}: " + ", ".join(others[:12])
        ) from error


def _draw_all(
    sources: Sequence[Source], only: Sequence[str] | None, until: int | None
) -> list[Drawing]:
    drawings: list[Drawing] = []

    def wanted(kind: str) -> bool:
        return only is None or kind in only

    with style():
        for (_, title), group in by_task(sources, DIAGNOSIS_SCHEMA).items():
            if wanted("continued"):
                drawings.append(continued_short(group, title, until))
            if wanted("continued-full"):
                drawings.append(continued_full(group, title, until))
            if wanted("settling"):
                drawings.append(settling(group, title))
        for (_, title), group in by_task(sources, STALENESS_SCHEMA).items():
            for study, kind, draw in (
                ("schedules", "async", trajectories),
                ("tau-sweep", "tau-sweep", tau_sweep),
                ("faults", "faults", faults),
            ):
                chosen = [source for source in group if source.payload["study"] == study]
                if chosen and wanted(kind):
                    drawings.append(draw(chosen, title))
        if wanted("frontier"):
            drawings += frontiers(sources)
        if wanted("training"):
            drawings += training_variability(sources)
    return drawings
