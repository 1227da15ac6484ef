"""Fused kernels: native C++ where it is built, the same functions in plain PyTorch everywhere
else."""

from sheafdeq.ops.layout import EdgeLayout
from sheafdeq.ops.native_module import native_available, native_description, use_kernel
from sheafdeq.ops.sheaf_step import (
    Layers,
    StepOptions,
    StepWeights,
    Tables,
    sheaf_propagate,
    sheaf_propagate_reference,
    sheaf_step,
    sheaf_step_reference,
)

__all__ = [
    "EdgeLayout",
    "Layers",
    "StepOptions",
    "StepWeights",
    "Tables",
    "native_available",
    "native_description",
    "sheaf_propagate",
    "sheaf_propagate_reference",
    "sheaf_step",
    "sheaf_step_reference",
    "use_kernel",
]
