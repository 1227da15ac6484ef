"""A model called from inside a compiled region. In a module of its own because the decorator loads
the compiler, which takes longer than the rest of this package and is seldom wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sheafdeq.tracing import compiled_cells

__all__ = ["with_compiled_step"]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def with_compiled_step(model: Callable[..., Any], tensors: tuple[Any, ...], **options: Any) -> Any:
    """The plain model: its loop compiles the step alone."""
    with compiled_cells():
        return model(*tensors, **options)
