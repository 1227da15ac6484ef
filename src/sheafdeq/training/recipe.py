"""Recipes: configurations that were tried and measured, by name.

A recipe is a TOML file in ``sheafdeq/training/recipes`` with fields of a
:class:`~sheafdeq.training.config.TrainingConfig`. It is data, not code: what you give besides
(task level, seed, any other field) is laid over it, table by table, and the result is an ordinary
configuration.

    recipe("reliable", {"task": {"level": 5}, "seed": 43})
    sheafdeq train --recipe reliable --task community --level 5 --model sheafdeq
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from sheafdeq.errors import UsageError
from sheafdeq.options import unknown_name
from sheafdeq.regular_file import read_toml
from sheafdeq.training.config import TrainingConfig

__all__ = ["overlaid", "recipe", "recipe_names", "recipe_values", "with_recipe"]


def recipe_names() -> list[str]:
    """Recipes that ship with the package."""
    folder = resources.files("sheafdeq.training") / "recipes"
    return sorted(
        path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml")
    )


def recipe_values(name: str) -> dict[str, Any]:
    """The fields a recipe sets."""
    if name not in recipe_names():
        raise unknown_name("there is no recipe", name, recipe_names())
    with resources.as_file(
        resources.files("sheafdeq.training") / "recipes" / f"{name}.toml"
    ) as path:
        return read_toml(path)


def recipe(name: str, changes: Mapping[str, Any] | None = None) -> TrainingConfig:
    """The configuration of a recipe with some fields replaced."""
    values = with_recipe(name, changes or {})
    return TrainingConfig.parse(values, f"recipe {name!r}")


def with_recipe(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe under ``changes``.

    A recipe is for one task and one model: its options would mean something else, or nothing, with
    others, so naming others is an error.
    """
    values = recipe_values(name)
    for key in ("task", "model"):
        given = changes.get(key)
        wanted = given if isinstance(given, str) else (given or {}).get("name")
        own = values.get(key, {}).get("name")
        if wanted is not None and own is not None and wanted != own:
            raise UsageError(
                f"recipe {name!r} is for the {key} {own!r}, not for {wanted!r}: copy "
                "its file and change it"
            )
    return overlaid(values, changes)


def overlaid(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` over ``values``: tables are merged key by key, everything else is replaced."""
    merged = dict(values)
    for key, change in changes.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(change, str) and key in ("task", "model"):
            change = {"name": change}
        if isinstance(before, Mapping) and isinstance(change, Mapping):
            change = overlaid(before, change)
        merged[key] = change
    return merged
