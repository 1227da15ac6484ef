"""Options by name: their types come from the signature that takes them, and a wrong one is one
sentence.

Model and task options arrive as JSON or TOML values (from ``--set``, a configuration file, a stored
record). This is the one door they pass: names are checked against the known ones, types against the
annotations of the constructor or builder, and sizes against limits that keep memory bounded. Finer
conditions (``alpha`` in (0, 1]) are the constructor's own.
"""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typing_extensions import Unpack

from sheafdeq.errors import OptionError

__all__ = [
    "SEED",
    "Limits",
    "OptionType",
    "check_options",
    "constructor_parameters",
    "constructor_signature",
    "option_types",
    "suggestion",
    "unknown_name",
]

_SCALARS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}
_LONGEST = 10_000  # entries of a list


@dataclass(frozen=True)
class Limits:
    """Smallest and largest value of a number (or of every number in a list)."""

    low: float
    high: float


SEED = Limits(0, 2**63 - 1)
"""What random generators take: 63 bits."""


@dataclass(frozen=True)
class OptionType:
    """The values one option takes: scalars of some types, or lists of them."""

    scalars: tuple[type, ...]  # of bool, int, float, str
    nullable: bool = False
    listed: tuple[type, ...] = ()  # entries of a list, if lists are allowed
    choices: tuple[Any, ...] = ()
    limits: Limits | None = None

    @property
    def words(self) -> str:
        """``a whole number from 1 to 1,000, or null``."""
        if self.choices:
            kinds = ["one of " + ", ".join(map(repr, self.choices))]
        else:
            kinds = [_SCALARS[kind] + self._range(kind) for kind in self.scalars]
        if self.listed:
            kinds.append(
                "a list, each entry "
                + " or ".join(_SCALARS[kind] + self._range(kind) for kind in self.listed)
            )
        return " or ".join(kinds) + (", or null" if self.nullable else "")

    def _range(self, kind: type) -> str:
        if self.limits is None or kind not in (int, float):
            return ""
        if self.limits.high >= 2**62:
            return f" of at least {self.limits.low:g}, below 2^63"
        return f" from {self.limits.low:,} to {self.limits.high:,}"

    def accepts(self, value: Any) -> bool:
        """Whether the value has one of the types and lies within the limits."""
        if value is None:
            return self.nullable
        if self.choices:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if isinstance(value, list | tuple):
            return (
                bool(self.listed)
                and len(value) <= _LONGEST
                and all(self._fits(entry, self.listed) for entry in value)
            )
        return self._fits(value, self.scalars)

    def _fits(self, value: Any, kinds: tuple[type, ...]) -> bool:
        if isinstance(value, bool):
            return bool in kinds
        if isinstance(value, str):
            return str in kinds
        if isinstance(value, int) and (int in kinds or float in kinds):
            return self._within(value)
        if isinstance(value, float) and float in kinds:
            return not math.isnan(value) and self._within(value)
        return False

    def _within(self, value: float) -> bool:
        if self.limits is None:
            return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63
        return self.limits.low <= value <= self.limits.high


def constructor_signature(constructor: type) -> inspect.Signature:
    """A constructor's whole signature, without self.

    ``*sizes`` and ``**options: Unpack[Names]`` stand for the parameters of the base classes they
    are handed on to, the latter for those in ``Names`` alone; ``**options`` without names stays.
    """
    found: dict[str, inspect.Parameter] = {}
    handed_on: set[str] | None = None  # names that base classes may take; None: all
    positional, unnamed = True, None
    for kind in constructor.__mro__:
        if "__init__" not in vars(kind):
            continue
        function = vars(kind)["__init__"]
        own = list(inspect.signature(function).parameters.values())[1:]
        several = {parameter.kind: parameter for parameter in own}
        for parameter in own:
            named = parameter.kind is parameter.KEYWORD_ONLY or (
                positional and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            )
            if named and (handed_on is None or parameter.name in handed_on):
                found.setdefault(parameter.name, parameter)
        positional = inspect.Parameter.VAR_POSITIONAL in several
        rest = several.get(inspect.Parameter.VAR_KEYWORD)
        if rest is None:
            break
        names = _names_of(function, rest.name)
        if names is not None:
            handed_on = names if handed_on is None else handed_on & names
        elif handed_on is None:
            unnamed = unnamed or rest
    if unnamed is not None:
        found[unnamed.name] = unnamed
    return inspect.Signature(sorted(found.values(), key=lambda parameter: parameter.kind))


