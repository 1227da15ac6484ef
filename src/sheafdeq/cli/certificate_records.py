"""Stored certificates: which are there, whether they still hold, and their table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sheafdeq.errors import UsageError
from sheafdeq.report.grid import fitted, markdown_grid

__all__ = [
    "EARLIER",
    "SCHEMA",
    "TABLE",
    "certificate_code",
    "finished_certificates",
    "print_stored",
    "render",
    "table_row",
    "verdict_text",
    "witness_path",
]

SCHEMA = "sheafdeq.certificate/2"
"""Version 1 called two states with small residuals *refuted*; from version 2 on that verdict needs
a proof."""
EARLIER = "sheafdeq.certificate/1"
TABLE = "certificates.md"
COLUMNS = (
    "model",
    "task",
    "seed",
    "run",
    "scheme",
    "verdict",
    "rate",
    "metric",
    "Perron root of |J|, upper bound",
    "spectral radius",
    "residual",
    "seconds",
)


def witness_path(record: Path) -> Path:
    """Where the two states of a record's witness are."""
    return record.with_suffix(".witness.safetensors")


def certificate_code(model: Any) -> str:
    """Digest of the code behind a certificate: the examination, the model's rule, the model
    (:mod:`sheafdeq.identity`)."""
    from sheafdeq.certificates import certify, rule_for
    from sheafdeq.identity import code_identity, model_roles

    return code_identity(
        {**model_roles(model), "certificate": [certify, rule_for(type(model))]}
    ).digest


def print_stored(options: Any) -> int:
    """The table from the records of a folder alone, whatever scheme made them."""
    from sheafdeq.errors import RecordError
    from sheafdeq.records import read_sealed, write_bytes

    root = Path(options.table)
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    rows, unread = [], []
    for path in sorted(root.glob("*.json")):
        try:
            payload = read_sealed(path)
        except RecordError as error:
            unread.append(str(error))
            continue
        if (
            isinstance(payload, dict)
            and payload.get("schema") in (SCHEMA, EARLIER)
            and payload.get("run")
        ):
            rows.append(payload)
    rows.sort(key=lambda row: (row["task"], row["model"], row["seed"], row["run"]))
    if options.json:
        print(json.dumps({"rows": rows, "unread": unread}))
    else:
        print(render(rows, options.format))
        for message in unread:
            print(f"not read: {message}", file=sys.stderr)
    if options.out:
        command = f"sheafdeq certify --table {options.table} --out {options.out}"
        write_bytes(
            Path(options.out) / TABLE, f"`{command}`\n\n{render(rows, 'markdown')}\n".encode()
        )
    return 1 if unread else 0


def finished_certificates(folder: Path, options: Any) -> dict[str, dict[str, Any]]:
    """Run id -> certificate record of the same options, and no less effort; altered records are
    made again."""
    from sheafdeq.certificates import EFFORTS
    from sheafdeq.errors import RecordError
    from sheafdeq.records import read_sealed

    part = options.split if options.graph == "all" else f"{options.split}[{options.graph}]"
    # in ascending order: a greater effort will do
    enough = list(EFFORTS)[list(EFFORTS).index(options.effort) :]
    wanted = {"schema": SCHEMA, "part": part, "starts_seed": options.seed}
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            payload = read_sealed(path)
        except RecordError:
            continue
        if (
            not isinstance(payload, dict)
            or not payload.get("run")
            or payload.get("effort") not in enough
        ):
            continue
        if payload["certificate"].get("witness") is not None and not _has_witness(
            witness_path(path), payload.get("witness_sha256")
        ):
            continue  # a verdict without its states is made again
        if all(payload.get(key) == value for key, value in wanted.items()):
            found[payload["run"]] = payload
    return found


def _has_witness(path: Path, digest: str | None) -> bool:
    """Whether the two states are there, and are the ones the record was written with."""
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False


def verdict_text(payload: dict[str, Any]) -> str:
    """The verdict of a record in today's words; what an earlier scheme called refuted without a
    proof is two candidates."""
    certificate = payload["certificate"]
    verdict, witness = certificate["verdict"], certificate["witness"]
    if payload.get("schema") == EARLIER and verdict == "refuted" and not witness["proved"]:
        return "two candidates (scheme 1 said refuted)"
    if witness is not None:
        result: str = verdict
        return result
    radius = "" if certificate["radius"] is None else f", radius {certificate['radius']:.2g}"
    return f"{verdict} ({certificate['level']}{radius})"


def table_row(payload: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table, in the order of :data:`COLUMNS`."""
    certificate = payload["certificate"]
    local = certificate["observations"].get("at the reached state", {})

    def number(value: Any, form: str = ".4f") -> str:
        return format(value, form) if isinstance(value, int | float) else "-"

    return (
        payload["model"],
        payload["task"],
        str(payload["seed"]),
        (payload["run"] or "-")[:8],
        payload["schema"].rpartition("/")[2],
        verdict_text(payload),
        number(certificate["rate"]),
        (certificate["metric"] or "-").split(",")[0].split(" (")[0],
        number(local.get("Perron root of |J|, upper")),
        number(local.get("spectral radius of J (estimate)")),
        number(certificate["observations"].get("residual"), ".1e"),
        f"{certificate['seconds']:.0f}",
    )


def render(rows: list[dict[str, Any]], form: str) -> str:
    """The table as aligned text or Markdown."""
    lines = list(map(table_row, rows))
    if form == "markdown":
        header, *body = [[word.replace("|", "\\|") for word in line] for line in (COLUMNS, *lines)]
        return markdown_grid(header, body)
    return fitted(COLUMNS, lines, None).rstrip("\n")
