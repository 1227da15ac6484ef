"""What all calls into the extension share: functions by scalar type, layouts, padding and checks of
shapes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops.native_module import native_module, native_serves
from sheafdeq.plain_tensor import plain_tensor

__all__ = [
    "Native",
    "check_tensors",
    "cut",
    "dense",
    "make_layout",
    "native",
    "native_layout",
    "pad",
    "serves",
]

LARGEST_NATIVE_STALK = 16
POOLED_BYTES = 4 << 20
"""Tensors from this size on lie in memory that the extension keeps from one pass to the next. The C
library maps them anew every time, and the system then takes longer to clear their pages than some
passes take; smaller ones it keeps and hands out again."""


def serves(tensor: Tensor, d: int, edges: Edges | None = None) -> bool:
    """Whether the native kernel takes tensors like this one, with stalks of dimension d, here and
    now. It knows no shares of edges."""
    if edges is not None and edges.share is not None:
        return False
    return d <= LARGEST_NATIVE_STALK and native_serves(tensor)


def native_layout(edges: Edges) -> Any:
    """The compiled counterpart of edges, which owns a checked copy of them; kept with them."""
    return edges.kept("native", lambda: _layout(edges))


def _layout(edges: Edges) -> Any:
    return make_layout(
        edges.source, edges.pointer, edges.weight.detach(), edges.degree.detach(), edges.num_sources
    )


def make_layout(
    source: Tensor, pointer: Tensor, weight: Tensor, degree: Tensor, num_sources: int
) -> Any:
    """A compiled layout, which owns a checked copy of its arguments."""
    module = native_module()
    if module is None:
        raise InputError("the native kernel is not built")
    return module.Layout(
        source.contiguous(),
        pointer.contiguous(),
        weight.double().contiguous(),
        degree.double().contiguous(),
        num_sources,
    )


class Native:
    """The native functions of one scalar type by name, with the padding they need."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.module = dtype, native_module()
        self.suffix = "float" if dtype == torch.float32 else "double"

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.module, f"{name}_{self.suffix}")
        setattr(self, name, function)  # found once
        return function

    def padded(self, width: int) -> int:
        """The next multiple of the vector length of the instruction set in use."""
        lanes: int = self.lanes()
        return -(-width // lanes) * lanes

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor; a large matrix lies in memory that is used again."""
        if len(shape) == 2 and shape[0] * shape[1] * self.dtype.itemsize >= POOLED_BYTES:
            tensor: Tensor = self.large(*shape)
            return tensor
        return torch.empty(shape, dtype=self.dtype)

    def contiguous(self, tensor: Tensor) -> Tensor:
        """``tensor`` itself, or a copy whose rows lie one after the other."""
        return tensor if tensor.is_contiguous() else self.empty(*tensor.shape).copy_(tensor)

    def edge_table(self, edge_hidden: Tensor | None, h: int) -> Tensor | None:
        """(e, 2h) rows, both halves padded."""
        return None if edge_hidden is None else pad(edge_hidden, 2, self.padded(h))


@cache
def native(dtype: torch.dtype) -> Native:
    """The native functions of a scalar type."""
    return Native(dtype)


def dense(tensor: Tensor) -> Tensor:
    """Detached, plain and contiguous: what native code may read."""
    return plain_tensor(tensor.detach(), "an argument of the kernel").contiguous()


def pad(tensor: Tensor, parts: int, width: int) -> Tensor:
    """Every one of ``parts`` equal parts of the rows padded with zeros to ``width``; rows
    contiguous, detached."""
    tensor = tensor.detach()
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
    return functional.pad(tensor.reshape(-1, parts, part), (0, width - part)).view(
        -1, parts * width
    )


def cut(tensor: Tensor, parts: int, width: int) -> Tensor:
    """The inverse of :func:`pad` for a gradient."""
    part = tensor.shape[-1] // parts
    if part == width:
        return tensor
    return tensor.reshape(-1, parts, part)[..., :width].reshape(-1, parts * width)


def check_tensors(like: Tensor, *expected: tuple[str, Tensor | None, tuple[int, ...]]) -> None:
    """Raise unless every named tensor has its shape, and the dtype and device of ``like``."""
    for name, tensor, shape in expected:
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise InputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != like.dtype or tensor.device != like.device:
            raise InputError(
                f"{name} is {tensor.dtype} on {tensor.device}, the others {like.dtype} on "
                f"{like.device}: convert one"
            )
