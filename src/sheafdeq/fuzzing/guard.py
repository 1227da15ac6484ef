"""What a case may not do: execute, connect, unpickle, or change files outside its folder.

CPython tells audit hooks of every such act before it happens. The hook refuses it and remembers it,
so that code which swallows the refusal is still found out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["ForbiddenAct", "Guard"]

_FORBIDDEN = {
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "subprocess.Popen",
    "pty.spawn",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "urllib.Request",
    "ctypes.dlopen",
}
_CHANGING = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "shutil.copyfile",
    "shutil.copytree",
    "shutil.move",
    "shutil.rmtree",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenAct(BaseException):
    """A forbidden act; not an ``Exception``, so that ordinary handlers do not catch it."""


class Guard:
    """Watches between :meth:`watching` enter and exit; ``violations`` holds what was refused."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.violations: list[str] = []
        sys.addaudithook(self._hook)  # for the rest of the process

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        """Refuse forbidden acts; files may be changed below ``folder`` only."""
        self.violations = []
        self.folder = folder.resolve()
        try:
            yield
        finally:
            self.folder = None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "ctypes.dlopen" and arguments[:1] == (None,):
            return  # the process itself: nothing is loaded
        if event in _FORBIDDEN:
            self._refuse(f"{event} {arguments[:1]!r}")
        elif event == "exec":
            code = arguments[0]
            name = code.co_filename if isinstance(code, CodeType) else ""
            if name.startswith("<") and "frozen" not in name and not _is_library_machinery():
                self._refuse(f"exec of {name}")
        elif event == "open":
            path, mode, flags = (*arguments, None, None, None)[:3]
            writing = (isinstance(flags, int) and flags & _WRITING) or (
                isinstance(mode, str) and set(mode) & set("wax+")
            )
            if writing and not isinstance(path, int):
                self._check(event, path)
        elif event in _CHANGING:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        where = Path(os.fsdecode(path)).absolute()
        place = where.parent.resolve() / where.name
        if (
            str(place) != os.devnull
            and self.folder is not None
            and self.folder not in (place, *place.parents)
        ):
            self._refuse(f"{event} outside its folder: {place}")

    def _refuse(self, what: str) -> None:
        self.violations.append(what[:300])
        raise ForbiddenAct(what)


_MACHINERY = (
    "dataclasses",
    "collections",
    "typing",
    "torch.fx.graph",
    "pydantic._internal._typing_extra",
)


def _is_library_machinery() -> bool:
    """Whether a library calls ``exec`` or ``eval`` on source of its own or of a module:
    dataclasses, annotations."""
    frame: Any = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            break
        if frame.f_globals.get("__name__") in _MACHINERY:
            return True
        frame = frame.f_back
    return False
