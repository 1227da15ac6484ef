"""What the records of studies share: who was examined on what, and the check on reading.

A schema here is a ``TypedDict``: type checkers see its fields, and :func:`checked` holds a payload
against them when it is read. Further keys are allowed, so records of later versions stay readable;
keys that records of earlier versions lack are marked ``NotRequired``.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from sheafdeq.errors import RecordError

__all__ = ["Spread", "StudiedModel", "StudiedTask", "StudyRecord", "checked"]

Schema = TypeVar("Schema")


class Spread(TypedDict):
    """Over several runs."""

    median: float
    min: float
    max: float


class StudiedModel(TypedDict):
    """Which model."""

    name: str
    title: str
    options: dict[str, Any]


class StudiedTask(TypedDict):
    """Which task, and what its score is called."""

    name: str
    title: str
    level: int | None
    score: str


class StudyRecord(TypedDict):
    """A trained run on one graph or split."""

    schema: str
    command: str
    model: StudiedModel
    run: str
    seed: int
    task: StudiedTask
    graph: str
    nodes: int
    edges: int
    dtype: str
    label: NotRequired[str]
    protocol: NotRequired[str]


@cache
def _adapter(schema: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, schema))


def checked(payload: Any, schema: type[Schema], source: str) -> Schema:
    """The payload as it is, once it fits the schema; :class:`RecordError` names what does not."""
    try:
        _adapter(cast(Hashable, schema)).validate_python(payload)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise RecordError(
            f"{source}: not a record of its schema: {where}: {first['msg']}"
        ) from error
    return cast(Schema, payload)
