"""The groups of a sweep preset as rows: what each asked for, and the runs that answer it.

A preset such as ``ablation`` changes one thing in each group; a record answers a group when its
configuration is one the group asks for, whichever sources computed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sheafdeq.records import RunRecord
from sheafdeq.report.evidence import Evidence, paired_rows, short_title
from sheafdeq.report.grid import markdown_grid
from sheafdeq.training.sweep import Sweep, answered, question

__all__ = ["GroupRow", "ablation_text", "group_rows", "reading_text", "spread_text", "trials"]

ABLATIONS = ("ablation", "cascade-ablation")
"""Presets whose runs stand in tables of their own."""
TABLED = ("evidence", "reliable")
"""Presets whose runs stand in the paper's tables, whoever else asks for them."""

READING = "reading: "
WARM_UP = f"{READING}warm-up"
"""How the groups of the preset ``evidence`` begin that settle the length of the warm-up."""


@dataclass(frozen=True)
class GroupRow:
    """One group of a preset for one model and level."""

    title: str
    model: str
    level: int | None
    planned: int
    records: tuple[RunRecord, ...]


def group_rows(preset: str, runs: Sequence[RunRecord]) -> list[GroupRow]:
    """Every group of a preset, for each model and level it names, with its finished runs.

    A configuration that two groups ask for is counted in both.
    """
    known = {answered(record): record for record in runs}
    cells: dict[tuple[str, str, int | None], list[RunRecord | None]] = {}
    sweep = Sweep.load(preset)
    for group in sweep.file.parts:
        for config in sweep.configs_of(group):
            key = (group.title, config.model.name, config.task.level)
            cells.setdefault(key, []).append(known.get(question(config)))
    return [
        GroupRow(*key, len(found), tuple(record for record in found if record is not None))
        for key, found in cells.items()
    ]


def trials(runs: Sequence[RunRecord]) -> frozenset[str]:
    """Ids of the runs that answer an ablation and nothing else."""

    def answering(presets: Sequence[str]) -> set[str]:
        rows = (row for preset in presets for row in group_rows(preset, runs))
        return {record.id for row in rows for record in row.records}

    return frozenset(answering(ABLATIONS) - answering(TABLED))


def spread_text(values: Sequence[float], form: str = ".1f") -> str:
    """``99.0 [98.1, 99.4]``, one number where they are equal, a dash where there are none."""
    if not values:
        return "-"
    middle, low, high = (format(v, form) for v in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} [{low}, {high}]"


def ablation_text(evidence: Evidence, preset: str, recipe: str) -> str:
    """A preset that changes one thing in a recipe at a time, judged on validation graphs."""
    rows = [row for row in group_rows(preset, evidence.found.runs) if row.records]
    if not rows:
        return f"Not run yet (`sheafdeq sweep run {preset}`)."
    graphs = evidence.found.scores("validation-graphs")
    rest = {
        record.run: record.rest
        for record in evidence.found.evaluations
        if record.label == "validation-graphs" and record.rest is not None
    }
    header = (recipe, "seeds", "validation graphs", "validation nodes", "graphs at rest")
    lines = []
    for row in rows:
        judged = [rest[record.id] for record in row.records if record.id in rest]
        lines.append(
            (
                row.title,
                f"{len(row.records)}/{row.planned}",
                spread_text([graphs[record.id] for record in row.records if record.id in graphs]),
                spread_text([record.scores["validation"] for record in row.records]),
                f"{sum(r['resting'] for r in judged)} of {sum(r['graphs'] for r in judged)}"
                if judged
                else "-",
            )
        )
    return (
        "Level 5, median [min, max] over the seeds; nothing here has seen a test graph "
        f"(`sheafdeq sweep run {preset}`, `sheafdeq evaluate results/runs --validation-graphs "
        "--rest 1000 --out results/evaluations`). At rest: as above, of the six validation graphs "
        "of every seed.\n\n" + markdown_grid(header, lines)
    )


def reading_text(evidence: Evidence) -> str:
    """How long the warm-up is: runs of models that are not ours under three readings."""
    rows = [row for row in group_rows("evidence", evidence.found.runs) if row.records]
    found = [row for row in rows if row.title.startswith(WARM_UP)]
    if not found:
        return "Not run yet (groups `reading` of `sheafdeq sweep run evidence`)."
    table = evidence.table("community")
    paper = {
        (short_title(ours.title), column): cell
        for ours, row in paired_rows(table)
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    lines = []
    for row in found:
        title = row.records[0].model.title
        reference = paper.get((title, f"L{row.level}"))
        lines.append(
            (
                title,
                f"L{row.level}",
                row.title.removeprefix(READING),
                spread_text([record.scores["test"] for record in row.records]),
                f"{row.records[0].best.epoch} of {row.records[0].epochs}",
                "-" if reference is None else reference.text(),
            )
        )
    header = ("model", "level", "reading", "test accuracy", "best epoch", "the paper")
    return (
        "The paper prints the schedule and not its lengths. Models that are not ours decide, one "
        "seed each.\n\n" + markdown_grid(header, lines)
    )
