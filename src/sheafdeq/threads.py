"""How many threads torch and the native kernel may use.

torch takes any number and the process then dies where the system refuses a thread (a segmentation
fault at 100,000), so numbers are checked here first.
"""

from __future__ import annotations

from typing import Any

import torch

from sheafdeq.errors import InputError

__all__ = ["MOST_THREADS", "checked_threads", "set_threads", "thread_count"]

MOST_THREADS = 1024
"""More than any machine this runs on has; the native kernel refuses more, too."""


def checked_threads(count: Any) -> int:
    """``count`` if it is an integer from 1 to :data:`MOST_THREADS`, else an
    :class:`~sheafdeq.errors.InputError`."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_THREADS:
        raise InputError(
            f"threads must be an integer from 1 to {MOST_THREADS}, got {count!r}: "
            "give the number of cores to use"
        )
    return count


def set_threads(count: Any) -> None:
    """``torch.set_num_threads`` with a checked number."""
    torch.set_num_threads(checked_threads(count))


def thread_count() -> int:
    """``torch.get_num_threads()``, checked: somebody else may have set it."""
    return checked_threads(torch.get_num_threads())
