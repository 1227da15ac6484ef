"""The history of the benchmark: what is written, and that a slower kernel is noticed."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

from sheafdeq.cli import main
from sheafdeq.errors import InputError
from sheafdeq.ops.native_module import native_available
from sheafdeq.speed.bench_page import TARGETS, bench_table, write_page
from sheafdeq.speed.history import append, fallen, history_line, read_history
from sheafdeq.speed.timings import measure

TRACKED = Path(__file__).parents[2] / "benchmarks" / "history.jsonl"

RESULT = {
    **dict.fromkeys(TARGETS, 2.0),
    "coordinates_speedup": None,
    "quick": False,
    "machine": {"processor": "one", "cores": 2, "load_average": 0.1, "torch": "2"},
    "kernel": {"instruction_set": "avx2"},
}


def line(**changes: float) -> dict:
    return history_line({**RESULT, **changes})


def test_a_line_has_commit_machine_and_the_ratios_that_were_measured(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append(RESULT, path)
    append({**RESULT, "sums_speedup": 3.0}, path)
    first, second = read_history(path)
    assert set(first) == {"commit", "machine", "quick", "load_average", "ratios"}
    assert first["machine"] == {"processor": "one", "cores": 2, "instruction_set": "avx2"}
    assert set(first["ratios"]) == set(TARGETS) - {"coordinates_speedup"}
    assert second["ratios"]["sums_speedup"] == 3.0


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "coordinates_speedup"])
def test_a_ratio_that_falls_by_more_than_a_fifth_is_named(name: str) -> None:
    better = TARGETS[name].more_is_better
    worse, nearly = (1.5, 1.65) if better else (2.6, 2.4)
    earlier = [line(), line(**{name: worse})]  # against the best, not against the last
    (sentence,) = fallen(line(**{name: worse}), earlier)
    assert name in sentence
    assert "2" in sentence
    assert fallen(line(**{name: nearly}), earlier) == []


def test_only_the_same_kind_of_machine_and_run_is_compared() -> None:
    other, quick = copy.deepcopy(line()), copy.deepcopy(line())
    other["machine"]["instruction_set"] = "avx512"
    quick["quick"] = True
    assert fallen(line(memory_ratio=0.1), [other, quick]) == []


def test_the_page_has_figure_and_target_side_by_side(tmp_path: Path) -> None:
    table = bench_table({**RESULT, "speedup_over_pyg": 19.0, "times_arithmetic_limit": 2.5})
    assert "(`speedup_over_pyg`) | 19.00 | at least 18 | met |" in table
    assert "(`times_arithmetic_limit`) | 2.50 | at most 1.6 | missed |" in table
    assert "(`coordinates_speedup`) | not measured |" in table
    with pytest.raises(InputError, match="no place for the table"):
        write_page(RESULT, tmp_path / "page.md")


def test_a_record_is_read_instead_of_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    assert main(["bench", "--from", str(tmp_path / "broken.json")]) != 0
    assert "no record of sheafdeq bench" in capsys.readouterr().err


def test_a_history_without_a_folder_is_refused_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--quick", "--history", str(tmp_path / "none" / "h.jsonl")]) != 0
    assert "--history" in capsys.readouterr().err


def test_no_line_of_the_tracked_history_fell() -> None:
    """Of each kind of machine, the newest line against all before it."""
    lines = read_history(TRACKED)
    newest = {json.dumps([entry["machine"], entry["quick"]]): i for i, entry in enumerate(lines)}
    assert [fallen(lines[i], lines[:i]) for i in newest.values()] == [[]] * len(newest)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not native_available(), reason="the kernel is not built")
def test_the_step_is_as_fast_as_it_was_on_this_kind_of_machine() -> None:
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        pytest.skip("other work on this machine: ratios would tell about that")
    now = history_line(measure(quick=True))
    same = [
        entry
        for entry in read_history(TRACKED)
        if entry["machine"] == now["machine"] and entry["quick"]
    ]
    if not same:
        pytest.skip("no quick run on this kind of machine yet: sheafdeq bench --quick --history")
    assert fallen(now, same) == []
