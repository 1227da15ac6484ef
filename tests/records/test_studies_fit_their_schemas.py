"""Every stored study fits the schema it names, and a study that does not is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from sheafdeq.errors import RecordError
from sheafdeq.records import (
    CERTIFICATE_SCHEMAS,
    DIAGNOSIS_SCHEMA,
    STALENESS_SCHEMA,
    named_schema,
    read_sealed,
    read_study,
    write_sealed,
)

RESULTS = Path(__file__).parents[2] / "results"


def stored(*schemas: str) -> list[Path]:
    return [path for path in sorted(RESULTS.rglob("*.json")) if named_schema(path) in schemas]


@pytest.mark.parametrize(
    ("schemas", "fewest"),
    [((DIAGNOSIS_SCHEMA,), 15), ((STALENESS_SCHEMA,), 20), (CERTIFICATE_SCHEMAS, 30)],
)
def test_every_stored_study_is_readable(schemas: tuple[str, ...], fewest: int) -> None:
    paths = stored(*schemas)
    assert len(paths) >= fewest
    for path in paths:
        assert read_study(path) == read_sealed(path)  # checked, and as it was written


@pytest.mark.parametrize(
    ("schema", "place", "value"),
    [
        (DIAGNOSIS_SCHEMA, "continued.horizon", "ten"),
        (DIAGNOSIS_SCHEMA, "continued.trajectories.0.update", None),
        (DIAGNOSIS_SCHEMA, "continued.bands.score", {"median": []}),
        (STALENESS_SCHEMA, "conditions.0.trajectories.0.d_out", [[]]),
        (STALENESS_SCHEMA, "reference.status", 3),
        (CERTIFICATE_SCHEMAS[0], "certificate.verdict", None),
        (CERTIFICATE_SCHEMAS[1], "run", ["a", "b"]),
    ],
)
def test_a_study_that_breaks_its_schema_is_refused_by_file_and_field(
    tmp_path: Path, schema: str, place: str, value: Any
) -> None:
    payload = copy.deepcopy(read_sealed(stored(schema)[0]))
    *path, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    part = payload
    for word in path:
        part = part[word]
    part[last] = value
    write_sealed(tmp_path / "study.json", payload)
    with pytest.raises(RecordError, match=rf"study\.json: .*{place.split('.')[-1]}"):
        read_study(tmp_path / "study.json")


def test_a_study_that_lacks_a_field_or_names_no_schema_is_refused(tmp_path: Path) -> None:
    payload = read_sealed(stored(DIAGNOSIS_SCHEMA)[0])
    write_sealed(tmp_path / "a.json", {key: payload[key] for key in payload if key != "continued"})
    write_sealed(tmp_path / "b.json", {**payload, "schema": "sheafdeq.diagnostics/9"})
    write_sealed(tmp_path / "c.json", [payload])
    with pytest.raises(RecordError, match=r"a\.json.*continued: Field required"):
        read_study(tmp_path / "a.json")
    for name in ("b.json", "c.json"):
        with pytest.raises(RecordError, match=f"{name}: not a record of a study; known"):
            read_study(tmp_path / name)
