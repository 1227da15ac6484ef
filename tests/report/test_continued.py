"""Continued iteration, in the table of RESULTS.md and as a picture: a state that swings is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sheafdeq.records import read_sealed
from sheafdeq.report.collection import Collection
from sheafdeq.report.continued_rows import continued_rows
from sheafdeq.report.evidence import Evidence
from sheafdeq.report.explanations import Explanations
from sheafdeq.report.figures import Source
from sheafdeq.report.figures.continued import continued_short
from sheafdeq.report.selection import protocol, select

RECORDED = Path(__file__).parents[2] / "results" / "diagnostics"
HORIZON, ITERATIONS = 20, 40


@pytest.fixture
def swinging() -> dict:
    """A diagnosis whose accuracy is 99 % at even and 33 % at odd iterations, 10 % before all."""
    path = next(iter(sorted(RECORDED.glob("community-7-sheafdeq-*.json"))), None)
    if path is None:
        pytest.skip("no diagnoses: run sheafdeq studies results/runs --paper")
    payload = read_sealed(path)
    scores = [10.0] + [99.0 if k % 2 == 0 else 33.0 for k in range(1, ITERATIONS + 1)]
    bands = {
        name: {part: values[:ITERATIONS] for part, values in band.items()}
        for name, band in payload["continued"]["bands"].items()
    }
    bands["score"] = {"median": scores, "lower": scores, "upper": scores}
    continued = {**payload["continued"], "horizon": HORIZON, "iterations": ITERATIONS}
    return {**payload, "continued": {**continued, "bands": bands}}


def test_the_row_tells_the_lowest_score_since_the_horizon(swinging):
    found = Collection((), (), diagnostics=(swinging,))
    evidence = Evidence(found, [], select, Explanations((), ()), {}, protocol)
    (row,) = continued_rows(evidence)
    assert (row.score_at_horizon, row.score_last, row.score_lowest) == (99.0, 99.0, 33.0)
    assert "33.0" in row.words()


def test_a_figure_may_end_before_its_records(swinging):
    import matplotlib.pyplot as plt

    source = Source(Path("diagnostics/a.json"), "0" * 64, swinging)
    lengths = {}
    for until in (None, 30):
        drawing = continued_short([source], "community, level 7", until)
        update, score = (axis.lines[0].get_xdata() for axis in drawing.figure.axes)
        lengths[until] = (list(update)[-1], list(score)[-1])
        plt.close(drawing.figure)
        assert ("Drawn up to iteration 30." in drawing.caption) == (until == 30)
    assert lengths == {None: (40, 40), 30: (30, 30)}
