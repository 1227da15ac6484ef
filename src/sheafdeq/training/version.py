"""The code version that enters a run's id: the digest of the code behind it
(:mod:`sheafdeq.identity`), or a label in its place.

``SHEAFDEQ_CODE_VERSION`` replaces the digest in the id (to continue a long sweep across an edit
known to be harmless); the record keeps the true digest beside it.
"""

from __future__ import annotations

import os

__all__ = ["CODE_VERSION_VARIABLE", "code_version"]

CODE_VERSION_VARIABLE = "SHEAFDEQ_CODE_VERSION"


def code_version(digest: str) -> str:
    """The version that enters the run id: the pinned label if there is one, else the digest."""
    return os.environ.get(CODE_VERSION_VARIABLE) or digest
