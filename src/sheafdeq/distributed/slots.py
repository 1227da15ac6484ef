"""Letter boxes in shared memory, for processes on one machine.

One anonymous file (no name, so nothing can be left behind) holds a slot for every pair of parts and
kind of letter, and one for the kept state of every part. A slot has two places, written in turn;
each carries its version, its length and a checksum, so a writer that is killed in the middle of a
line, or a reader that comes too early, finds the other place. Nobody ever waits for a lock, so
nobody can die holding one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sheafdeq.distributed.mail import Kind

__all__ = ["Board", "SlotMail", "board_size", "ring"]

_HEAD = struct.Struct("<IIqqqq")  # checksum, tensors, rows, columns, stamp, version
_SEAL = struct.Struct("<qq")  # stamp, version: written last, in one piece
_SEAL_AT = _HEAD.size - _SEAL.size
_PLACE = 64  # bytes of a place's head
_TYPES = {"float32": np.float32, "float64": np.float64}


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


class Board:
    """Where every slot is. ``sizes[p]``: own rows, and rows for every reader, of part p."""

    def __init__(
        self, descriptor: int, sizes: Sequence[Mapping[str, Any]], width: int, dtype: str
    ) -> None:
        self.width, self.dtype = width, np.dtype(_TYPES[dtype])
        # (sender, to, kind) -> offset, bytes of a place
        self.places: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.length = _layout(self.places, sizes, width * self.dtype.itemsize)
        self.memory = mmap.mmap(descriptor, max(self.length, 1))

    def write(
        self, key: tuple[int, int, int], version: int, stamp: int, tensors: Sequence[Tensor]
    ) -> None:
        """Fill the place that is not the newest."""
        offset, size = self.places[key]
        at = offset + (stamp % 2) * size
        data = [np.ascontiguousarray(tensor.detach().numpy()) for tensor in tensors]
        stamp_at = at + _SEAL_AT
        _SEAL.pack_into(self.memory, stamp_at, 0, -1)  # nobody reads while it is being written
        start, check = at + _PLACE, 0
        for array in data:
            view = array.data.cast("B") if array.size else memoryview(b"")
            self.memory[start : start + len(view)] = view
            check = zlib.crc32(view, check)
            start += len(view)
        rows = data[0].shape[0]
        _HEAD.pack_into(self.memory, at, check, len(data), rows, self.width, 0, -1)
        self.memory[stamp_at : stamp_at + _SEAL.size] = _SEAL.pack(stamp, version)

    def read(self, key: tuple[int, int, int]) -> tuple[int, int, list[Tensor]] | None:
        """(version, stamp, tensors) of the newest complete place, or None."""
        offset, size = self.places[key]
        heads = []
        for place in range(2):
            at = offset + place * size
            heads.append((_HEAD.unpack_from(self.memory, at), at))
        for head, at in sorted(heads, key=lambda pair: pair[0][4], reverse=True):
            check, parts, rows, columns, stamp, version = head
            if version < 0 or stamp == 0 or parts not in (1, 2) or columns != self.width:
                continue
            length = rows * columns * self.dtype.itemsize
            if rows < 0 or parts * length > size - _PLACE:
                continue
            data = bytes(self.memory[at + _PLACE : at + _PLACE + parts * length])
            if zlib.crc32(data) != check:
                continue
            array = np.frombuffer(data, dtype=self.dtype).reshape(parts, rows, columns)
            return version, stamp, [torch.from_numpy(array[k].copy()) for k in range(parts)]
        return None

    def peek(self, key: tuple[int, int, int]) -> int:
        """The largest stamp in a slot, without reading the rows."""
        offset, size = self.places[key]
        result: int = max(
            _HEAD.unpack_from(self.memory, offset + place * size)[4] for place in range(2)
        )
        return result


def _layout(
    places: dict[tuple[int, int, int], tuple[int, int]],
    sizes: Sequence[Mapping[str, Any]],
    row: int,
) -> int:
    offset = 0
    for part, size in enumerate(sizes):
        for reader, rows in sorted(size["readers"].items()):
            place = _aligned(_PLACE + rows * row)
            for sender, to, kind in (
                (part, int(reader), Kind.HALO),
                (part, int(reader), Kind.SNAPSHOT),
                (int(reader), part, Kind.GRADIENT),
            ):
                places[sender, to, int(kind)] = (offset, place)
                offset += 2 * place
        place = _aligned(_PLACE + 2 * size["own"] * row)
        places[part, part, -1] = (offset, place)
        offset += 2 * place
    return offset


def board_size(sizes: Sequence[Mapping[str, Any]], width: int, dtype: str) -> int:
    """Bytes of the whole board; untouched pages cost nothing."""
    return _layout({}, sizes, width * np.dtype(_TYPES[dtype]).itemsize)


def ring(bell: int) -> None:
    """Wake whoever sleeps on the other end of a pipe; a full pipe is awake already."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(bell, b"!")


class SlotMail:
    """The box of one part on a :class:`Board`; ``bells`` wake the readers."""

    lossy = False

    def __init__(self, board: Board, part: int, bells: Mapping[int, int]) -> None:
        self.board, self.part, self.bells = board, part, bells
        self.read_stamps: dict[tuple[int, int, int], tuple[int, tuple[int, Tensor]]] = {}
        self.stamps: dict[tuple[int, int, int], int] = {}

    def _next(self, key: tuple[int, int, int]) -> int:
        """Stamps go on from what a predecessor wrote."""
        stamp = self.stamps.get(key)
        if stamp is None:
            stamp = self.board.peek(key)
        self.stamps[key] = stamp + 1
        return stamp + 1

    def send(self, to: int, kind: Kind, version: int, rows: Tensor) -> None:
        """Into the reader's slot, and ring."""
        key = (self.part, to, int(kind))
        self.board.write(key, version, self._next(key), [rows])
        ring(self.bells[to])

    def newest(self, sender: int, kind: Kind) -> tuple[int, Tensor] | None:
        """What the slot holds; unchanged slots are not read again."""
        key = (sender, self.part, int(kind))
        known = self.read_stamps.get(key)
        if known is not None and self.board.peek(key) == known[0]:
            return known[1]
        found = self.board.read(key)
        if found is None:
            return None if known is None else known[1]
        version, stamp, tensors = found
        self.read_stamps[key] = (stamp, (version, tensors[0]))
        return version, tensors[0]

    def keep(self, version: int, *states: Tensor) -> None:
        """Into the own slot."""
        key = (self.part, self.part, -1)
        self.board.write(key, version, self._next(key), states)

    def kept(self) -> tuple[int, list[Tensor]] | None:
        """From the own slot."""
        found = self.board.read((self.part, self.part, -1))
        return None if found is None else (found[0], found[2])

    def tick(self) -> None:
        """Nothing is under way."""
