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

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import read_sealed, write_bytes, write_sealed
from sheafdeq.registry import Shape, build_model
from sheafdeq.regular_file import read_regular

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
    data = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def load_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Read tensors whose file has the given SHA-256; :class:`RecordError` otherwise."""
    if not isinstance(sha256, str):
        raise RecordError(
            f"{path}: its SHA-256 is {type(sha256).__name__} instead of text: the "
            "file beside it was altered"
        )
    try:
        data = read_regular(path)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise RecordError(
            f"{path}: SHA-256 is {found[:12]}..., expected {sha256[:12]}...: truncated or "
            "altered; delete it and run again"
        )
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise RecordError(f"{path}: not a safetensors file ({error})") from error


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
    """Rebuild the model of a checkpoint, in evaluation mode.

    The model is first laid out without memory (torch's ``meta`` device) and compared with the
    tensors of the file: sizes the file does not hold are never allocated.
    """
    tensors, facts = load_checkpoint(path)
    try:
        shape = Shape(**facts["shape"])
        with torch.device("meta"):
            _check_fit(build_model(facts["model"], shape, **facts["options"]), tensors, str(path))
        model = build_model(facts["model"], shape, **facts["options"])
    except (InputError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RecordError(f"{path}: this version cannot build its model: {error}") from error
    restore_parameters(model, tensors, str(path))
    return model.eval()


def restore_parameters(model: GraphModel, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load parameters and buffers; names, shapes and types must all fit."""
    _check_fit(model, tensors, source)
    floating = next(
        (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32
    )
    model.to(floating)
    model.load_state_dict(dict(tensors))


def _check_fit(model: GraphModel, tensors: Mapping[str, Tensor], source: str) -> None:
    """Names, shapes and kinds of number agree, and all real numbers are float32 or all are
    float64."""
    expected = {
        name: (tuple(tensor.shape), _kind(tensor)) for name, tensor in model.state_dict().items()
    }
    found = {name: (tuple(tensor.shape), _kind(tensor)) for name, tensor in tensors.items()}
    if expected != found:
        differing = sorted(
            {name for name in {*expected, *found} if expected.get(name) != found.get(name)}
        )
        raise RecordError(
            f"{source}: the parameters do not fit the model, first difference at {differing[0]!r}"
        )
    if len({tensor.dtype for tensor in tensors.values() if _kind(tensor) == "real"}) > 1:
        raise RecordError(f"{source}: the parameters mix float32 and float64")


def _kind(tensor: Tensor) -> str:
    return "real" if tensor.dtype in (torch.float32, torch.float64) else str(tensor.dtype)
