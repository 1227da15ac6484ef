"""Operations on edges: native C++ where it is built, the same functions in plain PyTorch everywhere
else."""

from __future__ import annotations

from sheafdeq.ops.native_module import native_available, native_description, use_kernel
from sheafdeq.ops.sheaf_propagate import (
    Layers,
    Tables,
    sheaf_propagate,
    sheaf_propagate_reference,
)
from sheafdeq.ops.sheaf_step import (
    PackedWeights,
    StepOptions,
    StepWeights,
    sheaf_step,
    sheaf_step_reference,
)
from sheafdeq.ops.sparse import aggregate, correlate

__all__ = [
    "Layers",
    "PackedWeights",
    "StepOptions",
    "StepWeights",
    "Tables",
    "aggregate",
    "correlate",
    "native_available",
    "native_description",
    "sheaf_propagate",
    "sheaf_propagate_reference",
    "sheaf_step",
    "sheaf_step_reference",
    "use_kernel",
]
