"""d_out under bounded staleness beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sheafdeq.report.tables.paper import paper_numbers
from sheafdeq.report.tables.table import Cell, Row, Table

__all__ = [
    "staleness_table",
]


def staleness_table(payloads: Sequence[Mapping[str, Any]], *, full: bool = False) -> Table:
    """d_out under bounded staleness; ``payloads`` are what ``sheafdeq async`` writes (schema
    ``sheafdeq.async/1``).

    Every level-7 run with a study of the schedules has a row of its own beside the paper's; runs of
    models the paper did not measure follow. Studies of faults and of long delays are other
    experiments and are left out.
    """
    paper = paper_numbers("staleness")
    lines = [line for line in paper["rows"] if full or line["compact"]]
    studies = [
        p
        for p in payloads
        if p["study"] == "schedules" and (p["task"] or {}).get("level") in (7, None)
    ]
    rows, notes = [], []

    def add(study: Mapping[str, Any], title: str, condition: tuple[int, int]) -> bool:
        cell = _staleness_cell(study, condition)
        if cell is None:
            return False
        run = (study.get("run") or "")[:8]
        rows.append(Row(title, f"ours {run}".strip(), (cell,)))
        reference = study["reference"]
        notes.append(
            f"{study['model']['title']} {run}: reference {reference['kind']}, "
            f"{reference['steps']} iterations, {reference['status']}; "
            f"simulation {study['simulation']}"
        )
        return True

    for line in lines:
        condition = (line["update_window"], line["max_delay"])
        title = f"{line['title']} {condition}"
        found = [
            study
            for study in studies
            if study["model"]["name"] == line["model"] and add(study, title, condition)
        ]
        if not found:
            rows.append(Row(title, "ours", (Cell(form=".2e"),)))
        rows.append(Row("", "paper", (Cell(tuple(line["d_out"]), ".2e"),)))
    known = {line["model"] for line in paper["rows"]}
    for study in studies:
        if study["model"]["name"] not in known:
            for condition in dict.fromkeys(
                (line["update_window"], line["max_delay"]) for line in lines
            ):
                add(study, f"{study['model']['title']} {condition}", condition)
    if any(cell.marks for row in rows for cell in row.cells):
        notes.append(
            "† the synchronous reference itself did not settle: d_out compares two "
            "moments of something that moves"
        )
    return Table(paper["title"], ("d_out",), tuple(rows), tuple(dict.fromkeys(notes)))


def _staleness_cell(study: Mapping[str, Any], condition: tuple[int, int]) -> Cell | None:
    for found in study["conditions"]:
        if (found["update_window"], found["max_delay"]) == condition:
            spread = found["d_out"]
            values = None if spread is None else (spread["median"], spread["min"], spread["max"])
            marks = () if study["reference"]["status"] == "converged" else ("†",)
            runs = (study["run"],) if study.get("run") else ()
            return Cell(values, ".2e", (found["counted"], found["samples"]), marks, runs=runs)
    return None