def _names_of(function: Any, rest: str) -> set[str] | None:
    """What ``**rest: Unpack[Names]`` takes; None where its annotation names nothing."""
    try:
        hint = get_type_hints(function).get(rest, Any)
    except NameError:  # a class inside a function
        return None
    if getattr(hint, "__origin__", None) is not Unpack:
        return None
    return set(get_type_hints(hint.__args__[0]))


def constructor_parameters(
    constructor: type,
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The named parameters of :func:`constructor_signature`, and their annotations."""
    parameters = {
        name: parameter
        for name, parameter in constructor_signature(constructor).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    hints: dict[str, Any] = {}
    for kind in constructor.__mro__:
        if "__init__" in vars(kind) and kind is not object:
            hints = get_type_hints(vars(kind)["__init__"]) | hints
    return parameters, hints


def option_types(
    annotations: Mapping[str, Any],
    defaults: Mapping[str, Any],
    limits: Mapping[str, Limits],
) -> dict[str, OptionType]:
    """Types of the options named in ``defaults``, from the annotations of what takes them."""
    found = {}
    for name, default in defaults.items():
        annotation = annotations.get(name, type(default))
        scalars, listed, choices, nullable = _taken_apart(annotation)
        found[name] = OptionType(
            scalars, nullable or default is None, listed, choices, limits.get(name)
        )
    return found


def _taken_apart(
    annotation: Any,
) -> tuple[tuple[type, ...], tuple[type, ...], tuple[Any, ...], bool]:
    """Scalar types, entry types of lists, choices, whether None: what JSON can say of an
    annotation."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [_taken_apart(part) for part in get_args(annotation)]
        scalars = tuple(dict.fromkeys(kind for part in parts for kind in part[0]))
        listed = tuple(dict.fromkeys(kind for part in parts for kind in part[1]))
        return (
            scalars,
            listed,
            tuple(choice for part in parts for choice in part[2]),
            any(part[3] for part in parts),
        )
    if origin is Literal:
        return (), (), get_args(annotation), False
    if annotation is type(None):
        return (), (), (), True
    if annotation in _SCALARS:
        return (annotation,), (), (), False
    if origin in (list, tuple, Sequence):
        return (), tuple(kind for kind in get_args(annotation) if kind in _SCALARS), (), False
    return (), (), (), False  # objects (a Solver, an Adjoint) cannot be written as an option


def check_options(given: Mapping[str, Any], known: Mapping[str, OptionType], owner: str) -> None:
    """Raise :class:`~sheafdeq.errors.OptionError` for the first option that is unknown or of the
    wrong type."""
    for name in given:
        if name not in known:
            raise unknown_name(f"{owner} has no option", name, known)
    for name, value in given.items():
        if not known[name].accepts(value):
            raise OptionError(f"{owner}: {name} must be {known[name].words}, got {_shown(value)}")


def unknown_name(what: str, name: Any, known: Iterable[str]) -> OptionError:
    """An error that names what came, the nearest known name, and all of them."""
    names = list(known)
    listed = ", ".join(names) if names else "none"
    return OptionError(f"{what} {_shown(name)}{suggestion(name, names)}. Choose from: {listed}")


def suggestion(name: Any, known: Sequence[str]) -> str:
    """`` (did you mean 'noise' or 'nodes'?)``, or nothing."""
    if not isinstance(name, str) or len(name) > 200:
        return ""
    lower = {word.lower().replace("_", "-"): word for word in reversed(known)}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), lower, n=2, cutoff=0.6)
    return f" (did you mean {' or '.join(repr(lower[word]) for word in near)}?)" if near else ""


def _shown(value: Any) -> str:
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**40
        else (f"a number of {value.bit_length()} bits")
    )
    return text if len(text) <= 80 else f"{text[:77]}..."
