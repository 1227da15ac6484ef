"""A model in a folder: ``model.safetensors`` and ``config.json``, no pickle.

The configuration holds the name of the class, the arguments its constructor was called with, solver
and gradient rule, and the SHA-256 of the tensors; it is itself sealed (:mod:`sheafdeq.records`), so
one altered bit in either file is a :class:`~sheafdeq.errors.RecordError`. No file can make a class
be imported: the class is the caller's (``SheafDEQ.from_pretrained``), the file only has to fit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from sheafdeq.adjoints import Implicit, Truncated, Unrolled
from sheafdeq.distances import Distance
from sheafdeq.errors import InputError, RecordError
from sheafdeq.records import read_sealed, write_sealed
from sheafdeq.solvers import Anderson, Picard, Stopping
from sheafdeq.tensor_files import built_to_fit, load_tensors, save_tensors

__all__ = ["PRETRAINED_FACTS", "PRETRAINED_TENSORS", "class_name", "restored", "save"]

PRETRAINED_TENSORS = "model.safetensors"
PRETRAINED_FACTS = "config.json"
FORMAT = "sheafdeq.pretrained/1"
_OBJECTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Anderson, Implicit, Picard, Stopping, Truncated, Unrolled)
}
"""Solvers, gradient rules and their parts: what a configuration may name."""
_RULES = {"solver": "solver", "gradient": "adjoint"}  # constructor argument -> attribute
_LONGEST_LOOP = 1000
_LARGEST = 10**7
Model = TypeVar("Model", bound=nn.Module)


def save(model: nn.Module, given: tuple[tuple[Any, ...], Mapping[str, Any]], folder: Path) -> None:
    """Write both files; ``given`` are the arguments the constructor was called with."""
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise InputError(
            f"this {type(model).__name__} does not know its width yet (in_channels=-1): call it "
            "with a graph once, then save it"
        )
    payload = {
        "format": FORMAT,
        "class": type(model).__name__,
        "arguments": _arguments(model, *given),
        "rules": {
            name: _written(getattr(model, attribute), f"the {name}")
            for name, attribute in _RULES.items()
            if hasattr(model, attribute)
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    payload["tensors"] = save_tensors(folder / PRETRAINED_TENSORS, model.state_dict())
    write_sealed(folder / PRETRAINED_FACTS, payload)


def class_name(folder: Path) -> str:
    """The name of the class that was saved."""
    return str(_facts(folder)["class"])


def restored(kind: type[Model], folder: Path) -> Model:
    """The model in ``folder``, which must be a ``kind``, in evaluation mode."""
    facts, source = _facts(folder), str(folder)
    if facts["class"] != kind.__name__:
        raise RecordError(
            f"{source} holds a {facts['class']}: use {facts['class']}.from_pretrained, or "
            "sheafdeq.load"
        )
    arguments = {name: _read(value, source) for name, value in facts["arguments"].items()}
    for name, value in arguments.items():
        largest = _LONGEST_LOOP if name in ("layers", "levels") else _LARGEST
        if isinstance(value, int) and abs(value) > largest:
            raise RecordError(f"{source}: {name} is {value:,}, more than {largest:,}")
    tensors = load_tensors(folder / PRETRAINED_TENSORS, facts["tensors"])
    model = built_to_fit(lambda: kind(**arguments), tensors, source)
    for name, value in facts["rules"].items():
        setattr(model, _RULES[name], _read(value, source))
    return model


def _facts(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder; save_pretrained writes one")
    path = folder / PRETRAINED_FACTS
    facts = read_sealed(path)
    parts = {"class": str, "arguments": dict, "rules": dict, "tensors": str}
    if (
        not isinstance(facts, dict)
        or facts.get("format") != FORMAT
        or not all(isinstance(facts.get(key), kind) for key, kind in parts.items())
        or not set(facts["rules"]) <= set(_RULES)
    ):
        raise RecordError(f"{path}: not what save_pretrained writes (format {FORMAT} expected)")
    return facts


def _arguments(
    model: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """By name, as JSON; a width that was found out takes the place of -1."""
    signature = inspect.signature(type(model))
    bound = signature.bind(*positional, **named).arguments
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= bound.get(name, {})
        elif parameter.kind is parameter.VAR_POSITIONAL and bound.get(name):
            raise InputError(f"{type(model).__name__} takes *{name}, which has no names to save")
        elif name in bound:
            found[name] = bound[name]
    if found.get("in_channels") == -1:
        found["in_channels"] = model.in_channels
    return {
        name: _written(value, f"the argument {name}")
        for name, value in found.items()
        if name not in _RULES or isinstance(value, str | None)  # objects are written as rules
    }


def _written(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, list | tuple):
        return [_written(entry, what) for entry in value]
    if isinstance(value, Distance):
        return value.name
    if is_dataclass(value) and _OBJECTS.get(type(value).__name__) is type(value):
        parts = {part.name: _written(getattr(value, part.name), what) for part in fields(value)}
        return {"kind": type(value).__name__, "fields": parts}
    raise InputError(
        f"{what} is a {type(value).__name__}, which cannot be written as JSON: give numbers, text, "
        f"lists of them, or one of {', '.join(_OBJECTS)}"
    )


def _read(value: Any, source: str) -> Any:
    if isinstance(value, list):
        return [_read(entry, source) for entry in value]
    if not isinstance(value, dict):
        return value
    try:
        if set(value) == {"number"}:
            return float(value["number"])
        parts = {name: _read(part, source) for name, part in value["fields"].items()}
        return _OBJECTS[value["kind"]](**parts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{source}: {error!r} in an option of its configuration") from error
