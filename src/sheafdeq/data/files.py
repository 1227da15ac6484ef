"""Files of public data sets: where they are, what their bytes must hash to, and how to get them
with consent.

``manifest.json`` names every file by its path below the data root (the folder layout of PyTorch
Geometric's raw files) with size, SHA-256 and address. A file is used only if its hash is right;
nothing is fetched unless the caller asks for it.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import lzma
import os
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sheafdeq.errors import DataError
from sheafdeq.regular_file import read_regular

__all__ = ["KnownFile", "data_root", "manifest", "read_files", "write_atomically"]

_LARGEST_ARCHIVE = 64 * 2**20
_TIMEOUT_SECONDS = 60  # without a byte
_LONGEST_SECONDS = 1800  # for a whole file: a server that sends a byte a minute is given up
_BLOCK = 2**20


@dataclass(frozen=True)
class KnownFile:
    """One file of a public data set. An address ``archive.zip#member`` names a member of a zip
    archive."""

    path: str
    sha256: str
    size: int
    address: str


@cache
def manifest() -> dict[str, KnownFile]:
    """Every known file by its path below the data root."""
    text = resources.files("sheafdeq.data").joinpath("manifest.json").read_text(encoding="utf-8")
    return {
        path: KnownFile(path, entry["sha256"], entry["bytes"], entry["url"])
        for path, entry in json.loads(text).items()
    }


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the argument, else the variable ``SHEAFDEQ_DATA``, else
    ``~/.cache/sheafdeq``."""
    if root is not None:
        return Path(root)
    named = os.environ.get("SHEAFDEQ_DATA")
    try:
        return Path(named) if named else Path.home() / ".cache" / "sheafdeq"
    except RuntimeError as error:
        raise DataError(f"no data folder ({error}): set the variable SHEAFDEQ_DATA") from error


def read_files(
    paths: Sequence[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    known: Mapping[str, KnownFile] | None = None,
) -> dict[str, bytes]:
    """The checked bytes of every file; :class:`~sheafdeq.errors.DataError` says exactly what is
    missing or wrong."""
    folder = data_root(root)
    known = manifest() if known is None else known
    missing = [known[path] for path in paths if not _present(folder / path)]
    if missing and not download:
        raise DataError(_instructions(folder, missing))
    archives: dict[str, bytes] = {}
    for file in missing:
        content = _fetch(file, archives)
        _check(file, content, f"the download from {file.address}")
        try:
            write_atomically(folder / file.path, content)
        except OSError as error:
            raise DataError(
                f"cannot store {folder / file.path}: {error.strerror or error}"
            ) from error
    contents = {}
    for path in paths:
        try:  # a larger file is refused without being loaded
            contents[path] = read_regular(folder / path, known[path].size)
        except OSError as error:
            raise DataError(
                f"the file {folder / path} cannot be used: {error.strerror or error}; delete it "
                "and get it again"
            ) from error
        _check(known[path], contents[path], f"the file {folder / path}")
    return contents


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the destination, then rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _present(path: Path) -> bool:
    """Whether a file is there; a path that cannot even be looked at is named."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise DataError(
            f"the data file {path} cannot be looked at: {getattr(error, 'strerror', None) or error}"
        ) from error
    return True


def _check(file: KnownFile, content: bytes, origin: str) -> None:
    if len(content) != file.size:
        at_least = "more than " if len(content) > file.size else ""
        shown = min(len(content), file.size)
        raise DataError(
            f"{origin} has {at_least}{shown} bytes instead of {file.size}: it is truncated or "
            "another file; "
            "delete it and get it again"
        )
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{origin} has SHA-256 {found} instead of {file.sha256}: it is corrupt or another "
            "version; "
            "delete it and get it again"
        )


def _fetch(file: KnownFile, archives: dict[str, bytes]) -> bytes:
    address, _, member = file.address.partition("#")
    if not member:
        return _read_address(address, file.size + 1)
    if address not in archives:
        archives[address] = _read_address(address, _LARGEST_ARCHIVE)
    try:
        with (
            zipfile.ZipFile(io.BytesIO(archives[address])) as archive,
            archive.open(member) as stream,
        ):
            return stream.read(file.size + 1)
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        KeyError,
        EOFError,
        ValueError,
        RuntimeError,
        OSError,
    ) as error:
        raise DataError(
            f"{address} is not a zip archive with the member {member}: {error}"
        ) from error


def _read_address(address: str, limit: int) -> bytes:
    if not address.startswith(("https://", "http://")):
        raise DataError(f"{address!r} is not an http address")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as response:
            return _read_all(response, limit)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise DataError(
            f"could not download {address}: {error}. Get the file on a machine with a network and "
            "put it in the data "
            "folder, see `sheafdeq tasks show` for its place"
        ) from error


def _read_all(response: Any, limit: int) -> bytes:
    """At most ``limit`` bytes within ``_LONGEST_SECONDS``."""
    begun, blocks, size = time.monotonic(), [], 0
    while size < limit and (block := response.read(min(_BLOCK, limit - size))):
        blocks.append(block)
        size += len(block)
        if time.monotonic() - begun > _LONGEST_SECONDS:
            raise TimeoutError(f"{size} bytes after {_LONGEST_SECONDS} seconds, given up")
    return b"".join(blocks)


def _instructions(folder: Path, missing: Sequence[KnownFile]) -> str:
    lines = [f"{len(missing)} data file(s) are not in the data folder {folder}:"]
    lines += [
        f"  {folder / file.path}\n    from {file.address} (SHA-256 {file.sha256})"
        for file in missing[:12]
    ]
    if len(missing) > 12:
        lines.append(f"  ... and {len(missing) - 12} more")
    lines.append(
        "Either allow the download (download=True, on the command line --download), or put the "
        "files there yourself, "
        "or name the folder that has them (root=..., --root, or the variable SHEAFDEQ_DATA)."
    )
    return "\n".join(lines)
