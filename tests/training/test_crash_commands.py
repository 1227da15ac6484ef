"""The checks of ``benchmarks/crash_commands.py`` see what is broken on purpose; the commands
themselves pass (slow)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import loaded
from sheafdeq.records import write_sealed

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "crash_commands.py"


@pytest.fixture(scope="module")
def crash():
    return loaded(SCRIPT)


def test_half_files_and_leftovers_are_seen(crash, tmp_path):
    write_sealed(tmp_path / "a.json", {"value": 1, "timing": {"seconds": 2}})
    assert crash.half_files(tmp_path) == []
    assert crash.left_aside(tmp_path) == []
    before = crash.contents(tmp_path)
    write_sealed(tmp_path / "a.json", {"value": 1, "timing": {"seconds": 3}})
    assert crash.contents(tmp_path) == before
    write_sealed(tmp_path / "a.json", {"value": 2, "timing": {"seconds": 3}})
    assert crash.contents(tmp_path) != before
    whole = (tmp_path / "a.json").read_bytes()
    (tmp_path / "a.json").write_bytes(whole.replace(b"2", b"3", 1))
    (tmp_path / "b.json").write_bytes(whole[:-9])
    (tmp_path / "c.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    (tmp_path / "d.png").write_bytes(b"\x89PNG")
    (tmp_path / "e.svg").write_text("<svg>")
    (tmp_path / "f.md").write_text("")
    (tmp_path / ("0" * 64)).mkdir()
    seen = {line.split(":")[0] for line in crash.half_files(tmp_path)}
    assert seen == {"a.json", "b.json", "c.safetensors", "d.png", "e.svg", "f.md", "0" * 64}
    (tmp_path / ".a.json.1.00000000").write_bytes(b"half")
    assert crash.left_aside(tmp_path) == [".a.json.1.00000000"]


def test_the_recorded_outcomes_are_clean_and_cover_every_command(crash, tmp_path):
    (tmp_path / "run").mkdir()
    folder = ROOT / "results" / "crash_safety"
    recorded = [json.loads(path.read_text()) for path in folder.glob("commands-seed*.json")]
    assert [outcome["violations"] for outcome in recorded] == [0] * len(recorded)
    rows = [counts for outcome in recorded for counts in outcome["commands"] if counts["files"]]
    assert {counts["command"] for counts in rows} == set(crash.commands(tmp_path, tmp_path))
    assert all(counts["kills"] >= counts["killed_at"] > 0 for counts in rows)
    broken = json.loads((folder / "commands-broken-seed0.json").read_text())
    assert all(counts["half_files"] for counts in broken["commands"])


def _run(*arguments: str) -> tuple[int, list[dict]]:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_kills_cost_nothing_and_a_broken_writer_is_caught():
    code, (counts, total) = _run("--commands", "evaluate", "--kills", "2")
    assert (code, total["violations"]) == (0, 0)
    assert counts["kills"] >= counts["operations"] > 0
    code, (counts, total) = _run("--commands", "evaluate", "--kills", "0", "--broken")
    assert code == 1
    assert counts["half_files"] > 0
    assert total["violations"] > 0
