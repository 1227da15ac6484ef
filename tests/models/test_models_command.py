"""``sheafdeq models`` prints what the code holds."""

from __future__ import annotations

import json

import pytest

from sheafdeq.cli import main
from sheafdeq.registry import MODELS


def test_json_lists_every_model_with_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert {row["name"] for row in rows} == set(MODELS)
    for row in rows:
        assert row["parameters_f3"] > row["parameters_f2"] > 0
        if row["parameters_paper"] is not None:
            assert (row["parameters_f3"] == row["parameters_paper"]) != row["name"].startswith(
                "sheafdeq"
            )
        for column in ("propagation", "well_posedness", "gradient", "inference"):
            assert row[column]


def test_a_name_adds_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "dnsd"]) == 0
    text = capsys.readouterr().out
    assert "25,659" in text
    assert "gate=False" in text
    assert "APPNP" not in text


def test_unknown_names_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "resnet"]) == 2
    assert "Choose from: mlp" in capsys.readouterr().err
