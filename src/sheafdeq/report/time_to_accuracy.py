"""How long a model trains until it is right: processor seconds of one thread, from records."""

from __future__ import annotations

from statistics import median

from sheafdeq.report.evidence import Evidence
from sheafdeq.report.grid import markdown_grid
from sheafdeq.report.group_rows import spread_text

__all__ = ["ACCURACY", "LEVEL", "time_text"]

ACCURACY = 95.0
"""Validation accuracy (%) that must be reached."""
LEVEL = 10
"""Community level at which it is measured."""


def time_text(evidence: Evidence) -> str:
    """One line for each configuration at :data:`LEVEL` that got there from scratch, fastest
    first; those that never did are counted."""
    found, never = [], 0
    for summary in evidence.summaries:
        if summary.column != ("community", LEVEL, ""):
            continue
        runs = [
            record
            for record in summary.records
            if record.config["init_from"] is None and record.config.get("threads") == 1
        ]
        seconds = [s for s in (record.seconds_to(ACCURACY) for record in runs) if s is not None]
        never += len(runs) - len(seconds)
        if seconds:
            sees = " Δ" if summary.differences else ""
            options = ", ".join(f"{key} {value}" for key, value in sorted(summary.options.items()))
            title = f"{summary.title}{sees} [{summary.trained_by}]"
            title += f" ({options})" if options else ""
            found.append((median(seconds), title, seconds, len(runs)))
    if not found:
        return f"No run of one thread has reached {ACCURACY:g} % yet."
    lines = [
        (title, f"{len(seconds)} of {count}", spread_text(seconds, ".0f"))
        for _, title, seconds, count in sorted(found)
    ]
    return (
        f"Processor seconds of one thread until {ACCURACY:g} % of the validation nodes are right "
        f"at level {LEVEL}, median [min, max] over the runs that get there, on machines of several "
        f"kinds; {never} runs never do.\n\n"
        + markdown_grid(("row", "runs that get there", "seconds"), lines)
    )
