"""Numbers as text a page can hold: quantised to a few levels, differences over time, deflated,
base64."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy
from numpy.typing import NDArray

__all__ = [
    "RESIDUAL_DECADES",
    "RESIDUAL_FLOOR",
    "linear_levels",
    "packed",
    "packed_over_time",
    "residual_levels",
    "unpacked",
]

RESIDUAL_FLOOR = -8
"""log10 of the smallest residual that is told from zero."""
RESIDUAL_DECADES = 9
LEVELS = 64


def residual_levels(values: NDArray[Any]) -> NDArray[numpy.uint8]:
    """0 ... 63 for residuals from 1e-8 to 10, evenly in the logarithm."""
    with numpy.errstate(divide="ignore"):
        power = numpy.log10(numpy.maximum(values, 10.0 ** (RESIDUAL_FLOOR - 1)))
    return linear_levels(power, RESIDUAL_FLOOR, RESIDUAL_FLOOR + RESIDUAL_DECADES)


def linear_levels(
    values: NDArray[Any], low: float, high: float, levels: int = LEVELS
) -> NDArray[numpy.uint8]:
    """0 ... levels - 1 evenly between low and high; what lies outside is drawn at the ends."""
    share = (values - low) / (high - low) if high > low else numpy.zeros_like(values, dtype=float)
    result: NDArray[numpy.uint8] = numpy.clip(
        numpy.rint(share * (levels - 1)), 0, levels - 1
    ).astype(numpy.uint8)
    return result


def packed(values: NDArray[Any]) -> str:
    """Bytes of an array, little-endian, deflated, as base64."""
    data = (
        numpy.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    )
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(squeeze.compress(data) + squeeze.flush()).decode("ascii")


def packed_over_time(values: NDArray[numpy.uint8]) -> str:
    """(f, ...) bytes as differences (modulo 256) to the frame before: what rests costs nothing."""
    changes = values.copy()
    changes[1:] -= values[:-1]  # wraps around, and so does the reader
    return packed(changes)


def unpacked(text: str, dtype: Any = numpy.uint8) -> NDArray[Any]:
    """The flat array of :func:`packed`, for tests."""
    return numpy.frombuffer(zlib.decompress(base64.b64decode(text), -15), dtype=dtype)
