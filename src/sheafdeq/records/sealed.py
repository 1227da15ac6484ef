"""Canonical JSON with a seal, written so that a crash leaves the old file or the new one.

A record file is one line of canonical JSON (sorted keys, no spaces, ASCII, finite numbers only),

    {"payload": ..., "sha256": "<of the canonical payload>"}

and reading it back checks three things: the text is valid JSON, its digest fits, and writing what
was read gives the same bytes. A truncated or altered file is therefore a
:class:`~sheafdeq.errors.RecordError`, never a wrong number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from sheafdeq.errors import RecordError
from sheafdeq.regular_file import read_regular

__all__ = [
    "canonical_json",
    "digest_of",
    "finite",
    "read_sealed",
    "seal",
    "unseal",
    "write_bytes",
    "write_sealed",
]


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]


def canonical_json(value: Any) -> bytes:
    """The one byte string a JSON value has here: sorted keys, no spaces, ASCII; NaN and infinity
    are refused."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def finite(value: float, digits: int | None = None) -> float | None:
    """The number, with ``digits`` significant digits if given; None for NaN and infinity (JSON has
    neither)."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}") if digits else float(value)


def seal(payload: Any) -> bytes:
    """The bytes of a record file."""
    return canonical_json({"payload": payload, "sha256": digest_of(payload)}) + b"\n"


def unseal(data: bytes, source: str) -> Any:
    """The payload of a record file; :class:`RecordError` when a byte is not as it was written."""
    try:
        content = json.loads(data.decode("ascii"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"{source}: not valid JSON ({error}): truncated or altered; delete it and run again"
        ) from error
    if not isinstance(content, dict) or set(content) != {"payload", "sha256"}:
        raise RecordError(
            f"{source}: not a sealed record (keys payload and sha256 expected): "
            "delete it and run again"
        )
    payload = content["payload"]
    try:
        same = seal(payload) == data and digest_of(payload) == content["sha256"]
    except (ValueError, RecursionError) as error:  # NaN or infinity, which the writer refuses
        raise RecordError(
            f"{source}: holds a number that is not finite: the file was altered"
        ) from error
    if not same:
        raise RecordError(
            f"{source}: the content does not fit its SHA-256: the file was altered; "
            "delete it and run again"
        )
    return payload


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old content or the new, and the new one
    survives power loss.

    The bytes go into a file aside first, which is locked while it is written: it is removed when
    writing fails, and what a killed process left is found unlocked and removed by the next writer
    of the same file.
    """
    while True:
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with open(aside, "xb") as stream:
                _lock(stream.fileno())
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                if fcntl is None:  # Windows does not rename an open file
                    stream.close()
                os.replace(aside, path)
            break
        except FileNotFoundError:  # taken for abandoned in the moment before it was locked
            if not path.parent.is_dir():
                raise
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    _remove_abandoned(path)


def _lock(descriptor: int) -> bool:
    """Whether this process now holds the file; no where another does, or where there are no
    locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove files aside that nobody holds; without locks nobody can tell, and they stay."""
    aside = re.compile(re.escape(f".{path.name}.") + r"\d+\.[0-9a-f]{8}")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if aside.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                descriptor = os.open(entry.path, os.O_RDONLY)
                try:
                    if _lock(descriptor):
                        os.unlink(entry.path)
                finally:
                    os.close(descriptor)


def write_sealed(path: Path, payload: Any) -> None:
    """Seal a payload and write it atomically."""
    write_bytes(path, seal(payload))


def read_sealed(path: Path) -> Any:
    """Read a sealed file; :class:`RecordError` when it is missing or altered."""
    try:
        data = read_regular(path)
    except FileNotFoundError as error:
        raise RecordError(f"{path}: no such file") from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from error
    return unseal(data, str(path))
