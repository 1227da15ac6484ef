"""One table in five formats: text, Markdown, LaTeX, CSV, HTML."""

from __future__ import annotations

import csv
import html
import io
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.printable import csv_text, markdown_text, printable
from sheafdeq.report.grid import fitted, markdown_grid
from sheafdeq.report.tables.table import Table

__all__ = [
    "CSV_HEADER",
    "FORMATS",
    "grid",
    "render",
]


FORMATS = ("text", "markdown", "latex", "csv", "html")

CSV_HEADER = (
    "model",
    "source",
    "column",
    "median",
    "min",
    "max",
    "finished",
    "planned",
    "rank",
    "marks",
    "configuration",
    "verdict",
    "gap",
)


def render(table: Table, form: str = "text") -> str:
    """The table as text, Markdown, LaTeX, CSV (one line for each number) or HTML."""
    writers = {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv, "html": _html}
    if form not in writers:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    return writers[form](table)


def grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text, control characters escaped."""
    with_source = any(row.source for row in table.rows)
    header = ["Model", *([""] if with_source else []), *table.columns]
    body = [
        [row.title, *([row.source] if with_source else []), *(cell.text() for cell in row.cells)]
        for row in table.rows
    ]
    return [printable(word) for word in header], [
        [printable(word) for word in line] for line in body
    ]


def _text(table: Table) -> str:
    around = [printable(text) for text in (table.title, *table.notes)]
    lines = [around[0], fitted(*grid(table), None, rules=True).rstrip("\n"), *around[1:]]
    return "\n".join(lines) + "\n"


def _markdown(table: Table) -> str:
    header, body = grid(table)
    shown = markdown_grid(
        list(map(markdown_text, header)), [list(map(markdown_text, line)) for line in body]
    )
    notes = [f"\n{markdown_text(note)}" for note in table.notes]
    return "\n".join([f"**{markdown_text(table.title)}**", "", shown, *notes]) + "\n"


_TEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "†": r"$^\dagger$",
    "—": "---",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in printable(text))


def _latex(table: Table) -> str:
    header, body = grid(table)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(table.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(header)}}}",
        r"\toprule",
        " & ".join(map(_tex, header)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, line)) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_tex(note)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    title = ""
    for row in table.rows:
        title = row.title or title  # the paper's line belongs to the model above it
        for column, cell in zip(table.columns, row.cells, strict=True):
            spread: tuple[Any, ...] = cell.spread if cell.spread is not None else ("", "", "")
            seeds: tuple[Any, ...] = cell.seeds if cell.seeds is not None else ("", "")
            place = "" if cell.rank is None else cell.rank
            absent = cell.absent if cell.spread is None else ""
            verdict = (cell.verdict, format(cell.gap, cell.form) if cell.verdict else "")
            words = (title, row.source, column, " ".join(cell.marks) or absent, cell.note)
            model, source, heading, marks, note = map(csv_text, words)
            writer.writerow([model, source, heading, *spread, *seeds, place, marks, note, *verdict])
    return stream.getvalue()


def _html(table: Table) -> str:
    header, body = grid(table)
    lines = [
        "<table>",
        f"<caption>{html.escape(printable(table.title))}</caption>",
        "<thead><tr>"
        + "".join(f'<th scope="col">{html.escape(word)}</th>' for word in header)
        + "</tr></thead>",
        "<tbody>",
    ]
    for line in body:
        first, *rest = map(html.escape, line)
        lines.append(
            f'<tr><th scope="row">{first}</th>'
            + "".join(f"<td>{word}</td>" for word in rest)
            + "</tr>"
        )
    lines += [
        "</tbody>",
        "</table>",
        *(f"<p>{html.escape(printable(note))}</p>" for note in table.notes),
    ]
    return "\n".join(lines) + "\n"
