"""Header and rows of text as a grid: in Markdown, and on the screen (as wide as the terminal, never
wider, unless all columns are asked for)."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sheafdeq.printable import printable

__all__ = ["cells", "fitted", "markdown_grid", "terminal_width", "wrapped"]

_NARROWEST = 12  # a column is folded to no less than this, or left out
_GAP = 2
_NAMED = 12  # columns left out that are named


def terminal_width(wide: bool = False) -> int | None:
    """Columns of the terminal; None (no limit) with ``--wide`` and when the output goes to a file
    or another program."""
    return None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def wrapped(text: str, width: int | None, indent: int = 0) -> str:
    """Text in lines of at most ``width`` characters (None: as long as it is), the later ones
    indented."""
    if width is None:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def markdown_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the cells are Markdown already, so text of strangers is escaped before."""

    def line(words: Sequence[str]) -> str:
        return "| " + " | ".join(words) + " |"

    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def cells(rows: Iterable[Mapping[str, Any]], shown: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Lines of a table whose columns are ``shown``: ``{"nodes": "{nodes:,}"}``."""
    return [tuple(words.format(**row) for words in shown.values()) for row in rows]


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: Collection[int] = (),
    rules: bool = False,
    narrowest: int = _NARROWEST,
) -> str:
    """The table as lines of at most ``width`` characters (None: as long as they need).

    Cells that are too long are folded, columns to no less than ``narrowest``; those for which even
    that leaves no room are left out from the right and named. Columns numbered in ``right`` are
    aligned to the right; ``rules`` draws lines around the header and at the end.
    """
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    left_out: list[str] = []
    if width is not None and _total(widths) > width:
        while len(widths) > 1 and _total([min(w, narrowest) for w in widths]) > width:
            left_out.insert(0, lines[0][len(widths) - 1])
            widths.pop()
        text = _folded([line[: len(widths)] for line in lines], width, right, rules)
    else:
        text = _plain(lines, widths, right, rules)
    if left_out:
        named = ", ".join(left_out[:_NAMED])
        named += f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        note = f"not shown for want of width: {named} (--wide shows every column)"
        text += wrapped(note, width) + "\n"
    return text


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _plain(
    lines: Sequence[Sequence[str]], widths: Sequence[int], right: Collection[int], rules: bool
) -> str:
    shown = [
        (" " * _GAP).join(
            cell.rjust(w) if k in right else cell.ljust(w)
            for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    rule = ["-" * _total(widths)] if rules else []
    return "\n".join(line.rstrip() for line in [*rule, shown[0], *rule, *shown[1:], *rule]) + "\n"


def _folded(lines: Sequence[Sequence[str]], width: int, right: Collection[int], rules: bool) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.HORIZONTALS if rules else None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
        show_edge=rules,
    )
    for k, cell in enumerate(lines[0]):
        table.add_column(
            Text(cell),
            justify="right" if k in right else "left",
            overflow="fold",
            min_width=min(6, len(cell)),
        )
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    stream = io.StringIO()
    Console(
        file=stream, width=width, color_system=None, highlight=False, legacy_windows=False
    ).print(table)
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())
