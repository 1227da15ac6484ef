"""Targets that misbehave on purpose: the fuzzer must notice each."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from random import Random
from typing import Any

from sheafdeq.fuzzing.targets import Target

__all__ = ["BROKEN"]


def _unpickles(random: Random, folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return eval, ("1 + 1",)

    pickle.loads(pickle.dumps(Evil()))


def _trusts_sizes(random: Random, folder: Path) -> None:
    bytearray(b"\1") * (8 * 2**30)


def _crashes(random: Random, folder: Path) -> None:
    import faulthandler

    faulthandler._sigsegv()  # type: ignore[attr-defined]


def _writes_outside(random: Random, folder: Path) -> None:
    with contextlib.suppress(Exception):
        (folder.parent / "outside").write_text("here")


def _unnamed(random: Random, folder: Path) -> None:
    if random.random() < 0.5:
        raise KeyError("seed")


def _hangs(random: Random, folder: Path) -> None:
    while True:
        pass


BROKEN: dict[str, Target] = {
    "broken-unpickles": _unpickles,
    "broken-sizes": _trusts_sizes,
    "broken-crashes": _crashes,
    "broken-writes": _writes_outside,
    "broken-unnamed": _unnamed,
    "broken-hangs": _hangs,
}
"""Deliberately broken loaders, each with one fault the fuzzer must find; never part of a campaign
of its own."""
