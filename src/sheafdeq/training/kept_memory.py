"""Memory that a training process frees stays with the process.

A pass over a large graph frees and asks for the same hundreds of megabytes in every step. By
default the GNU C library returns blocks of some size to the system and gets them back page by page,
each page cleared anew. On MNIST Terrain that was a fifth of a pass of GraphAttnDEQ, and nothing of
one of the Loop Transformer (``results/page_faults.json``, ``benchmarks/page_faults.py``). No score
changes.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _LARGEST_MAPPINGS = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of <malloc.h>
_NEVER = 2**31 - 1  # bytes; the parameter is a C int


def keep_freed_memory() -> bool:
    """Ask the C library to keep what this process frees; whether it could be asked (GNU C library).

    For processes that do nothing but train: what they once needed stays theirs until they end.
    """
    try:
        setting = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, no such library, Windows
        return False
    return bool(setting(_LARGEST_MAPPINGS, 0) and setting(_TRIM_THRESHOLD, _NEVER))
