"""Tensors in files of their own: safetensors, known by their SHA-256, laid into a model only where
names, shapes and types all fit. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import write_bytes
from sheafdeq.regular_file import read_regular

__all__ = ["built_to_fit", "load_tensors", "restore_parameters", "save_tensors"]

Model = TypeVar("Model", bound=nn.Module)


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


def built_to_fit(build: Callable[[], Model], tensors: Mapping[str, Tensor], source: str) -> Model:
    """What ``build`` makes, with these parameters, in evaluation mode.

    The model is first laid out without memory (torch's ``meta`` device) and compared with the
    tensors of the file: sizes the file does not hold are never allocated.
    """
    try:
        with torch.device("meta"):
            _check_fit(build(), tensors, source)
        model = build()
    except (InputError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RecordError(f"{source}: this version cannot build its model: {error}") from error
    restore_parameters(model, tensors, source)
    return model.eval()


def restore_parameters(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load parameters and buffers; names, shapes and types must all fit."""
    _check_fit(model, tensors, source)
    floating = next(
        (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32
    )
    model.to(floating)
    model.load_state_dict(dict(tensors))


def _check_fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
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
