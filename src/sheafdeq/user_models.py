"""Models from outside the package: by entry point, or by ``package.module:Class``.

An installed package offers models under names of its own in the entry point group
``sheafdeq.models``:

    [project.entry-points."sheafdeq.models"]
    my-model = "my_package.models:MyModel"

Any other class is named by where it is, ``my_models:MyModel``. To build it is to run code, which a
record, a checkpoint or a configuration must not be able to ask for: such a name is only followed
when the user has named it (``train --model``, ``sheafdeq --user-model``, :func:`use_model`, or the
variable ``SHEAFDEQ_MODELS``, a list with commas that worker processes inherit).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from importlib import metadata

from sheafdeq.equilibrium import GraphModel
from sheafdeq.errors import OptionError

__all__ = ["GROUP", "VARIABLE", "installed_names", "use_model", "user_class"]

GROUP = "sheafdeq.models"
VARIABLE = "SHEAFDEQ_MODELS"
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def installed_names() -> list[str]:
    """Names in the entry point group, none of them loaded."""
    return sorted({point.name for point in metadata.entry_points(group=GROUP)})


def use_model(place: str) -> str:
    """Allow ``package.module:Class`` to be imported, here and in worker processes; returns it.

    The folder the program was started in counts when the module is not installed.
    """
    if not _PLACE.fullmatch(place):
        raise OptionError(
            f"a model of your own is named package.module:Class, for example my_models:MyModel, "
            f"got {place[:200]!r}"
        )
    named = _named()
    if place not in named:
        os.environ[VARIABLE] = ",".join([*named, place])
    if not _found(place.partition(":")[0]):
        here = os.getcwd()
        sys.path.append(here)
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = here if not inherited else f"{inherited}{os.pathsep}{here}"
    return place


def user_class(name: str) -> type[GraphModel] | None:
    """The class behind a name; None when it is neither an entry point nor a place.

    :class:`OptionError` when it may not be imported, cannot be, or is no model.
    """
    points = [point for point in metadata.entry_points(group=GROUP) if point.name == name]
    if points:
        place = points[0].value
    elif _PLACE.fullmatch(name):
        place = name
        if name not in _named():
            raise OptionError(
                f"the model {name} is code outside this package: name it yourself with "
                f"`sheafdeq --user-model {name} COMMAND ...`, use_model({name!r}), or the "
                f"variable {VARIABLE}"
            )
    else:
        return None
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute.split(" ")[0], None)
    except Exception as error:  # a user's module may fail in any way
        raise OptionError(
            f"model {name}: importing {module} ended in {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, GraphModel)):
        what = "nothing of that name" if found is None else "not a model"
        raise OptionError(
            f"model {name}: {place} is {what}; it must be a subclass of EquilibriumModel or "
            "ExplicitModel (docs/adding_a_model.md)"
        )
    return found


def _named() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def _found(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
