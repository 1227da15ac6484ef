"""From objects to the identity of the code behind them, role by role."""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.identity.definitions import Definitions
from sheafdeq.identity.sources import PACKAGE, External, Meaning, NativeSources, Sources

__all__ = ["SCHEME", "CodeIdentity", "code_identity", "model_roles"]

SCHEME = "definitions-1"
"""How results are named now. Records without a scheme were named by the digest of module names and
texts."""


@dataclass(frozen=True)
class CodeIdentity:
    """The digest of all roles, and of each: two results with different digests differ in the roles
    that differ."""

    digest: str
    roles: Mapping[str, str]

    def facts(self) -> dict[str, str]:
        """For a record."""
        return {
            "scheme": SCHEME,
            "digest": self.digest,
            **{f"role:{name}": digest for name, digest in self.roles.items()},
        }


def model_roles(model: Any, build: Any = None) -> dict[str, list[Any]]:
    """The roles of a model object: it with its parts (and what built it), its solver, its gradient
    rule."""
    roles = {
        "model": [type(part) for part in model.modules()] + ([build] if build is not None else [])
    }
    for role in ("solver", "adjoint"):
        if getattr(model, role, None) is not None:
            roles[role] = [type(getattr(model, role))]
    return roles


def code_identity(
    roles: Mapping[str, Iterable[Any]], *, locations: dict[str, Path] | None = None
) -> CodeIdentity:
    """The identity of the code in given roles; ``kernel`` is added when a role reaches compiled
    code.

    Roles hold classes and functions (also ``functools.partial`` and nested functions, whose
    captured values count). An object whose source cannot be found is refused: its results could not
    be told from those of another version of it.
    """
    definitions = _definitions(locations, frozenset(_tops(roles)))
    found: dict[str, str] = {}
    reached: list[Meaning] = []
    for role, values in roles.items():
        own = [
            value for value in values if not _is_librarys(value, definitions.sources)
        ]  # the code that uses it names it
        described = sorted(
            {text for value in own for text in _describe(value, definitions, reached)}
        )
        found[role] = hashlib.sha256("\n".join(described).encode()).hexdigest()
    native = sorted(
        definitions.digest(key)
        for key in definitions.reached(reached)
        if isinstance(key, NativeSources)
    )
    if native:
        found["kernel"] = hashlib.sha256("\n".join(native).encode()).hexdigest()
    whole = "\n".join(f"{role} {digest}" for role, digest in sorted(found.items()))
    return CodeIdentity(hashlib.sha256(whole.encode()).hexdigest(), dict(sorted(found.items())))


_present: dict[frozenset[str], Definitions] = {}


def _definitions(locations: dict[str, Path] | None, asked: frozenset[str]) -> Definitions:
    """Digests are kept while no file they were read from has changed."""
    if locations is not None:
        return Definitions(Sources(locations, asked))
    present = _present.get(asked)
    if present is None or not present.sources.unchanged():
        present = _present[asked] = Definitions(Sources(None, asked))
    return present


def _tops(roles: Mapping[str, Iterable[Any]]) -> Iterable[str]:
    """Top-level modules of the objects: their sources count even when they are installed."""
    for values in roles.values():
        for value in values:
            while isinstance(value, partial):
                value = value.func
            top = str(getattr(value, "__module__", "")).partition(".")[0]
            if top and top != PACKAGE:
                yield top


def _is_librarys(value: Any, sources: Sources) -> bool:
    return isinstance(value, type) and isinstance(sources.object(value), External)


def _describe(value: Any, definitions: Definitions, reached: list[Meaning]) -> Iterable[str]:
    """Texts that say what an object computes."""
    if isinstance(value, partial):
        yield from _describe(value.func, definitions, reached)
        yield from _describe([value.args, value.keywords], definitions, reached)
    elif isinstance(value, types.MethodType):
        yield from _describe(value.__func__, definitions, reached)
        yield from _describe(type(value.__self__), definitions, reached)
    elif isinstance(value, type | types.FunctionType):
        meant = definitions.sources.object(value)
        if meant is None:
            raise InputError(
                f"the source of {value.__module__}.{value.__qualname__} cannot be found, "
                "so a result of it cannot be named: "
                "define it in a module file, or leave the output folder out"
            )
        reached.append(meant)
        yield f"{value.__qualname__} {definitions.digest(meant)}"
        for name, cell in (
            inspect.getclosurevars(value).nonlocals.items()
            if isinstance(value, types.FunctionType)
            else ()
        ):
            for text in _describe(cell, definitions, reached):
                yield f"{value.__qualname__} {name} {text}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            for text in _describe(item, definitions, reached):
                yield f"{key!r}: {text}"
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            for text in _describe(item, definitions, reached):
                yield f"{number}: {text}"
    elif isinstance(value, types.BuiltinFunctionType):
        yield f"builtin {value.__module__}.{value.__qualname__}"
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield f"value {value!r}"
    else:
        yield from _describe(type(value), definitions, reached)
        if is_dataclass(value):  # a builder that holds what it builds with
            fields_of = {field.name: getattr(value, field.name) for field in fields(value)}
            yield from _describe(fields_of, definitions, reached)
