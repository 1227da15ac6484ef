"""May a certificate be issued at all? Two questions that come before every rule.

* Is everything finite: parameters, features, what ``prepare`` made of them, and one step? A bound
  of infinity or NaN bounds nothing, and most theorems say nothing about a map that is not defined.
  (:func:`not_finite`)
* Is this the map the theorem is about? A rule is written for one class. It holds for a subclass
  only if that overrides nothing the proof uses, and for an object only if nothing was put in front
  of its methods. (:class:`Scope`)

Both answer with None, or with the reason why nothing is certified, which names the parameter, field
or method.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["FREE", "Scope", "not_finite"]

FREE = frozenset(
    {
        "adjoint",
        "check",
        "closed_form",
        "distance",
        "edge_input",
        "every_positive_start",
        "extra_repr",
        "forward",
        "get_extra_state",
        "guaranteed_rate",
        "initial_state",
        "num_parameters",
        "operator",
        "project",
        "readout",
        "reset_parameters",
        "run",
        "set_extra_state",
        "solve",
        "solve_staged",
        "solver",
        "steps",
        "stochastic_training",
    }
)
"""What a subclass may override under every rule: how the map is started, solved, trained and read,
never the map itself."""
DUNDERS = frozenset(
    {
        "__call__",
        "__copy__",
        "__deepcopy__",
        "__delattr__",
        "__getattr__",
        "__getattribute__",
        "__getstate__",
        "__reduce__",
        "__reduce_ex__",
        "__setattr__",
        "__setstate__",
    }
)
"""The special names that can change what another method computes; the others (``__init__``,
``__doc__``, ...) cannot."""


# ---------------------------------------------------------------------- finite


def not_finite(model: EquilibriumModel, graph: Graph, context: Any = None) -> str | None:
    """The first thing that is not finite, in words; None when the model, the context and one step
    are.

    Without a context (``prepare`` failed) only the model and the features are looked at.
    """
    for name, value in _numbers(model, graph, context):
        if isinstance(value, Tensor):
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return f"{name} is not finite ({_where(value)})"
        elif not math.isfinite(value):
            return f"{name} is {value}"
    if context is None:
        return None
    with torch.no_grad():
        start = model.initial_state(context)
        image = model.step(start, context)
    for name, state in (("the default start", start), ("one step from the default start", image)):
        if not bool(torch.isfinite(state).all()):
            return f"{name} is not finite ({_where(state)})"
    return None


def _numbers(
    model: EquilibriumModel, graph: Graph, context: Any
) -> Iterator[tuple[str, Tensor | float]]:
    """Everything the step is computed from, with its name: the earliest in the chain of computation
    first."""
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter.detach()
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer
    for name, value in vars(model).items():
        if isinstance(value, float) and name != "norm_order":  # the maximum norm has order infinity
            yield f"option {name}", value
    yield "node features x", graph.x
    if graph.edge_attr is not None:
        yield "edge features edge_attr", graph.edge_attr
    yield from _tensors(context, "context")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a context: dataclass fields, tuples, lists and mappings, however deep."""
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from _tensors(getattr(value, entry.name), f"{name}.{entry.name}")
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _tensors(entry, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        for number, entry in enumerate(value):
            yield from _tensors(entry, f"{name}[{number}]")


def _where(values: Tensor) -> str:
    bad = ~torch.isfinite(values)
    first = bad.nonzero()[0].tolist()
    index = ", ".join(map(str, first))
    return (
        f"{float(values[tuple(first)])} at [{index}]; {int(bad.sum())} of {values.numel()} entries"
    )


# ---------------------------------------------------------------------- the class the proof is
# about


@dataclass(frozen=True, eq=False)
class Scope:
    """What a rule may be applied to.

    ``kind`` is the class the proof was written for. The proof is taken to use *every* attribute of
    that class (and every name its code mentions) but those in :data:`FREE` and ``free``: forgetting
    to declare something costs a refusal, never a false proof. ``modules`` are the exact types of
    submodules the proof knows (None: a rule of one's own, which answers for its submodules);
    ``condition`` may object for further reasons.
    """

    kind: type
    free: frozenset[str] = frozenset()
    modules: frozenset[type] | None = None
    condition: Callable[[Any], str | None] | None = None
    # as they were when the rule was registered
    attributes: dict[str, object] = field(default_factory=dict)
    mentioned: frozenset[str] = frozenset()

    @staticmethod
    def of(
        kind: type,
        free: Iterable[str] = (),
        modules: Iterable[type] | None = None,
        condition: Callable[[Any], str | None] | None = None,
    ) -> Scope:
        """The scope of a rule for ``kind``, its attributes remembered as they are now."""
        attributes = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
        mentioned: set[str] = set(DUNDERS)
        for base in kind.__mro__:
            if base not in (nn.Module, object):
                for value in vars(base).values():
                    mentioned |= _names(value)
        return Scope(
            kind,
            frozenset(free),
            None if modules is None else frozenset(modules),
            condition,
            attributes,
            frozenset(mentioned),
        )

    def objection(self, model: nn.Module) -> str | None:
        """Why the rule does not speak of this object; None when it does."""
        return (
            self._of_class(type(model))
            or self._of_object(model)
            or (self.condition(model) if self.condition else None)
        )

    def _used(self, name: str) -> bool:
        if name.startswith("__") and name.endswith("__"):
            return name in DUNDERS
        return name not in FREE and name not in self.free

    def _of_class(self, kind: type) -> str | None:
        ours, written_for = set(self.kind.__mro__), self.kind.__name__
        for level in kind.__mro__:
            for name, value in vars(level).items():
                if not self._used(name):
                    continue
                if level not in ours:
                    if name in self.attributes or name in self.mentioned:
                        return (
                            f"{level.__name__} overrides {name!r}, which the proof for "
                            f"{written_for} uses"
                        )
                elif level is _owner(self.kind, name) and self.attributes.get(name) is not value:
                    return (
                        f"{name!r} of {level.__name__} was replaced after the rule for "
                        f"{written_for} was registered"
                    )
        return None

    def _of_object(self, model: nn.Module) -> str | None:
        for name in vars(model):
            static = self.attributes.get(name)
            if self._used(name) and (callable(static) or hasattr(static, "__get__")):
                return (
                    f"{name!r} was replaced on this object, and the proof for "
                    f"{self.kind.__name__} uses the method of the class"
                )
        if self.modules is None:
            return None
        for name, module in model.named_modules():
            if not name:
                continue
            if type(module) not in self.modules:
                return (
                    f"submodule {name!r} is a {type(module).__qualname__}, which the proof "
                    f"for {self.kind.__name__} does not know"
                )
            if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
                return (
                    f"submodule {name!r} has a hook or a replaced forward, which the proof "
                    "does not know"
                )
        for name, parameter in model.named_parameters():
            if type(parameter) is not nn.Parameter:
                return (
                    f"parameter {name!r} is a {type(parameter).__qualname__}, which may "
                    "compute differently from a tensor"
                )
        return None


def _owner(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _names(value: Any) -> set[str]:
    """Every name the code of a function, property, static or class method mentions."""
    functions = [value, getattr(value, "__func__", None), getattr(value, "__wrapped__", None)]
    functions += [getattr(value, part, None) for part in ("fget", "fset", "fdel", "func")]
    codes = [
        code
        for function in functions
        if isinstance(code := getattr(function, "__code__", None), CodeType)
    ]
    found: set[str] = set()
    while codes:
        code = codes.pop()
        found |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found
