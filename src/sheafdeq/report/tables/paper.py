"""The paper's figures, as they are printed there."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from sheafdeq.errors import InputError

__all__ = [
    "PAPER_SEEDS",
    "paper_numbers",
]


PAPER_SEEDS = (42, 43, 44, 45, 46)


@cache
def paper_numbers(name: str) -> dict[str, Any]:
    """The paper's figures: ``community``, ``distributed``, ``parameters`` or ``staleness``."""
    path = resources.files("sheafdeq.report") / "paper" / f"{name}.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result
    except FileNotFoundError as error:
        raise InputError(f"the paper has no table {name!r}") from error
