"""On a terminal of eighty columns no line is longer; elsewhere nothing is folded."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shown(words: list[str], columns: int, folder: Path) -> list[str]:
    """What a command prints on a terminal of so many columns, line by line."""
    program = (
        "import sys\n"
        "from sheafdeq.cli import main\n"
        "codes = []\n"
        "for line in sys.argv[1:]:\n"
        "    codes.append(main(line.split()))\n"
        "    print('-- end of', line)\n"
        "sys.exit(max(codes))\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "COLUMNS": str(columns), "OMP_NUM_THREADS": "1", "TERM": "xterm"},
    )
    os.close(theirs)
    content = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        content += piece
    os.close(ours)
    assert process.wait(timeout=300) == 0
    return content.decode().replace("\r", "").splitlines()


COMMANDS = [
    "tasks",
    "tasks show community --level 3 --option nodes=30",
    "models",
    "models sheafdeq sheaf-cascade",
    "runs",
    "runs --sort test",
    "tables community",
    "tables distributed",
    "tables parameters",
    "tables staleness",
    "tables all",
    "sweep list",
    "doctor",
]


def test_eighty_columns() -> None:
    lines = shown(COMMANDS, 80, ROOT)
    # a word alone may be longer than a line: a path, a digest
    long = [line for line in lines if len(line) > 80 and " " in line.strip()]
    assert long == []
    assert len(lines) > 200


def test_wide_shows_every_column() -> None:
    lines = shown(["runs --wide --task community --level 7"], 80, ROOT)
    assert "name" in lines[0].split()
    assert "protocol" in lines[0].split()
    assert max(map(len, lines)) > 100
    narrow = shown(["runs --task community --level 7"], 80, ROOT)
    assert any("--wide shows every column" in line for line in narrow)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_bar_has_a_width(columns: int) -> None:
    """Drawn as on a terminal: the bar has ten columns at least, and one line holds it all."""
    import io

    from rich.console import Console

    from sheafdeq.training.loop import EpochMetrics
    from sheafdeq.training.progress import BarProgress

    stream = io.StringIO()
    console = Console(file=stream, width=columns, force_terminal=True, color_system=None)
    display = BarProgress(console)
    display.start("community level 7, sheafdeq shift=1.3, seed 42", 0, 2000)
    for epoch in (0, 999, 1999):
        display.update(EpochMetrics(epoch, 0.123456, 98.76, 99.12, 3, 0.01))
        display.bar.refresh()
    display.bar.stop()
    drawn = [line for line in stream.getvalue().split("\n") if "1999/2000" in line]
    assert drawn
    bar = drawn[-1].split("\x1b")[-1].split("]")[-1]
    assert sum(bar.count(mark) for mark in "━╸╺") >= 10
    if columns >= 80:
        assert "best 99.12" in bar
        assert len(bar.split("K")[-1]) <= columns
