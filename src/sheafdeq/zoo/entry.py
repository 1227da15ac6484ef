"""A named model made from a finished run. Every number comes from a record: the run's, and its
certificate's."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.evaluation.evaluate import Checkpoint, load
from sheafdeq.pretrained import PRETRAINED_FACTS, PRETRAINED_TENSORS
from sheafdeq.records import (
    CERTIFICATE_SCHEMA,
    RECORD_FILE,
    RunRecord,
    read_sealed,
    verdict_of,
    write_bytes,
    write_sealed,
)
from sheafdeq.report.selection import protocol
from sheafdeq.training.recipe import recipe_values
from sheafdeq.training.run_identity import task_of
from sheafdeq.zoo import CARD, CERTIFICATE, FOLDER, METRICS, SCHEMA

__all__ = ["add", "default_name"]

_KEPT = ("task", "model", "config", "code", "scores", "metrics", "solves")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}/[a-z0-9][a-z0-9-]{0,60}")


def default_name(record: RunRecord) -> str:
    """``community-7/sheaf-cascade``."""
    level = "" if record.task.level is None else f"-{record.task.level}"
    return f"{record.task.name}{level}/{record.model.name}"


def add(run: Path, certificate: Path, folder: Path = FOLDER, name: str | None = None) -> str:
    """Write the five files of a model below ``folder`` and return its name.

    Args:
        run: the directory of a finished run.
        certificate: a record that ``sheafdeq certify RUN --out DIR`` wrote of that run.
        folder: where the named models are.
        name: ``task/model``; by default the run's own task, level and model.
    """
    checkpoint = load(run)
    record = checkpoint.record
    name = default_name(record) if name is None else name
    if not _NAME.fullmatch(name):
        raise InputError(f"a name is task/model in small letters, digits and hyphens, got {name!r}")
    proof = read_sealed(certificate)
    if not isinstance(proof, dict) or proof.get("schema") != CERTIFICATE_SCHEMA:
        raise InputError(
            f"{certificate}: not a certificate of scheme {CERTIFICATE_SCHEMA}: make one with "
            f"`sheafdeq certify {run} --out DIR`"
        )
    if proof["run"] != record.id:
        raise InputError(
            f"{certificate} is of run {str(proof['run'])[:8]}, not of {record.id[:8]}: make one "
            f"with `sheafdeq certify {run} --out DIR`"
        )
    place, scale = folder / name, task_of(checkpoint.config).output_scale
    checkpoint.model.save_pretrained(place)
    write_sealed(place / CERTIFICATE, proof)
    text = _card(name, checkpoint, proof, scale)
    write_bytes(place / CARD, text.encode())
    files = (PRETRAINED_FACTS, PRETRAINED_TENSORS, CERTIFICATE, CARD)
    written = read_sealed(run / RECORD_FILE)  # as it stands there, whatever later versions add
    payload = {
        "schema": SCHEMA,
        "name": name,
        "run": record.id,
        "protocol": protocol(record),
        "output_scale": scale,
        **{key: written[key] for key in _KEPT},
        "files": {file: hashlib.sha256((place / file).read_bytes()).hexdigest() for file in files},
    }
    write_sealed(place / METRICS, payload)  # last: without it there is no such model
    return name


def _card(name: str, checkpoint: Checkpoint, proof: dict[str, Any], scale: float) -> str:
    record, run = checkpoint.record, f"results/runs/{checkpoint.record.id}"
    kind = type(checkpoint.model).__name__
    given = record.config["task"]["options"]
    data = f"{record.task.title}" + "".join(f", {key} = {value}" for key, value in given.items())
    metrics = sorted({metric for values in record.metrics.values() for metric in values})
    lines = [
        f"# {name}",
        "",
        f"{record.model.title} (`{kind}`, {record.model.parameters:,} parameters) trained on "
        f"{data}.",
        "",
        "```python",
        "import sheafdeq",
        "",
        f'model = sheafdeq.load("{name}")',
        "```",
        "",
        *_units(scale),
        "## Data",
        "",
        f"{data}; SHA-256 of all tensors `{record.task.digest[:16]}...`. "
        f"Score: {record.task.score}.",
        "",
        "## Recipe",
        "",
        f"{_protocol(record)}, seed {record.seed}, {record.epochs} epochs "
        f"(ended by {record.stopped}); parameters of epoch {record.best.epoch}.",
        "",
        *_training_command(record),
        "## Metrics",
        "",
        "| split | " + " | ".join(metrics) + " |",
        "|---|" + "---|" * len(metrics),
        *(
            f"| {split} | " + " | ".join(_number(values.get(metric)) for metric in metrics) + " |"
            for split, values in record.metrics.items()
        ),
        "",
        _solves(record),
        "",
        "## Certificate",
        "",
        *_certificate(proof),
        "",
        "## Record",
        "",
        f"Run `{record.id}`; `metrics.json` holds its numbers and the SHA-256 of every file here, "
        "`certificate.json` the certificate. All are made from records by",
        "",
        "```console",
        f"$ sheafdeq certify {run} --effort {proof['effort']} --out certificates",
        f"$ sheafdeq zoo add {run} --certificate certificates/{proof['file']}.json",
        "```",
        "",
    ]
    return "\n".join(lines)


def _units(scale: float) -> list[str]:
    if scale == 1.0:
        return []
    return [f"Its outputs are targets divided by {scale:.6g}, the scale of the training set.", ""]


def _protocol(record: RunRecord) -> str:
    words = protocol(record)
    if words.startswith("recipe "):
        return f"Recipe `{words.removeprefix('recipe ')}`"
    return f"The configuration in `metrics.json` ({words})"


def _training_command(record: RunRecord) -> list[str]:
    """The command line that trains the same configuration, where a recipe does."""
    words = protocol(record)
    if not words.startswith("recipe "):
        return []
    recipe = words.removeprefix("recipe ")
    command = ["sheafdeq", "train", "--recipe", recipe]
    task, own = record.config["task"], recipe_values(recipe)
    command += ["--task", task["name"], "--model", record.config["model"]["name"]]
    if record.task.level is not None:
        command += ["--level", str(record.task.level)]
    model = record.config["model"]["options"]
    for flag, options, part in (("--task-set", task["options"], "task"), ("--set", model, "model")):
        for key, value in options.items():
            if own.get(part, {}).get("options", {}).get(key) == value:
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
            command += [flag, f"{key}={text}"]
    command += ["--seed", str(record.seed), "--out", "runs"]
    return ["```console", f"$ {shlex.join(command)}", "```", ""]


def _solves(record: RunRecord) -> str:
    solves = record.solves
    if solves is None:
        return "A feed-forward model: there is nothing to solve."
    ends = ", ".join(f"{count} {status}" for status, count in sorted(solves.final.items()))
    where = (
        "solved until it is at rest"
        if solves.at_equilibrium
        else "at its own tolerance"
        if solves.to_tolerance
        else f"at its trained horizon of {solves.steps} steps"
    )
    residual = "" if solves.residual is None else f", largest residual {solves.residual:.3g}"
    return f"Evaluated {where}: {ends}{residual}."


def _certificate(proof: dict[str, Any]) -> list[str]:
    facts = proof["certificate"]
    verdict = f"{verdict_of(facts)} ({facts['level']})"
    rate = "" if facts["rate"] is None else f", rate {facts['rate']:.4f} in {facts['metric']}"
    grounds = f" Grounds: {facts['grounds']}." if facts["grounds"] else ""
    delays = " It holds with bounded delays." if facts["delays"] else ""
    reason = f" Reason: {facts['reason']}." if facts.get("reason") else ""
    return [
        f"**{verdict[0].upper()}{verdict[1:]}**{rate} on {proof['part']} of {proof['task']}, "
        f"effort {proof['effort']}.{grounds}{delays}{reason}"
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
