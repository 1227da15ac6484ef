"""Checkpoints: tensors in safetensors, everything else in sealed JSON. Nothing is ever unpickled.

A model checkpoint is two files, ``checkpoint.safetensors`` and ``checkpoint.json``; the JSON holds
the SHA-256 of the tensors and is itself sealed (:mod:`sheafdeq.records`), so one altered bit in
either is a :class:`~sheafdeq.errors.RecordError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import RecordError
from sheafdeq.records import read_sealed, write_sealed
from sheafdeq.registry import Shape, build_model
from sheafdeq.tensor_files import built_to_fit, load_tensors, save_tensors

__all__ = [
    "CHECKPOINT_FACTS",
    "CHECKPOINT_TENSORS",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
]

CHECKPOINT_TENSORS = "checkpoint.safetensors"
CHECKPOINT_FACTS = "checkpoint.json"


def save_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    model: str,
    options: Mapping[str, Any],
    shape: Shape,
    **facts: Any,
) -> dict[str, str]:
    """Write both files of a model checkpoint and return their SHA-256 by name.

    ``model``, ``options`` and ``shape`` rebuild the model; further facts (task, configuration) are
    kept as they are.
    """
    digest = save_tensors(folder / CHECKPOINT_TENSORS, tensors)
    payload = {
        "model": model,
        "options": dict(options),
        "shape": dataclasses.asdict(shape),
        "tensors": digest,
        **facts,
    }
    write_sealed(folder / CHECKPOINT_FACTS, payload)
    return {
        CHECKPOINT_TENSORS: digest,
        CHECKPOINT_FACTS: hashlib.sha256((folder / CHECKPOINT_FACTS).read_bytes()).hexdigest(),
    }


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a checkpoint: its folder (a run directory), or either of its two
    files."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    facts_name = (
        path.with_suffix(".json").name
        if path.suffix in {".safetensors", ".json"}
        else CHECKPOINT_FACTS
    )
    facts = read_sealed(folder / facts_name)
    parts = {"model": str, "options": dict, "shape": dict, "tensors": str}
    if not isinstance(facts, dict) or not all(
        isinstance(facts.get(key), kind) for key, kind in parts.items()
    ):
        raise RecordError(
            f"{folder / facts_name}: not a checkpoint (model, options, shape and tensors expected)"
        )
    return load_tensors((folder / facts_name).with_suffix(".safetensors"), facts["tensors"]), facts


def load_model(path: str | Path) -> GraphModel:
    """Rebuild the model of a checkpoint, in evaluation mode."""
    tensors, facts = load_checkpoint(path)

    def build() -> GraphModel:
        return build_model(facts["model"], Shape(**facts["shape"]), **facts["options"])

    return built_to_fit(build, tensors, str(path))
