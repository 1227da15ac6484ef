"""Checkpoints: tensors in safetensors, everything else in sealed JSON. Nothing is ever unpickled.

A model checkpoint is two files, ``checkpoint.safetensors`` and ``checkpoint.json``; the JSON holds the SHA-256 of the tensors and
is itself sealed (:mod:`sheafdeq.records`), so one altered bit in either is a :class:`~sheafdeq.errors.RecordError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import read_sealed, write_bytes, write_sealed
from sheafdeq.registry import Shape, build_model

__all__ = [
    "CHECKPOINT_FACTS",
    "CHECKPOINT_TENSORS",
    "load_checkpoint",
    "load_model",
    "load_tensors",
    "restore_parameters",
    "save_checkpoint",
    "save_tensors",
]

CHECKPOINT_TENSORS = "checkpoint.safetensors"
CHECKPOINT_FACTS = "checkpoint.json"


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors atomically and return the SHA-256 of the file."""
    data = safetensors.torch.save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def load_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Read tensors whose file has the given SHA-256; :class:`RecordError` otherwise."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise RecordError(
            f"{path}: SHA-256 is {found[:12]}..., expected {sha256[:12]}...: truncated or altered; delete it and run again"
        )
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError) as error:
        raise RecordError(f"{path}: not a safetensors file ({error})") from error


def save_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], model: str, options: Mapping[str, Any], shape: Shape, **facts: Any
) -> dict[str, str]:
    """Write both files of a model checkpoint and return their SHA-256 by name.

    ``model``, ``options`` and ``shape`` rebuild the model; further facts (task, configuration) are kept as they are.
    """
    digest = save_tensors(folder / CHECKPOINT_TENSORS, tensors)
    payload = {"model": model, "options": dict(options), "shape": dataclasses.asdict(shape), "tensors": digest, **facts}
    write_sealed(folder / CHECKPOINT_FACTS, payload)
    return {
        CHECKPOINT_TENSORS: digest,
        CHECKPOINT_FACTS: hashlib.sha256((folder / CHECKPOINT_FACTS).read_bytes()).hexdigest(),
    }


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a checkpoint: its folder (a run directory), or either of its two files."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    facts_name = path.with_suffix(".json").name if path.suffix in {".safetensors", ".json"} else CHECKPOINT_FACTS
    facts = read_sealed(folder / facts_name)
    if not isinstance(facts, dict) or not {"model", "options", "shape", "tensors"} <= set(facts):
        raise RecordError(f"{folder / facts_name}: not a checkpoint (model, options, shape and tensors expected)")
    return load_tensors((folder / facts_name).with_suffix(".safetensors"), facts["tensors"]), facts


def load_model(path: str | Path) -> GraphModel:
    """Rebuild the model of a checkpoint, in evaluation mode."""
    tensors, facts = load_checkpoint(path)
    try:
        model = build_model(facts["model"], Shape(**facts["shape"]), **facts["options"])
    except (InputError, TypeError) as error:
        raise RecordError(f"{path}: this version cannot build its model: {error}") from error
    restore_parameters(model, tensors, str(path))
    return model.eval()


def restore_parameters(model: GraphModel, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load parameters and buffers; names, shapes and types must all fit."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        differing = sorted(set(expected.items()) ^ set(found.items()))
        raise RecordError(f"{source}: the parameters do not fit the model, first difference at {differing[0][0]!r}")
    floating = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    model.to(floating)
    model.load_state_dict(dict(tensors))
