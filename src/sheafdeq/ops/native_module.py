"""Finding the compiled kernels, and choosing between them and pure PyTorch."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch  # loaded first, so that the extension shares PyTorch's OpenMP runtime
from torch import Tensor
from torch.autograd import forward_ad

from sheafdeq.errors import InputError, KernelWarning

__all__ = [
    "NORM_FLOOR",
    "native_available",
    "native_description",
    "native_module",
    "native_serves",
    "use_kernel",
]

KERNEL_VARIABLE = "SHEAFDEQ_KERNEL"
INTERFACE = 7
"""Of the calls into the extension; an extension built from older sources has another one and is not
used."""
NORM_FLOOR = 1e-12
"""Rows of the state are divided by at least this: a zero row stays zero, positive states never meet
it. A generated map of smaller Frobenius norm counts as zero: it does not propagate and passes no
gradient (all hidden units of an edge can be dead at once; dividing by a floor would then return a
gradient of 1e12). Certificates rely on the number, so an extension with another one is refused."""
_KERNELS = ("native", "reference")
_choice: ContextVar[str | None] = ContextVar("sheafdeq_kernel", default=None)


@cache
def native_module() -> Any | None:
    """The extension module, or None when it was not built or cannot be loaded (then a warning says
    so, once)."""
    try:
        module = importlib.import_module("sheafdeq.ops._native")
        if getattr(module, "interface", 1) != INTERFACE:
            raise ImportError("it was built from other sources than these: build it again")
        if module.norm_floor != NORM_FLOOR:
            raise ImportError(f"its floor is {module.norm_floor}, not {NORM_FLOOR}: build it again")
        return module
    except ImportError as error:
        warnings.warn(
            f"the native kernel is not available ({error}): the pure PyTorch path is used, which "
            "is about twenty times slower on "
            "CPUs. Install a C++17 compiler (GCC 12 or Clang) and reinstall sheafdeq.",
            KernelWarning,
            stacklevel=3,
        )
        return None


def native_available() -> bool:
    """Whether the extension is built and loads on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        return native_module() is not None


def native_description() -> dict[str, Any]:
    """What ``sheafdeq doctor`` prints about the kernel."""
    if not native_available():
        return {"available": False, "kernel": "reference"}
    module = native_module()
    assert module is not None
    return {
        "available": True,
        "kernel": chosen_kernel(),
        "instruction_set": module.instruction_set(),
        "instruction_sets_usable": list(module.instruction_sets()),
        "openmp": module.has_openmp(),
        "threads": torch.get_num_threads() if module.has_openmp() else 1,
        "compiler": module.compiler(),
    }


def chosen_kernel() -> str:
    """``"native"`` or ``"reference"``: by :func:`use_kernel`, else by SHEAFDEQ_KERNEL, else
    native."""
    choice = _choice.get() or os.environ.get(KERNEL_VARIABLE) or "native"
    if choice not in _KERNELS:
        raise InputError(f"{KERNEL_VARIABLE} must be 'native' or 'reference', got {choice!r}")
    return choice


@contextmanager
def use_kernel(name: str) -> Iterator[None]:
    """Use the ``"native"`` or the ``"reference"`` path inside the ``with`` block.

    The reference can be differentiated twice; the native kernel once.
    """
    if name not in _KERNELS:
        raise InputError(f"the kernel must be 'native' or 'reference', got {name!r}")
    if name == "native" and not native_available():
        raise InputError(
            "the native kernel was asked for but is not built: install a C++17 "
            "compiler and reinstall sheafdeq"
        )
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)


def native_serves(tensor: Tensor) -> bool:
    """Whether the native kernel can compute with ``tensor`` here and now.

    It takes float32 and float64 on a CPU. Function transforms, forward-mode differentiation and the
    compiler trace PyTorch operations, so they get the reference.
    """
    return (
        not torch.compiler.is_compiling()  # first: a compiler cannot trace what follows
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and chosen_kernel() == "native"
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and native_module() is not None
    )
