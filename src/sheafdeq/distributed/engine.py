"""Where workers live: the one interface between the driver and a way of running them."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

import sheafdeq
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.part import Part
from sheafdeq.errors import WorkerError

__all__ = [
    "Engine",
    "PartSource",
    "check_versions",
    "failure",
    "loaded",
    "versions",
]

PartSource = Part | str | Path
"""A part, or the file that holds it (then only its worker reads it)."""


class Engine(Protocol):
    """Starts one worker for each part, carries messages, and notices deaths.

    ``hear`` reports ``("died", {})`` once for every worker that is lost; ``revive`` starts another
    in its place, which has the part and the model but no state.
    """

    name: str
    count: int
    lossy: bool  # whether a revived worker needs its neighbours to write again

    def start(self) -> None:
        """Start all workers; each says ``hello`` with the versions it runs."""

    def connect(self, sizes: Sequence[dict[str, Any]], width: int, dtype: str) -> None:
        """Set up the letter boxes for states of this width; called again only when it changes."""

    def tell(self, part: int, message: Message) -> None:
        """Send a command; a worker that is dead is reported by :meth:`hear`, not here."""

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """Reports that arrive within so many seconds (at once if there are any)."""

    def revive(self, part: int) -> None:
        """Start a worker in the place of a dead one."""

    def kill(self, part: int) -> None:
        """End a worker without warning (for tests and demonstrations)."""

    def stop(self) -> None:
        """End all workers and give everything back."""


def loaded(source: PartSource) -> Part:
    """The part itself."""
    return source if isinstance(source, Part) else Part.load(source)


def versions() -> dict[str, str]:
    """What must agree between driver and workers for their numbers to be comparable."""
    return {
        "sheafdeq": sheafdeq.__version__,
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def check_versions(part: int, found: dict[str, str]) -> None:
    """:class:`WorkerError` when a worker runs something else than the driver."""
    for name, wanted in versions().items():
        if found.get(name) != wanted:
            raise WorkerError(
                f"the worker of part {part} runs {name} {found.get(name, 'of no known version')}, "
                f"the driver {wanted}: "
                "install the same version on every machine"
            )


def failure(part: int, error: BaseException) -> Message:
    """The report of a worker that cannot go on."""
    return Message("failed", {"part": part, "type": type(error).__name__, "text": str(error)})
