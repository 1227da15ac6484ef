"""Plain tensors at the door.

Everything behind :meth:`~sheafdeq.data.graph.Graph.build` and in front of the native kernel is an
ordinary dense tensor. A subclass may keep its numbers elsewhere (PyG's ``EdgeIndex`` and ``Index``
wrap another tensor and have no memory of their own), and a *view* may keep a sign elsewhere:
``z.conj().imag`` shares memory with ``z.imag`` and carries a bit that says "negate when read".
Native code reads memory, so it would crash on the first and read the wrong sign from the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sheafdeq.errors import InputError

__all__ = ["plain_tensor"]


def plain_tensor(value: Any, name: str) -> Tensor:
    """``value`` as an ordinary dense :class:`torch.Tensor` with the same numbers and the same
    gradient.

    A plain tensor is returned as it is. ``nn.Parameter``, ``nn.Buffer`` and other subclasses
    without storage of their own become plain aliases; PyG's ``Index`` and ``EdgeIndex`` give the
    tensor they hold; lazy negation and conjugation are carried out. What has no single dense tensor
    of numbers inside (sparse, nested, masked, quantised, distributed, uninitialised, meta and fake
    tensors) is an :class:`~sheafdeq.errors.InputError` that names it.
    """
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a torch tensor, got {type(value).__name__}")
    if torch.compiler.is_compiling():  # a stand-in without numbers, and no native code behind it
        return value
    if type(value) is not Tensor:
        value = _without_subclass(value, name)
    if value.is_nested or value.layout is not torch.strided or value.is_quantized:
        kind = (
            "nested"
            if value.is_nested
            else "quantised"
            if value.is_quantized
            else str(value.layout)
        )
        raise InputError(
            f"{name} is a {kind} tensor: give a dense one (for example value.to_dense())"
        )
    if value.device.type == "meta":
        raise InputError(
            f"{name} is on the meta device and holds no numbers: give a tensor with data"
        )
    if value.is_conj():
        value = value.resolve_conj()
    result: Tensor = value.resolve_neg() if value.is_neg() else value
    return result


def _without_subclass(value: Tensor, name: str) -> Tensor:
    kind = type(value)
    if torch.nn.parameter.is_lazy(value):
        raise InputError(f"{name} is a {kind.__name__} without a shape yet: initialise it first")
    held = getattr(value, "as_tensor", None)  # torch_geometric.Index and EdgeIndex
    if callable(held):
        inner = held()
        if isinstance(inner, Tensor) and type(inner) is not kind:
            return inner if type(inner) is Tensor else _without_subclass(inner, name)
    # A subclass that answers torch's dispatcher itself has no memory that could be read; any other
    # is memory with a label.
    own_dispatch = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if own_dispatch and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise InputError(
            f"{name} is a {kind.__name__}, which is not one dense tensor of numbers: "
            "convert it to a plain torch.Tensor"
        )
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(Tensor)
