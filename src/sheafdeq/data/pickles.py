"""Read the array pickles of the Planetoid files without ever running a pickle.

Python's unpickler calls whatever the file names. This reader calls nothing: it walks the opcodes
with
:mod:`pickletools`, which only decodes, and interprets the few that describe numbers, strings,
tuples, lists,
dictionaries, NumPy arrays and SciPy CSR matrices. A name outside the table below, or an opcode
outside the list, is refused with its position, before anything is built from it.

The work is linear in the size of the file: every opcode costs at most the items it consumes. Tuples
nest at most ``_DEPTH`` deep (arrays need two), and keys are plain scalars; a tuple of itself twice,
k times over, would otherwise be 2^k items to hash or print, and a deep one would overflow the
stack.
"""

from __future__ import annotations

import math
import pickletools
import re
import reprlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from sheafdeq.errors import DataError

__all__ = ["read_pickle"]

# Every name a file may mention, and what it stands for here. These are labels, not callables.
_NAMES = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "scipy.sparse.csr csr_matrix": "csr_matrix",
    "scipy.sparse._csr csr_matrix": "csr_matrix",
    "collections defaultdict": "defaultdict",
    "__builtin__ list": "list",
    "builtins list": "list",
}
_CODES = re.compile(r"[<>|=]?(f4|f8|i1|i2|i4|i8|u1|u2|u4|u8|b1)")
_LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "INT",
    "LONG1",
    "BINFLOAT",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "SHORT_BINBYTES",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME"}
_DEPTH = 4  # of tuples within tuples
_AXES = 8  # of an array
_SHOWN = reprlib.Repr()  # names the culprit in a bounded number of characters
_SHOWN.maxlevel = 2


@dataclass(frozen=True)
class _Name:
    label: str


@dataclass
class _Type:
    """A dtype: code such as ``f4``, byte order set by BUILD."""

    code: str
    order: str = "<"

    @property
    def value(self) -> np.dtype[Any]:
        result: np.dtype[Any] = np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]
        return result


@dataclass
class _Array:
    """An array that BUILD fills."""

    value: np.ndarray | None = None


@dataclass
class _Matrix:
    """A CSR matrix that BUILD fills."""

    value: Any = None


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    # id -> depth, and the tuple, so that ids stay unique
    depths: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def push_tuple(self, items: tuple[Any, ...], place: str) -> None:
        """Push a tuple whose depth is within bounds."""
        depth = 1 + max(
            (self.depths[id(item)][0] for item in items if isinstance(item, tuple)), default=0
        )
        if depth > _DEPTH:
            raise DataError(
                f"{place}: refused, tuples nest deeper than {_DEPTH}, which arrays never need"
            )
        self.depths[id(items)] = (depth, items)
        self.stack.append(items)

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def read_pickle(content: bytes, origin: str = "the pickle") -> Any:
    """The number, list, dictionary, ``ndarray`` or ``csr_matrix`` that the pickle describes.

    Raises :class:`~sheafdeq.errors.DataError` for anything else: unknown names or opcodes,
    truncated or inconsistent content. Nothing named by the file is imported or called.
    """
    machine = _Machine()
    try:
        for opcode, argument, position in pickletools.genops(content):
            if opcode.name == "STOP":
                break
            _apply(machine, opcode.name, argument, f"{origin}, byte {position}")
        if len(machine.stack) != 1 or machine.marks:
            raise DataError(f"{origin} does not describe one single object")
        return _plain(machine.stack[0])
    except DataError:
        raise
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        MemoryError,
        RecursionError,
        AttributeError,
    ) as error:
        raise DataError(
            f"{origin} is truncated or corrupt: {type(error).__name__}: {error}"
        ) from error


