"""A slice of the fuzzing campaign, and proof that the fuzzer finds what it looks for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sheafdeq.errors import OptionError
from sheafdeq.fuzzing import TARGETS, campaign, run_campaign
from sheafdeq.fuzzing.broken_targets import BROKEN
from sheafdeq.records import read_sealed

STORED = Path(__file__).parents[1] / "results" / "fuzz.json"


def test_a_slice_of_every_door():
    report = run_campaign(6 * len(TARGETS), seed=1, jobs=2)
    assert report.failures == []
    assert report.cases == 6 * len(TARGETS)
    assert set(report.outcomes) == set(TARGETS)
    assert any("result" in counts for counts in report.outcomes.values())
    json.dumps(report.payload())


def test_the_guard_refuses_libraries_but_not_the_process_itself(tmp_path):
    script = (
        "import ctypes, pathlib, sys\n"
        "from sheafdeq.fuzzing.guard import ForbiddenAct, Guard\n"
        "guard = Guard()\n"
        "with guard.watching(pathlib.Path(sys.argv[1])):\n"
        "    ctypes.CDLL(None)\n"
        "    assert guard.violations == []\n"
        "    try:\n"
        "        ctypes.CDLL('libstranger.so')\n"
        "    except ForbiddenAct:\n"
        "        print(*guard.violations)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "ctypes.dlopen" in found
    assert "libstranger.so" in found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_campaign():
    report = run_campaign(10_000, seed=2, jobs=2)
    assert report.failures == []


def test_broken_loaders_are_caught(monkeypatch):
    """One fault each: unpickling, believing sizes, a crash, writing elsewhere, an unnamed error, a
    hang."""
    monkeypatch.setattr(campaign, "SECONDS", 8.0)
    report = run_campaign(2 * len(BROKEN), seed=0, targets=list(BROKEN), jobs=2)
    found = {failure["target"]: failure["failure"] for failure in report.failures}
    assert set(found) == set(BROKEN)
    assert "violation: pickle.find_class" in found["broken-unpickles"]
    assert "MemoryError" in found["broken-sizes"]
    assert "killed its process" in found["broken-crashes"]
    assert (
        "violation, swallowed: open outside" in found["broken-writes"]
        or ("violation: open outside") in found["broken-writes"]
    )
    assert "KeyError" in found["broken-unnamed"]
    assert "took more than" in found["broken-hangs"]


def test_a_case_is_the_same_every_time():
    first, second = (list(campaign.cases_of(30, 5, list(TARGETS))) for _ in range(2))
    assert first == second
    assert first != list(campaign.cases_of(30, 6, list(TARGETS)))


def test_unknown_targets_are_named():
    with pytest.raises(OptionError, match="did you mean 'npz'"):
        run_campaign(1, targets=["npx"])


def test_the_stored_campaign_has_no_failure():
    stored = read_sealed(STORED)
    assert stored["command"].startswith("python -m sheafdeq.fuzzing --cases")
    assert (
        stored["cases"]
        == sum(sum(counts.values()) for counts in stored["targets"].values())
        >= 10_000
    )
    assert stored["failed"] == 0
    assert set(stored["targets"]) <= set(TARGETS)
