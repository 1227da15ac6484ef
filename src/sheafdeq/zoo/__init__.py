"""Trained models by name: ``sheafdeq.load("community-7/sheaf-cascade")``.

They ship with the package. A model is a folder ``<task>/<model>`` of five files:
``model.safetensors`` and ``config.json`` (:mod:`sheafdeq.pretrained`), ``metrics.json`` (what its
run record says, and the SHA-256 of the other files), ``certificate.json`` (what is proved of it on
one test graph) and ``README.md``, its card. :mod:`sheafdeq.zoo.entry` makes one from a run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sheafdeq import models
from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import RecordError
from sheafdeq.options import unknown_name
from sheafdeq.pretrained import PRETRAINED_FACTS, PRETRAINED_TENSORS, class_name
from sheafdeq.records import read_sealed
from sheafdeq.regular_file import read_regular

__all__ = ["CARD", "CERTIFICATE", "FOLDER", "METRICS", "SCHEMA", "card", "facts", "load", "names"]

FOLDER = Path(__file__).parent
METRICS, CERTIFICATE, CARD = "metrics.json", "certificate.json", "README.md"
SCHEMA = "sheafdeq.zoo/1"


def names(folder: Path = FOLDER) -> list[str]:
    """Every model that ships, as ``task/model``."""
    found = folder.glob(f"*/*/{METRICS}")
    return sorted(path.parent.relative_to(folder).as_posix() for path in found)


def load(name: str | Path, folder: Path = FOLDER) -> GraphModel:
    """A trained model by name, or the model in a folder that ``save_pretrained`` wrote, in
    evaluation mode.

    Every byte is checked: what was altered is a :class:`~sheafdeq.errors.RecordError`. Nothing is
    downloaded, and nothing is unpickled.
    """
    path = Path(name)
    if isinstance(name, str) and name in names(folder):
        path = folder / name
        facts(name, folder)
    elif not (path / PRETRAINED_FACTS).is_file():
        raise unknown_name(
            "there is no trained model (nor a folder with a config.json)",
            str(name),
            names(folder),
        )
    kind = getattr(models, class_name(path), None)
    if not (isinstance(kind, type) and issubclass(kind, GraphModel)):
        raise RecordError(
            f"{path} holds a {class_name(path)}, which is not a model of this package: use "
            "from_pretrained of its own class"
        )
    return kind.from_pretrained(path)


def facts(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """What ``metrics.json`` says of a model, after every file beside it was compared with its
    digest."""
    if name not in names(folder):
        raise unknown_name("there is no trained model", name, names(folder))
    found = read_sealed(folder / name / METRICS)
    wanted = {PRETRAINED_FACTS, PRETRAINED_TENSORS, CERTIFICATE, CARD}
    if (
        not isinstance(found, dict)
        or found.get("schema") != SCHEMA
        or set(found.get("files", ())) != wanted
    ):
        raise RecordError(f"{folder / name / METRICS}: not a record of a trained model ({SCHEMA})")
    for file, digest in found["files"].items():
        path = folder / name / file
        try:
            data = read_regular(path)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError(f"{path}: not the file that was published: install the package again")
    return found


def card(name: str, folder: Path = FOLDER) -> str:
    """The card of a model: what it is, data, recipe, metrics, certificate, commands."""
    facts(name, folder)
    return (folder / name / CARD).read_text(encoding="utf-8")
