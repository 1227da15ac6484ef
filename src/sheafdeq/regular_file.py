"""Reading files that strangers may have placed: regular files only, and never more than expected.

A device, a pipe or a socket can block for ever or never end, and a huge file can fill the memory,
so the size is known before the first byte is read.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sheafdeq.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["files_below", "read_regular", "read_toml"]

LARGEST = 2**34
"""Bytes a file may have at most (16 GiB) unless the caller knows better."""


def read_regular(path: str | os.PathLike[str], limit: int = LARGEST) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; every other case is an ``OSError``
    that names it."""
    try:
        # Without O_NONBLOCK, opening a pipe nobody writes to waits for ever.
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        )
    except ValueError as error:  # a NUL byte in the name
        raise OSError(errno.EINVAL, f"not a file name ({error})", str(path)) from error
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(stream.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > limit:
            raise OSError(
                errno.EFBIG,
                f"{found.st_size} bytes, more than the {limit} expected here",
                str(path),
            )
        return stream.read(found.st_size)  # read() reserves what it is told, so not the limit


def read_toml(path: Path) -> dict[str, Any]:
    """Read TOML; :class:`OptionError` names the file and the line."""
    try:
        result: dict[str, Any] = tomllib.loads(read_regular(path, 2**24).decode("utf-8"))
        return result
    except FileNotFoundError as error:
        raise OptionError(f"{path}: no such file") from error
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise OptionError(f"{path}: not valid TOML: it nests too deeply") from error
    except ValueError as error:  # syntax, encoding, numbers of thousands of digits
        raise OptionError(f"{path}: not valid TOML: {error}") from error


def files_below(
    root: Path, suffix: str, unreadable: Callable[[OSError], None], *, hidden: bool = False
) -> Iterator[Path]:
    """Files below ``root`` whose name ends in ``suffix``, in a fixed order; folders that cannot be
    listed are reported.

    ``Path.rglob`` leaves such folders out without a word. Dot names are skipped unless ``hidden``.
    """
    found: list[Path] = []
    for folder, names, files in os.walk(root, onerror=unreadable):
        if not hidden:
            names[:] = [name for name in names if not name.startswith(".")]
        found += [
            Path(folder, name)
            for name in files
            if name.endswith(suffix) and (hidden or not name.startswith("."))
        ]
    return iter(sorted(found))
