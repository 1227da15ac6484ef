"""npz archives of plain numbers, read by what they hold and not by what they claim.

An npz file is a zip of npy files. NumPy's reader allocates what an npy header announces and unpacks
whatever it is asked for; a file of a few kilobytes can announce terabytes. Here only the arrays
that are asked for are unpacked, the announced shape must agree with the bytes of its member before
any array exists, and all members together may be no larger than a fixed multiple of the file.
Nothing is unpickled: arrays of objects are refused by their type code.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from sheafdeq.errors import DataError

__all__ = ["read_npz"]

_FREE = 64 * 2**20  # bytes any file may unpack to
_RATIO = 100  # and this many times its own size
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\s*\{\s*'descr'\s*:\s*'(?P<code>[<>|=][fiub]\d{1,2})'\s*,\s*'fortran_order'\s*:\s*(?P<column_major>True|False)\s*,"
    r"\s*'shape'\s*:\s*\((?P<shape>[0-9L,\s]{0,200})\)\s*,?\s*\}\s*"
)
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    OverflowError,
)


def read_npz(
    content: bytes, origin: str, keys: Sequence[str], *, required: bool = False
) -> dict[str, np.ndarray]:
    """Those of ``keys`` that the archive holds; :class:`~sheafdeq.errors.DataError` names what is
    wrong.

    ``required=True`` makes a missing key an error. Members that are not asked for are not unpacked.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {key: members[key] for key in keys if key in members}
            missing = [key for key in keys if key not in members]
            if required and missing:
                raise DataError(
                    f"{origin} has no array {missing[0]!r}; it has {_listed(list(members))}"
                )
            total = sum(info.file_size for info in wanted.values())
            if total > max(_FREE, _RATIO * len(content)):
                raise DataError(
                    f"{origin}: {len(content):,} bytes that unpack to {total:,}, more than "
                    f"{_RATIO} times as many: "
                    "refused; if the file is yours, store it uncompressed (numpy.savez)"
                )
            arrays = {}
            for key, info in wanted.items():
                # stops at info.file_size, whatever the compressed data say
                with archive.open(info) as stream:
                    arrays[key] = _array(stream.read(), f"{origin}: {key}")
            return arrays
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(
            f"{origin} is not an npz archive of plain arrays: {error or type(error).__name__}"
        ) from error


def _array(data: bytes, place: str) -> np.ndarray:
    """One npy member: magic, version, header length, header, numbers."""
    if data[:6] != _MAGIC or len(data) < 12 or data[6] not in (1, 2, 3):
        raise DataError(f"{place} is not an npy array")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    if length > 4096 or start + length > len(data):
        raise DataError(f"{place} announces a header of {length} bytes and is not a plain array")
    header = _HEADER.fullmatch(data[start : start + length].decode("latin-1"))
    if header is None:
        raise DataError(
            f"{place} does not hold plain numbers (arrays of objects, text and records are refused)"
        )
    shape = tuple(
        int(size.strip().rstrip("L")) for size in header["shape"].split(",") if size.strip()
    )
    kind = np.dtype(header["code"])
    body = memoryview(data)[start + length :]
    if len(shape) > 8 or math.prod(shape) * kind.itemsize != len(body):
        raise DataError(
            f"{place} announces the shape {shape} of {kind} and holds {len(body)} bytes"
        )
    flat = np.frombuffer(body, dtype=kind)
    return flat.reshape(shape, order="F" if header["column_major"] == "True" else "C").astype(
        kind.newbyteorder("=")
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:12]) or "nothing"
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
