"""Accuracy against trust: which runs become points, what a point says, and that crowded labels stay
apart."""

from pathlib import Path
from typing import Any

from matplotlib.text import Text

from sheafdeq.records import CERTIFICATE_SCHEMA, DIAGNOSIS_SCHEMA
from sheafdeq.report.figures import Source, draw_all, write_drawings
from sheafdeq.report.figures.frontier import frontier_points

TITLE = "community, level 10"


def diagnosis(
    run: str, residual: float | None, score: float, groups: list[list[str]], **facts: Any
) -> Source:
    starts = [start for group in groups for start in group]
    trajectory = {"start": starts[0], "update": [1.0, residual], "score": [0.0, score]}
    payload = {
        "schema": DIAGNOSIS_SCHEMA,
        "run": run,
        "seed": 42,
        "graph": "test",
        "model": {"name": "sheafdeq", "title": "SheafDEQ", "options": {}},
        "task": {"name": "community", "title": TITLE, "level": 10, "score": "accuracy (%)"},
        "continued": {
            "iterations": 2,
            "trajectories": [trajectory],
            "agreement": {"groups": groups, "starts": starts},
        },
        **facts,
    }
    return Source(Path(f"diagnostics/{run}.json"), "0" * 64, payload)


def certificate(run: str, verdict: str) -> Source:
    facts = {"verdict": verdict, "observations": {"residual": 1e-13}}
    payload = {
        "schema": CERTIFICATE_SCHEMA,
        "run": run,
        "model": "sheafdeq",
        "task": TITLE,
        "seed": 42,
        "certificate": facts,
    }
    return Source(Path(f"certificates/{run}.json"), "1" * 64, payload)


def test_points_join_what_is_measured_with_what_is_proved():
    sources = [
        diagnosis("a", 0.6, 98.9, [["default"], ["0.001", "1"]]),
        diagnosis("b", 1e-6, 99.1, [["default", "0.001"], ["1"]]),
        # a point of its own
        diagnosis("b", 1e-9, 99.1, [["default"]], damping=0.5, label="SheafDEQ, damped 0.5"),
        diagnosis("c", None, 50.0, [["default"]]),  # lost to infinity
        certificate("b", "refuted"),
        certificate("e", "certified"),  # no run record, so no score
    ]
    points, used = frontier_points(sources, TITLE)
    assert [(point.residual, point.score, point.verdict, point.agreeing) for point in points] == [
        (0.6, 98.9, None, (1, 3)),
        (1e-9, 99.1, "refuted", None),
        (1e-6, 99.1, "refuted", (2, 3)),
    ]
    # told apart
    assert [point.text for point in points] == ["SheafDEQ a", "SheafDEQ, damped 0.5", "SheafDEQ b"]
    assert [source.path.name for source in used] == [
        "a.json",
        "b.json",
        "b.json",
        "b.json",
        "b.json",
    ]
    assert frontier_points(sources, "another task") == ([], [])


def test_a_crowded_figure_keeps_its_labels_apart(tmp_path):
    sources = []
    for number in range(9):
        run = f"run{number}"
        sources += [diagnosis(run, 10.0**-number, 98.9 + 0.01 * number, [["default"], ["1"]])]
        sources += [certificate(run, ("certified", "not certified", "refuted")[number % 3])]
    (drawing,) = draw_all(sources, ["frontier"])
    assert drawing.name == "frontier-community-level-10"
    assert len(drawing.sources) == 18
    axis = drawing.figure.axes[0]
    drawing.figure.canvas.draw()
    # of the words alone, without the line to the point
    boxes = [Text.get_window_extent(text) for text in axis.texts]
    assert [text.get_text() for text in axis.texts] == [str(number) for number in range(1, 10)]
    names = [text.get_text() for legend in drawing.figure.legends for text in legend.get_texts()]
    assert sum("[1 of 2]" in name for name in names) == 9
    for i, first in enumerate(boxes):
        assert not any(first.overlaps(second) for second in boxes[:i])
    assert {line.get_marker() for line in axis.lines} >= {"o", "s", "X"}
    written = write_drawings([drawing], tmp_path, "sheafdeq figures", ["png", "pdf", "svg"])
    assert {path.suffix for path in written} == {".svg", ".pdf", ".png", ".json"}
    assert all(path.stat().st_size > 100 for path in written)


def test_other_levels_are_drawn_only_when_something_is_certified():
    task = {"name": "community", "title": "community, level 7", "level": 7, "score": "accuracy (%)"}
    assert draw_all([diagnosis("a", 0.5, 99.0, [["default"]], task=task)], ["frontier"]) == []
