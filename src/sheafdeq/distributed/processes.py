"""Workers as processes of this machine: the default engine, nothing to install.

Workers are started by Python's fork server, which has imported the package once, so a worker that
was killed is back within a fraction of a second. Everything they share is anonymous (sockets,
pipes, memory without a name): when the driver is killed, its sockets close, the workers see that
and end, and nothing is left on the machine. The model goes to a worker pickled, over the private
pipe of its own parent; all later traffic is raw tensors and JSON.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any

import torch
from typing_extensions import Unpack

from sheafdeq.distributed.engine import PartSource, failure, versions
from sheafdeq.distributed.mail import Faults, FaultyMail, Mail
from sheafdeq.distributed.message import Message, MessageStream
from sheafdeq.distributed.part import Part
from sheafdeq.distributed.slots import Board, SlotMail, board_size
from sheafdeq.distributed.worker import Worker
from sheafdeq.distributed.workers import WorkerOptions, Workers
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["Processes"]

IDLE_SECONDS = 0.005
"""A worker without work looks up at least this often; the bell wakes it earlier."""


class _Descriptor:
    """A file descriptor that survives the way to a child process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)


def _received(handle: Any) -> _Descriptor:
    return _Descriptor(handle.detach())


def anonymous_file(content: bytes = b"") -> int:
    """A descriptor of a file that has no name and vanishes with its last user."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("sheafdeq")
    else:
        with tempfile.TemporaryFile() as stream:
            descriptor = os.dup(stream.fileno())
    with open(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    return descriptor


class Processes(Workers):
    """One process for each part."""

    name = "local"

    def __init__(
        self,
        parts: Sequence[PartSource],
        model: EquilibriumModel,
        *,
        method: str | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(parts, **options)
        self.model = pickle.dumps(model)
        available = multiprocessing.get_all_start_methods()
        self.context: Any = multiprocessing.get_context(
            method or ("forkserver" if "forkserver" in available else "spawn")
        )
        if self.context.get_start_method() == "forkserver":
            self.context.set_forkserver_preload([__name__])
        self.part_files = [_opened(part) for part in parts]
        self.board = anonymous_file()
        self.bells = [os.pipe() for _ in range(self.count)]
        for pair in self.bells:
            for end in pair:
                os.set_blocking(end, False)
        self.processes: list[Any] = [None] * self.count
        self.channels: list[MessageStream | None] = [None] * self.count
        self.selector = selectors.DefaultSelector()
        self.layout: dict[str, Any] | None = None
        self.backlog: list[tuple[int, Message]] = []

    def start(self) -> None:
        """Start every worker."""
        for number in range(self.count):
            self.revive(number)

    def connect(self, sizes: Sequence[dict[str, Any]], width: int, dtype: str) -> None:
        """Make the board as large as it must be and tell everyone where the slots are."""
        os.ftruncate(self.board, 0)
        os.ftruncate(self.board, max(board_size(sizes, width, dtype), 1))
        self.layout = {"sizes": list(sizes), "width": width, "dtype": dtype}
        for number in range(self.count):
            self.tell(number, Message("board", self.layout))

    def revive(self, part: int) -> None:
        """Start the worker of a part, with the boxes of its predecessor."""
        ours, theirs = socket.socketpair()
        arguments = (
            part,
            theirs,
            _Descriptor(self.part_files[part]),
            _Descriptor(self.board),
            _Descriptor(self.bells[part][0]),
            {
                number: _Descriptor(self.bells[number][1])
                for number in range(self.count)
                if number != part
            },
            self.model,
            self.threads,
            self.faults.to_json(),
        )
        process = self.context.Process(
            target=_main, args=arguments, name=f"part-{part}", daemon=True
        )
        process.start()
        theirs.close()
        self.processes[part] = process
        channel = self.channels[part] = MessageStream(ours)
        self.selector.register(ours, selectors.EVENT_READ, part)
        if self.layout is not None:
            channel.send(Message("board", self.layout))

    def tell(self, part: int, message: Message) -> None:
        """Send; the death of the receiver is noticed when reading."""
        channel = self.channels[part]
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send(message)

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """Whatever arrived on any channel."""
        reports: list[tuple[int, Message]] = []
        for key, _ in self.selector.select(seconds):
            part: int = key.data
            channel = self.channels[part]
            assert channel is not None
            try:
                reports += [(part, message) for message in channel.receive()]
            except EOFError:
                reports += [(part, message) for message in channel.complete()]
                self._bury(part)
                reports.append((part, Message("died")))
        return reports

    def _bury(self, part: int) -> None:
        channel, process = self.channels[part], self.processes[part]
        assert channel is not None
        self.selector.unregister(channel.connection)
        channel.close()
        self.channels[part] = None
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
        self.processes[part] = None

    def kill(self, part: int) -> None:
        """SIGKILL."""
        process = self.processes[part]
        if process is not None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)

    def pids(self) -> list[int | None]:
        """Process numbers, for whoever wants to watch or kill them."""
        return [None if process is None else process.pid for process in self.processes]

    def stop(self) -> None:
        """Close the channels; workers end when they see it."""
        for part in range(self.count):
            if self.channels[part] is not None:
                self.tell(part, Message("quit"))
        for part in range(self.count):
            if self.channels[part] is not None:
                self._bury(part)
        self.selector.close()
        for descriptor in (
            *self.part_files,
            self.board,
            *(end for pair in self.bells for end in pair),
        ):
            os.close(descriptor)
        self.part_files, self.bells = [], []


def _opened(source: PartSource) -> int:
    if isinstance(source, Part):
        return anonymous_file(source.to_bytes())
    return os.open(source, os.O_RDONLY)


# ---------------------------------------------------------------------- in the worker's process


def _main(
    part: int,
    connection: socket.socket,
    part_file: _Descriptor,
    board: _Descriptor,
    bell: _Descriptor,
    bells: Mapping[int, _Descriptor],
    model: bytes,
    threads: int,
    faults: dict[str, Any],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides
    torch.set_num_threads(threads)
    channel = MessageStream(connection)
    try:
        with open(part_file.number, "rb") as stream:
            stream.seek(0)
            held = Part.from_bytes(stream.read(), f"part {part}")
        host = _Host(
            part,
            channel,
            held,
            pickle.loads(model),
            board.number,
            bell.number,
            bells,
            Faults(**faults),
        )
        channel.send(Message("hello", versions()))
        host.serve()
    except (EOFError, BrokenPipeError, ConnectionError):
        pass  # the driver is gone: so are we
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.send(failure(part, error))
            time.sleep(0.05)
    os._exit(0)  # threads and exit handlers of a forked process are not ours to run


class _Host:
    """The loop around one worker."""

    def __init__(
        self,
        number: int,
        channel: MessageStream,
        part: Part,
        model: EquilibriumModel,
        board: int,
        bell: int,
        bells: Mapping[int, _Descriptor],
        faults: Faults,
    ) -> None:
        self.number, self.channel, self.part, self.model = number, channel, part, model
        self.board, self.bell, self.faults = board, bell, faults
        self.bells = {number: descriptor.number for number, descriptor in bells.items()}
        self.worker: Worker | None = None
        self.mail = _NoMail()

    def serve(self) -> None:
        worker = Worker(self.part, self.model, self.mail)
        while True:
            self._wait(0.0 if worker.busy else IDLE_SECONDS)
            for command in self.channel.receive():
                if command.kind == "quit":
                    return
                if command.kind == "board":
                    worker.mail = self._mail(command)
                else:
                    worker.tell(command)
            for report in worker.turn():
                self.channel.send(report)

    def _wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self.channel.fileno(), self.bell], [], [], seconds)
        if self.bell in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.bell, 1 << 16)

    def _mail(self, command: Message) -> Mail:
        fields = command.fields
        sizes = [
            {**size, "readers": {int(k): v for k, v in size["readers"].items()}}
            for size in fields["sizes"]
        ]
        board = Board(self.board, sizes, fields["width"], fields["dtype"])
        mail: Mail = SlotMail(board, self.number, self.bells)
        return mail if self.faults.none else FaultyMail(mail, self.faults, self.number)


class _NoMail:
    """Before the width of the state is known there are no boxes."""

    lossy = False

    def send(self, *letter: Any) -> None:
        """Nobody can be written to yet."""
        raise RuntimeError("a letter before the boxes were made")

    def newest(self, *what: Any) -> None:
        """Nothing has come."""

    def keep(self, *states: Any) -> None:
        """Nothing is kept."""

    def kept(self) -> None:
        """Nothing was kept."""

    def tick(self) -> None:
        """Nothing is under way."""
