"""Where a score was taken: on nodes and graphs that chose, and on graphs that nobody chose by."""

from __future__ import annotations

from collections.abc import Sequence

from sheafdeq.report.evidence import Evidence
from sheafdeq.report.grid import markdown_grid
from sheafdeq.report.group_rows import spread_text

__all__ = ["graph_scores_text"]


def graph_scores_text(evidence: Evidence) -> str:
    """One line for each configuration and level whose runs were judged on graphs of their own.

    Validation nodes lie in the training graphs; the validation graphs (seeds 200 to 205) chose
    recipes; the test graphs (100 to 102) are the paper's; fresh ones (1000 to 1009) chose nothing.
    """
    chosen, fresh = evidence.found.scores("validation-graphs"), evidence.fresh
    lines = []
    for summary in sorted(
        evidence.summaries, key=lambda s: (s.title, s.protocol, s.column[1] or 0)
    ):
        name, level, rest = summary.column
        ids = [record.id for record in summary.records]
        if name != "community" or rest or not any(run in chosen or run in fresh for run in ids):
            continue
        sees = " Δ" if summary.differences else ""
        lines.append(
            (
                f"{summary.title}{sees} [{summary.trained_by}]",
                f"L{level}",
                str(len(ids)),
                spread_text([record.scores["validation"] for record in summary.records]),
                spread_text([chosen[run] for run in ids if run in chosen]),
                spread_text(summary.test()),
                spread_text([fresh[run] for run in ids if run in fresh]),
                rest_text(evidence, ids),
            )
        )
    if not lines:
        return "Not evaluated yet (`sheafdeq evaluate results/runs --fresh`)."
    header = (
        "row",
        "level",
        "seeds",
        "validation nodes",
        "validation graphs",
        "test graphs",
        "fresh graphs",
        "at rest",
    )
    return (
        "Accuracy (%), median [min, max] over the seeds. Validation nodes lie in the training "
        "graphs; six validation graphs (seeds 200 to 205) chose recipes; the three test graphs are "
        "the paper's; ten fresh ones (1000 to 1009) chose nothing (`sheafdeq evaluate results/runs "
        "--fresh --out results/evaluations`, and `--validation-graphs`). At rest: test and fresh "
        "graphs, of all seeds together, on which plain iteration in double precision from six "
        "starts of scale 1e-3 to 1e3 ends in one state with a largest relative change of 1e-12 "
        "(`--rest 1000`).\n\n" + markdown_grid(header, lines)
    )


def rest_text(evidence: Evidence, runs: Sequence[str]) -> str:
    """``39 of 39``: test and fresh graphs at rest, over the runs that were iterated on."""
    found = [
        record.rest
        for record in evidence.found.evaluations
        if record.rest is not None and record.run in runs and record.label in ("trained", "fresh")
    ]
    if not found:
        return "-"
    return f"{sum(r['resting'] for r in found)} of {sum(r['graphs'] for r in found)}"
