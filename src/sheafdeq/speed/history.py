"""What ``sheafdeq bench`` measured before, one line for each run, and whether it became slower.

A line holds the commit, the kind of machine and the ratios. Only ratios are compared, and only with
runs on the same kind of machine: seconds of two machines say nothing about the code.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from sheafdeq.records import write_bytes
from sheafdeq.speed.bench_page import TARGETS

__all__ = ["append", "fallen", "history_line", "read_history"]

TOLERANCE = 0.2


def history_line(result: dict[str, Any]) -> dict[str, Any]:
    """The line of one run: commit, kind of machine, whether it was a quick run, load, ratios."""
    machine, kernel = result["machine"], result["kernel"]
    return {
        "commit": _commit(),
        "machine": {
            "processor": machine["processor"],
            "cores": machine["cores"],
            "instruction_set": kernel.get("instruction_set"),
        },
        "quick": result["quick"],
        "load_average": machine["load_average"],
        "ratios": {
            name: round(result[name], 3) for name in TARGETS if result.get(name) is not None
        },
    }


def append(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add the line of ``result`` to the file at ``path``; the file stays whole."""
    line = history_line(result)
    before = path.read_bytes() if path.exists() else b""
    write_bytes(path, before + json.dumps(line).encode() + b"\n")
    return line


def read_history(path: Path) -> list[dict[str, Any]]:
    """All lines, oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def fallen(line: dict[str, Any], earlier: list[dict[str, Any]]) -> list[str]:
    """One sentence for each ratio of ``line`` that is more than 20 % worse than the best of
    ``earlier`` on the same kind of machine; none is the good answer."""
    same = [
        other["ratios"]
        for other in earlier
        if other["machine"] == line["machine"] and other["quick"] == line["quick"]
    ]
    sentences = []
    for name, value in line["ratios"].items():
        known = [ratios[name] for ratios in same if name in ratios]
        if not known:
            continue
        more_is_better = TARGETS[name].more_is_better
        best = max(known) if more_is_better else min(known)
        worse = value < best * (1 - TOLERANCE) if more_is_better else value > best / (1 - TOLERANCE)
        if worse:
            sentences.append(f"{name} is {value:g}, the best on this kind of machine was {best:g}")
    return sentences


def _commit() -> str | None:
    """The commit of the source tree, with + where files differ from it; None outside one."""
    try:
        tree = Path(__file__).parent
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--match=", "--abbrev=10"],
            cwd=tree,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
