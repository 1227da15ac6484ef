"""What driver and workers say to each other, as bytes.

A message is a kind, a few plain values and some tensors. On the wire it is a safetensors file (raw
tensors and a JSON header, nothing that could be executed) behind an eight-byte length.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from sheafdeq.errors import WorkerError

__all__ = ["Message", "MessageStream"]

LARGEST = 1 << 40
"""Bytes; a longer length means that the stream is not ours."""


@dataclass(frozen=True, eq=False)
class Message:
    """``kind`` decides which ``fields`` (JSON values) and ``tensors`` there are."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Header and tensors in one piece."""
        metadata = {"kind": self.kind, "fields": json.dumps(self.fields)}
        tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()
        }
        return safetensors.torch.save(tensors, metadata)

    @staticmethod
    def decode(data: bytes) -> Message:
        """The inverse of :meth:`encode`; :class:`WorkerError` for bytes that are not a message."""
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            return Message(
                header["kind"], json.loads(header["fields"]), safetensors.torch.load(data)
            )
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WorkerError(
                f"{len(data)} bytes arrived that are not a message ({error})"
            ) from error


class MessageStream:
    """Messages over a connected stream socket; reading never blocks longer than asked."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = bytearray()

    def fileno(self) -> int:
        """For ``select``."""
        return self.connection.fileno()

    def send(self, message: Message) -> None:
        """Blocks until the whole message is with the operating system; ``OSError`` when nobody
        listens."""
        data = message.encode()
        self.connection.setblocking(True)
        self.connection.sendall(struct.pack("<Q", len(data)))
        self.connection.sendall(data)

    def receive(self) -> list[Message]:
        """All complete messages that are there; ``EOFError`` when the other side is gone."""
        self.connection.setblocking(False)
        try:
            while True:
                piece = self.connection.recv(1 << 20)
                if not piece:
                    raise EOFError
                self.buffer += piece
        except BlockingIOError:
            pass
        except ConnectionError as error:
            raise EOFError from error
        return self.complete()

    def complete(self) -> list[Message]:
        """The messages that have arrived whole."""
        messages = []
        while len(self.buffer) >= 8:
            (length,) = struct.unpack_from("<Q", self.buffer)
            if length > LARGEST:
                raise WorkerError(
                    f"a message of {length} bytes was announced: the stream is damaged"
                )
            if len(self.buffer) < 8 + length:
                break
            messages.append(Message.decode(bytes(self.buffer[8 : 8 + length])))
            del self.buffer[: 8 + length]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.connection.close()
