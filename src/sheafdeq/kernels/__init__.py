"""Fused kernels: native C++ where it is built, the same functions in plain PyTorch everywhere
else."""

from sheafdeq.kernels.edge_step import (
    Layers,
    StepOptions,
    StepWeights,
    Tables,
    sheaf_propagate,
    sheaf_propagate_reference,
    sheaf_step,
    sheaf_step_reference,
)
from sheafdeq.kernels.layout import EdgeLayout
from sheafdeq.kernels.native_module import native_available, native_description, use_kernel

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
