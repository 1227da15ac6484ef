"""Parsed data sets on disk: safetensors, which holds numbers only, with its SHA-256 beside it.

The file name carries a hash of the raw files' hashes, so a cache never outlives the files it came
from. A cache that cannot be written (read-only folder) is done without; one whose bytes do not
match its hash is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sheafdeq.data.files import write_atomically
from sheafdeq.errors import DataError
from sheafdeq.regular_file import read_regular

__all__ = ["cached"]

_FORMAT = "1"  # change when parsing changes


def cached(
    folder: Path, name: str, sources: Mapping[str, str], parse: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of ``parse()``, kept under ``folder/parsed``; ``sources`` maps raw paths to their
    SHA-256."""
    recipe = "\n".join([_FORMAT, name, *(f"{path} {sources[path]}" for path in sorted(sources))])
    path = (
        folder / "parsed" / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.safetensors"
    )
    seal = path.with_suffix(".sha256")
    if path.is_file() and seal.is_file():
        try:
            content, sealed = read_regular(path), read_regular(seal, 4096)
        except OSError as error:
            raise DataError(
                f"the cache {path} cannot be read ({error.strerror}): delete it"
            ) from error
        if hashlib.sha256(content).hexdigest() != sealed.decode("ascii", errors="replace").strip():
            raise DataError(
                f"the cache {path} does not match its SHA-256: delete it, it will be made anew"
            )
        try:
            return load(content)
        except (
            SafetensorError,
            ValueError,
            KeyError,
            TypeError,
            RuntimeError,
            OverflowError,
        ) as error:
            raise DataError(
                f"the cache {path} is not a safetensors file ({error}): delete it"
            ) from error
    arrays = {key: np.ascontiguousarray(value) for key, value in parse().items()}
    content = save(arrays)
    try:
        write_atomically(path, content)
        write_atomically(seal, (hashlib.sha256(content).hexdigest() + "\n").encode())
    except OSError:
        pass  # a read-only data folder is no reason to fail: the arrays are here
    return arrays
