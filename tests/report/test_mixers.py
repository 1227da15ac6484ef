"""The two readings of W_1 side by side."""

from report.report_records import record
from sheafdeq.cli.tables import evidence_of
from sheafdeq.records import write_sealed
from sheafdeq.report.mixers import mixers_text


def _evidence(folder, runs):
    for number, run in enumerate(runs):
        payload = {**run.payload(), "id": f"{number:x}".ljust(64, "0")}
        payload["model"] = {**payload["model"], "title": "SheafDEQ"}
        payload["timing"] = {"cpu_seconds": 90.0, "finished": "1"}
        write_sealed(folder / f"{number}.run.json", payload)
    return evidence_of([str(folder)], folder / "explanations.toml")


def test_the_readings_stand_beside_the_paper_s_numbers(tmp_path):
    text = mixers_text(
        _evidence(
            tmp_path,
            [
                record(test=72.5, validation=70.0, level=7),
                record(test=99.0, validation=99.0, level=7, mixers="channels"),
                record(test=98.6, validation=99.0, level=10),
                record(
                    test=-0.012, validation=-0.01, task="coordinates", level=None, mixers="channels"
                ),
            ],
        )
    )
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 4  # header, rule, L7, Coordinates; not L10, which has one reading
    assert "| L7 | 72.5 1/5 below 22.3 | 99.0 1/5 inside | 99.0 [94.8, 99.1] |" in lines
    assert lines[-1].startswith("| Coordinates | missing | -0.012 1/5 inside | -0.012 [-0.018,")


def test_nothing_is_told_before_it_was_run(tmp_path):
    assert "Not run yet" in mixers_text(_evidence(tmp_path, [record(test=98.6, validation=99.0)]))
