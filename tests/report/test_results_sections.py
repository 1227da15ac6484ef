"""Sections of RESULTS.md that answer one question each."""

from __future__ import annotations

import pytest

from report.report_records import SOLVES, evaluation_payload, record
from sheafdeq.records import EvaluationRecord
from sheafdeq.report.collection import Collection
from sheafdeq.report.evidence import Evidence
from sheafdeq.report.explanations import Explanations
from sheafdeq.report.figures import Source
from sheafdeq.report.graph_scores import graph_scores_text
from sheafdeq.report.group_rows import (
    ablation_text,
    group_rows,
    reading_text,
    spread_text,
    trials,
)
from sheafdeq.report.seeds_figure import seeds_figure
from sheafdeq.report.selection import protocol, select, summarise
from sheafdeq.report.time_to_accuracy import time_text
from sheafdeq.training.sweep import Sweep


def answering(config, *, test=90.0, validation=91.0, **changes):
    """A record of exactly this configuration."""
    shape = record(test=test, validation=validation, level=config.task.level)
    solves = {**SOLVES, "to_tolerance": False, "steps": 20, "residual": 0.25}
    payload = {
        **shape.payload(),
        "id": f"{config.model.name}{config.seed}{test}".ljust(64, "0"),
        "config": config.payload(),
        "model": {
            **shape.model.model_dump(),
            "name": config.model.name,
            "family": config.model.name,
        },
        "solves": solves,
        "timing": {"cpu_seconds": 100.0, "finished": "1"},
        **changes,
    }
    return type(shape).parse(payload, "test")


def evidence_of(records, evaluations=()):
    found = Collection(tuple(records), tuple(evaluations))
    return Evidence(
        found, summarise(records), select, Explanations((), ()), found.fresh_scores(), protocol
    )


def evaluation(run, label, score, rest=None):
    payload = {**evaluation_payload(run, score, label), "rest": rest}
    return EvaluationRecord.parse(payload, "test")


def configs(preset, title):
    sweep = Sweep.load(preset)
    (group,) = [group for group in sweep.file.parts if group.title == title]
    return list(sweep.configs_of(group))


def test_a_record_answers_the_group_that_asks_for_its_configuration_and_no_other():
    config = configs("ablation", "without random starts")[1]
    rows = [row for row in group_rows("ablation", [answering(config)]) if row.records]
    assert [(row.title, row.planned, len(row.records)) for row in rows] == [
        ("without random starts", 3, 1)
    ]


def test_runs_of_an_ablation_are_apart_unless_a_table_asks_for_them_too():
    alone = answering(configs("ablation", "without random starts")[0], test=1.0)
    shared = answering(configs("cascade-ablation", "the recipe")[0], test=2.0)
    last = Sweep.load("evidence").file.parts[-1].title
    other = answering(configs("evidence", last)[0], test=3.0)
    assert trials([alone, shared, other]) == {alone.id}


def test_the_ablation_is_told_on_validation_graphs_and_never_on_test():
    runs = [
        answering(config, test=12.3 + number, validation=80.0 + number)
        for number, config in enumerate(configs("ablation", "the recipe"))
    ]
    judged = [
        evaluation(runs[0], "validation-graphs", 77.7, {"resting": 5, "graphs": 6}),
        evaluation(runs[1], "validation-graphs", 77.7, {"resting": 6, "graphs": 6}),
        evaluation(runs[1], "fresh", 11.1, {"resting": 0, "graphs": 10}),
    ]
    text = ablation_text(evidence_of(runs, judged), "ablation", "recipe")
    assert "| the recipe | 3/3 | 77.7 | 81.0 [80.0, 82.0] | 11 of 12 |" in text
    assert "12.3" not in text
    assert "Not run yet" in ablation_text(evidence_of([]), "ablation", "recipe")


def test_readings_of_the_warm_up_stand_beside_the_papers_range():
    sweep = Sweep.load("evidence")
    group = next(g for g in sweep.file.parts if g.title == "reading: warm-up of a fifth")
    (config,) = [c for c in sweep.configs_of(group) if c.task.level == 7]
    run = answering(config, test=98.1)
    facts = {"title": "Loop Transformer", "options": {"dropout": 0.1, "masks": "loop"}}
    run = run.model_copy(update={"model": run.model.model_copy(update=facts)})
    text = reading_text(evidence_of([run]))
    assert (
        "| Loop Transformer | L7 | warm-up of a fifth | 98.1 | 1 of 1 | 98.8 [97.0, 99.2]" in text
    )


def test_scores_say_on_which_graphs_they_were_taken():
    run = record(test=98.0, validation=99.0)
    fresh, chosen = evaluation(run, "fresh", 97.1), evaluation(run, "validation-graphs", 96.2)
    line = "| Sheafdeq [paper] | L10 | 1 | 99.0 | 96.2 | 98.0 | 97.1 | - |"
    assert line in graph_scores_text(evidence_of([run], [fresh, chosen]))
    assert "Not evaluated yet" in graph_scores_text(evidence_of([run]))
    resting = evaluation(run, "fresh", 97.1, {"resting": 9, "graphs": 10})
    again = evaluation(run, "trained", 98.0, {"resting": 3, "graphs": 3})
    assert "| 97.1 | 12 of 13 |" in graph_scores_text(evidence_of([run], [resting, again]))


@pytest.mark.parametrize(
    ("curve", "words"),
    [([50.0, 94.9, 95.0, 99.0], "| 1 of 1 | 50 |"), ([50.0, 60.0, 70.0, 80.0], "No run")],
)
def test_time_to_accuracy_is_the_share_of_the_epochs_until_the_score_is_reached(curve, words):
    run = record(test=98.0, validation=99.0)
    run = run.model_copy(
        update={
            "curves": {"validation": curve},
            "epochs": 4,
            "timing": {"cpu_seconds": 100.0},
        }
    )
    assert words in time_text(evidence_of([run]))


def test_the_picture_of_seeds_reads_every_run_of_its_rows_and_no_other():
    runs = [record(test=90.0 + seed, validation=1.0, seed=seed) for seed in (1, 2)]
    other = record(test=50.0, validation=1.0, schedule="constant")
    sources = [Source(run.id, "", {}, run) for run in (*runs, other)]
    drawing = seeds_figure(evidence_of([*runs, other]), sources)
    assert {source.run.id for source in drawing.sources} == {run.id for run in runs}


def test_a_spread_of_equal_numbers_is_one_number():
    assert spread_text([1.0, 1.04]) == "1.0"
    assert spread_text([1.0, 3.0, 2.0]) == "2.0 [1.0, 3.0]"
    assert spread_text([]) == "-"
