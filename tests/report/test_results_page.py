"""RESULTS.md is what the records say, and says what differs, what explains it and what is not
there."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.report_records import evaluation_payload, record
from sheafdeq.cli import main
from sheafdeq.cli.tables import RESULTS_COMMAND, evidence_folders, evidence_of
from sheafdeq.errors import InputError
from sheafdeq.records import write_sealed
from sheafdeq.report.evidence import differences
from sheafdeq.report.explanations import read_explanations
from sheafdeq.report.headlines import _spreads, headlines
from sheafdeq.report.results_page import BEGIN, END, results_page, with_section
from sheafdeq.report.tables import Cell

ROOT = Path(__file__).parents[2]


def test_the_page_and_the_readme_are_what_the_records_say():
    """Run `make results` after adding records."""
    evidence = evidence_of(
        evidence_folders(ROOT / "results"), ROOT / "results" / "explanations.toml"
    )
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == results_page(
        evidence, RESULTS_COMMAND
    )
    tables = {name: evidence.table(name) for name in ("community", "distributed")}
    lines = [f"* {line}" for line in headlines(evidence, tables, differences(evidence))]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in readme
    assert with_section(readme, lines) == readme
    assert len(lines) == 5
    assert (ROOT / "docs" / "figures" / "results-community.png").is_file()


@pytest.fixture
def results(tmp_path):
    """Three levels of SheafDEQ: inside, above by less than two points, below by more; IGNN far
    above; and an error that is larger."""
    folder = tmp_path / "results"
    folder.mkdir()
    runs = {
        "inside": record(test=98.5, validation=1.0),
        "near": record(test=98.9, validation=1.0, level=9),
        "below": record(test=60.0, validation=1.0, level=7),
        "above": record(test=60.6, validation=1.0, model="ignn", shift=None),
        "error": record(test=-0.5, validation=1.0, task="counting", level=None),
        "other": record(test=20.0, validation=1.0, schedule="constant"),
    }
    for name, run in runs.items():
        # Ids of real runs are hexadecimal digests.
        payload = {
            **run.payload(),
            "id": f"{name:x<8}".ljust(64, "0"),
            "timing": {"cpu_seconds": 90.0, "finished": "1"},
        }
        write_sealed(folder / f"{name}.run.json", payload)
    write_sealed(
        folder / "inside.eval.json",
        {**evaluation_payload(runs["inside"], 97.0), "run": "insidexx".ljust(64, "0")},
    )
    return folder


def evidence_below(folder):
    return evidence_of(evidence_folders(folder), folder / "explanations.toml")


def test_differences_beyond_two_points_are_explained_or_unexplained(results):
    found = {(d.row, d.column): d for d in differences(evidence_below(results))}
    assert set(found) == {
        ("SheafDEQ, shift 1.3", "L7"),
        ("IGNN", "L10"),
        ("SheafDEQ, shift 1.3", "Counting"),
    }
    assert {d.explanation for d in found.values()} == {"unexplained"}
    (results / "explanations.toml").write_text(
        """
        [[explanation]]
        table = "community"
        row = "IGNN"
        text = "Seen before."
        records = ["abovexxx"]
        [[explanation]]
        table = "community"
        row = "SheafDEQ, shift 1.3"
        column = "L7"
        text = "Nobody knows."
        records = ["belowxxx", "ffffffff"]
        """
    )
    evidence = evidence_below(results)
    found = {(d.row, d.column): d.explanation for d in differences(evidence)}
    assert found["IGNN", "L10"] == "Seen before. (`abovexxx`)"
    assert found["SheafDEQ, shift 1.3", "L7"] == "unexplained"  # one of its records does not exist
    assert evidence.explanations.unsupported == (
        "community, SheafDEQ, shift 1.3, L7: no record ffffffff",
    )


def test_the_page_says_what_it_must(results, capsys):
    page = results_page(evidence_below(results), RESULTS_COMMAND)
    assert "5 of the 79 cells" in page
    assert "1 inside its range, 2 above, 2 below" in page
    assert "3 cells lie more than 2 points outside, 3 of them unexplained" in page
    assert "by the paper's protocol: 60.0, 98.9, 98.5 % at L7, L9, L10 (one seed); inside" in page
    assert "inside the paper's range but for L7 (34.8 below), L9 (0.6 above)." in page
    assert "| L10 | L10 fresh |" in page
    assert "97.0 1/1" in page
    assert "| community | SheafDEQ | 3 | 4.5 | 1.5 |" in page
    assert "| community | SheafDEQ | L1, L3, L5 | L7 1/5, L9 1/5, L10 1/5 |" in page
    assert "Coordinates (none in the paper either)" in page  # EnergyGNN
    assert "SheafDEQ [constant rate]" in page
    assert "residual 8.95e-07 after 420 iterations" in page
    (results / "near.run.json").write_text("{}")
    assert "1 files excluded: near.run.json" in results_page(
        evidence_below(results), RESULTS_COMMAND
    )


def test_the_command_writes_page_readme_and_picture(results, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    words = [
        "tables",
        "results",
        "--results",
        str(results),
        "--out",
        str(tmp_path / "RESULTS.md"),
        "--figures",
        str(tmp_path / "figures"),
    ]
    assert main(words) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\n* **Coverage.** 5 of the 79")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert (tmp_path / "figures" / "results-community.png").stat().st_size > 1000
    assert main(["tables", "results", "--results", str(results)]) == 0
    assert capsys.readouterr().out == (tmp_path / "RESULTS.md").read_text()
    # a damaged record is named and left out of the picture, too
    (results / "near.run.json").write_text("{}")
    assert main(words) == 0
    assert "excluded near.run.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[explanation", "TOML"),
        ('[[explanation]]\ntable = "community"\n', "explanation.0.row"),
        ('[[explanation]]\ntable="a"\nrow="b"\ntext="c"\nrecords=[]\n', "records"),
        ('[[explanations]]\ntable="a"\n', "explanations"),
    ],
)
def test_a_file_of_explanations_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "explanations.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_explanations(path, [])


def test_a_page_without_marks_is_left_alone():
    assert with_section("nothing here", ["x"]) == "nothing here"
    assert with_section(f"{BEGIN} but no end", ["x"]) == f"{BEGIN} but no end"


def test_pilots_and_smoke_tests_are_not_evidence(tmp_path):
    assert evidence_folders(tmp_path) == [tmp_path]
    for name in ("runs", "pilots", "smoke", "evaluations"):
        (tmp_path / name).mkdir()
    assert evidence_folders(tmp_path) == [tmp_path / "runs", tmp_path / "evaluations"]


def test_the_line_on_information_tells_the_range_of_seeds_that_differ():
    one = ("L3 (accuracy)", Cell((46.3, 46.3, 46.3), ".1f", (1, 5)))
    two = ("L7 (accuracy)", Cell((77.2, 62.2, 92.1), ".1f", (2, 5)))
    assert _spreads([one, two]) == "46.3, 77.2 [62.2, 92.1]"
