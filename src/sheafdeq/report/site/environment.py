"""Templates, and what may be written into them: every text is escaped, every script is ours."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from sheafdeq.errors import UsageError
from sheafdeq.report.site.words import clip, duration, number, shown

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "POLICY",
    "environment",
    "page_name",
    "script_json",
]


POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: "
    "data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Scripts and styles from this folder alone: markup that slipped through could neither run nor call
anyone."""


def environment() -> Environment:
    """Jinja2 with autoescaping; an undefined name is an error."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:  # pragma: no cover - torch brings Jinja2 along
        raise UsageError("the report needs Jinja2: pip install 'sheafdeq[report]'") from error
    made = Environment(
        loader=PackageLoader("sheafdeq.report.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, duration=duration, shown=shown, clip=clip)
    made.globals["policy"] = POLICY
    return made


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element or file: no character of it can end the element
    or the line."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_name(run: str) -> str:
    """A file name for a run: its own id where that is a digest, else the digest of it."""
    return (
        run
        if re.fullmatch(r"[0-9a-f]{16,64}", run)
        else hashlib.sha256(run.encode("utf-8", "replace")).hexdigest()
    )