def _apply(machine: _Machine, name: str, argument: Any, place: str) -> None:
    stack = machine.stack
    if name in _LITERALS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _TUPLES:
        count = _TUPLES[name]
        if len(stack) < count:
            raise DataError(f"{place}: {name} finds too few items")
        items = tuple(stack[-count:])
        del stack[-count:]
        machine.push_tuple(items, place)
    elif name == "EMPTY_TUPLE":
        machine.push_tuple((), place)
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "MARK":
        machine.marks.append(len(stack))
    elif name == "TUPLE":
        machine.push_tuple(tuple(machine.since_mark()), place)
    elif name == "APPEND":
        item = stack.pop()
        _expect(stack[-1], list, place).append(item)
    elif name == "APPENDS":
        items_ = machine.since_mark()
        _expect(stack[-1], list, place).extend(items_)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _expect(stack[-1], dict, place)[_key(key, place)] = value
    elif name == "SETITEMS":
        flat = machine.since_mark()
        keys = [_key(key, place) for key in flat[::2]]
        _expect(stack[-1], dict, place).update(zip(keys, flat[1::2], strict=True))
    elif name in ("BINPUT", "LONG_BINPUT"):
        machine.memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        machine.memo[len(machine.memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(machine.memo[argument])
    elif name == "GLOBAL":
        if argument not in _NAMES:
            raise DataError(
                f"{place}: refused, the file names {_SHOWN.repr(argument)}; only "
                "plain arrays are allowed"
            )
        stack.append(_Name(_NAMES[argument]))
    elif name in ("REDUCE", "NEWOBJ"):
        arguments, label = stack.pop(), stack.pop()
        stack.append(_construct(name, label, arguments, place))
    elif name == "BUILD":
        state = stack.pop()
        _fill(stack[-1], state, place)
    elif name not in _IGNORED:
        raise DataError(f"{place}: refused, opcode {name} has no place in an array file")


def _construct(opcode: str, label: Any, arguments: Any, place: str) -> Any:
    name = label.label if isinstance(label, _Name) else None
    if opcode == "REDUCE" and name == "defaultdict" and arguments == (_Name("list"),):
        return {}
    if opcode == "REDUCE" and name == "dtype" and isinstance(arguments, tuple) and arguments:
        code = arguments[0]
        if isinstance(code, str) and _CODES.fullmatch(code):
            return _Type(code)
        raise DataError(f"{place}: refused, arrays of type {_SHOWN.repr(code)} are not allowed")
    if opcode == "REDUCE" and name == "reconstruct" and arguments[:1] == (_Name("ndarray"),):
        return _Array()
    if opcode == "NEWOBJ" and name == "csr_matrix" and arguments == ():
        return _Matrix()
    raise DataError(
        f"{place}: refused, {opcode} of {name or type(label).__name__} is not how arrays are stored"
    )


def _fill(thing: Any, state: Any, place: str) -> None:
    if isinstance(thing, _Type):
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise DataError(f"{place}: {_SHOWN.repr(order)} is not a byte order")
        thing.order = order
    elif isinstance(thing, _Array):
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _Type) or not _is_shape(shape):
            raise DataError(
                f"{place}: an array needs a plain type and a shape, got {_SHOWN.repr(shape)}"
            )
        # Python 2 wrote bytes as strings
        data = raw.encode("latin-1") if isinstance(raw, str) else raw
        if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.value.itemsize:
            raise DataError(f"{place}: the array data does not fill the shape {_SHOWN.repr(shape)}")
        flat = np.frombuffer(data, dtype=kind.value)
        thing.value = flat.reshape(shape, order="F" if column_major else "C").astype(
            kind.value.newbyteorder("=")
        )
    elif isinstance(thing, _Matrix):
        parts = [_plain(state[key]) for key in ("data", "indices", "indptr")]
        shape = state.get("_shape", state.get("shape"))
        if not all(
            isinstance(part, np.ndarray) and part.ndim == 1 for part in parts
        ) or not _is_shape(shape, axes=2):
            raise DataError(
                f"{place}: a sparse matrix needs three flat arrays and a shape, got "
                f"{_SHOWN.repr(shape)}"
            )
        matrix = sparse.csr_matrix(tuple(parts), shape=shape)
        matrix.check_format(full_check=True)
        thing.value = matrix
    else:
        raise DataError(f"{place}: refused, BUILD of a {type(thing).__name__}")


def _plain(thing: Any) -> Any:
    if isinstance(thing, _Array | _Matrix):
        if thing.value is None:
            raise DataError("an array was announced but never filled")
        return thing.value
    if isinstance(thing, _Name | _Type):
        raise DataError("the pickle describes a type, not data")
    return thing


def _is_shape(shape: Any, axes: int | None = None) -> bool:
    fits = isinstance(shape, tuple) and (
        len(shape) <= _AXES if axes is None else len(shape) == axes
    )
    return fits and all(isinstance(size, int) and 0 <= size < 2**48 for size in shape)


def _key(key: Any, place: str) -> Any:
    """Keys are numbers or text: hashing them is cheap."""
    if not isinstance(key, int | float | str | bytes | None):
        raise DataError(f"{place}: refused, a {type(key).__name__} as a key")
    return key


def _expect(thing: Any, kind: type, place: str) -> Any:
    if not isinstance(thing, kind):
        raise DataError(f"{place}: expected a {kind.__name__}, found a {type(thing).__name__}")
    return thing
