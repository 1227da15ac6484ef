"""The course of a distributed run: rounds, waiting and residual of every part over wall time, with
deaths marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.report.style import SEED_LOOKS, style

__all__ = ["draw_parts"]


def draw_parts(record: Mapping[str, Any], path: str | Path) -> None:
    """Draw the record of ``sheafdeq infer`` into a file (png, svg, pdf)."""
    import matplotlib.pyplot as plt

    try:
        parts, events = record["parts"], record["events"]
        courses = [part["course"] for part in parts]
    except (KeyError, TypeError) as error:
        raise RecordError(f"not the record of a distributed run: {error} is missing") from error
    with style():
        figure, axes = plt.subplots(3, 1, figsize=(7.2, 6.4), sharex=True)
        titles = ("rounds made", "seconds waited", "residual")
        for number, course in enumerate(courses):
            look = SEED_LOOKS[number % len(SEED_LOOKS)]
            times = [point[0] for point in course]
            options = look.options(points=max(len(course), 1))
            axes[0].plot(times, [point[1] for point in course], label=f"part {number}", **options)
            axes[1].plot(times, [point[3] for point in course], **options)
            shown = [(point[0], point[2]) for point in course if point[2]]
            axes[2].plot([time for time, _ in shown], [value for _, value in shown], **options)
        snapshots = [
            (event["seconds"], event["residual"])
            for event in events
            if event["what"] == "snapshot" and event["residual"]
        ]
        if snapshots:
            axes[2].plot(
                *zip(*snapshots, strict=True),
                color="black",
                marker="x",
                linestyle="none",
                label="exact, by snapshot",
            )
        tolerance = record.get("solve", {}).get("tolerance")
        if tolerance:
            axes[2].axhline(tolerance, color="0.4", linewidth=0.8, linestyle=":", label="tolerance")
        for axis in axes:
            for event in events:
                if event["what"] == "died":
                    colour = SEED_LOOKS[event["part"] % len(SEED_LOOKS)].colour
                    axis.axvline(event["seconds"], color=colour, linewidth=0.8, alpha=0.7)
        for axis, title in zip(axes, titles, strict=True):
            axis.set_ylabel(title)
        axes[2].set_yscale("log")
        axes[2].set_xlabel("seconds (vertical lines: a worker of that part was killed)")
        axes[0].legend(loc="upper left", ncols=2, frameon=False)
        axes[2].legend(loc="upper right", frameon=False)
        figure.savefig(path)
        plt.close(figure)
