"""What W_1 mixes: SheafDEQ by the paper's text beside SheafDEQ by its printed number of
parameters."""

from __future__ import annotations

from sheafdeq.report.evidence import Evidence, paired_rows, plain_cell, short_title
from sheafdeq.report.grid import markdown_grid
from sheafdeq.report.tables.paper_table import judged

__all__ = ["mixers_text"]

TEXT = "SheafDEQ, shift 1.3"
COUNT = f"{TEXT} [mixers=channels]"
"""Titles of the two rows in the full tables."""


def mixers_text(evidence: Evidence) -> str:
    """Every column that the second reading was run on, with the first and the paper's."""
    lines = []
    for name in ("community", "distributed"):
        table = evidence.table(name, full=True)
        rows = {ours.title: (ours, paper) for ours, paper in paired_rows(table)}
        other = next((row for row in table.rows if row.title == COUNT), None)
        if other is None or TEXT not in rows:
            continue
        ours, paper = rows[TEXT]
        for column, first, second, printed in zip(
            table.columns, ours.cells, other.cells, paper.cells, strict=True
        ):
            if second.spread is not None and not column.endswith(" fresh"):
                cells = (first, judged(second, printed), printed)
                lines.append((short_title(column), *(plain_cell(cell) for cell in cells)))
    start = (
        "The paper's text has W_1 mix stalks (d x d) and gives 10,798 parameters; the 11,045 it "
        "prints are those of a model whose W_1 mixes channels (q x q)."
    )
    if not lines:
        return f"{start} Not run yet (groups `reading` of `sheafdeq sweep run evidence`)."
    header = ("column", "W_1 on stalks", "W_1 on channels", "the paper, the same shift")
    return f"{start} Shift 1.3, the same training.\n\n{markdown_grid(header, lines)}"
