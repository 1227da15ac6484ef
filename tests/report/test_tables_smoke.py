"""The tables of the smoke sweep in the repository, made again from its records."""

from __future__ import annotations

from pathlib import Path

import pytest

from sheafdeq.cli import main
from sheafdeq.records import canonical_json, read_records
from sheafdeq.training.sweep import Sweep

SMOKE = Path(__file__).parents[2] / "results" / "smoke"


@pytest.mark.parametrize(
    ("name", "options"), [("table.txt", []), ("table_full.md", ["--full", "--format", "markdown"])]
)
def test_tables_of_the_smoke_sweep_come_out_equal(name, options, capsys):
    assert main(["tables", "all", "--results", str(SMOKE), *options]) == 0
    assert capsys.readouterr().out == (SMOKE / name).read_text()


def test_the_smoke_records_are_the_smoke_preset():
    configs = [record.config for record in read_records(SMOKE)]
    expected = [config.payload() for config in Sweep.load("smoke").configs()]
    assert sorted(map(canonical_json, configs)) == sorted(map(canonical_json, expected))


def test_records_are_small_enough_to_commit():
    assert max(path.stat().st_size for path in SMOKE.glob("*.run.json")) < 20_000
