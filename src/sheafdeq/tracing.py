"""What ``torch.compile`` and ``torch.export`` see of a model.

A solve is a loop whose length depends on numbers, with checks and statuses around it; a compiler
that traced all of it would compile every one of its steps.

* ``torch.compile(model)``: the loop stays Python, one step is the compiled cell
  (:func:`compiled_cells`, :func:`cell`). Statuses, stopping and checks are the plain model's.
* ``torch.export.export(model, ...)``: a fixed number of plain steps is written out, without checks
  and without a status. Whatever decides by numbers (stopping at a tolerance, Anderson's memory,
  closed forms) is an :class:`~sheafdeq.errors.ExportError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from sheafdeq.ops.native_module import use_kernel

__all__ = ["cell", "compiled_cells", "exporting"]

_compiled: ContextVar[bool] = ContextVar("sheafdeq_compiled_cells", default=False)


def exporting() -> bool:
    """Whether ``torch.export`` is tracing."""
    found: Callable[[], bool] | None = getattr(torch.compiler, "is_exporting", None)
    return found is not None and found()


@contextmanager
def compiled_cells() -> Iterator[None]:
    """Inside, every loop compiles the map it iterates, in PyTorch's own operations."""
    token = _compiled.set(True)
    try:
        with use_kernel("reference"):
            yield
    finally:
        _compiled.reset(token)


def cell(function: Callable[[Tensor], Tensor], state: Tensor) -> Callable[[Tensor], Tensor]:
    """The map a loop calls: compiled inside :func:`compiled_cells`."""
    if not _compiled.get():
        return function
    with torch.no_grad():
        function(state)  # derives what edges keep, which a compiler cannot trace
    compiled: Any = torch.compile(function, dynamic=False)

    def called(state: Tensor) -> Tensor:
        # only the first state of a recorded loop carries no gradient: not worth a graph of its own
        recorded = torch.is_grad_enabled() and not state.requires_grad
        result: Tensor = function(state) if recorded else compiled(state)
        return result

    return called
