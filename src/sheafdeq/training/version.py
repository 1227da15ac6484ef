"""Which code computed a run: a digest of the sources that can change its numbers, and of no others.

Starting from the modules that define the model (and its parts), the task and the training loop, the imports inside this package
are followed; what is reached is hashed without comments, docstrings and layout. Editing the documentation, the command line, a
table or another model therefore leaves finished runs valid, while editing a solver does not. Not followed: ``registry`` and the
task catalogue (they only map names to builders, and the options they fill in are part of the configuration).

``SHEAFDEQ_CODE_VERSION`` replaces the digest in the run id (to continue a long sweep across an edit known to be harmless); the
record keeps the true digest beside it.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["CODE_VERSION_VARIABLE", "code_digest", "code_version", "source_closure"]

CODE_VERSION_VARIABLE = "SHEAFDEQ_CODE_VERSION"
PACKAGE = "sheafdeq"
ROOT = Path(__file__).resolve().parents[1]
TRAINING_ROOTS = ("sheafdeq.training.loop", "sheafdeq.training.schedule", "sheafdeq.training.penalty")
NOT_FOLLOWED = frozenset(
    {
        "sheafdeq",
        "sheafdeq.registry",
        "sheafdeq.errors",
        "sheafdeq.records",
        "sheafdeq.data.catalogue",
        "sheafdeq.training",
        "sheafdeq.training.config",
    }
)
NATIVE = "sheafdeq.kernels"


def code_digest(roots: Iterable[str]) -> str:
    """SHA-256 over everything :func:`source_closure` reaches from ``roots`` and the training loop."""
    hasher = hashlib.sha256()
    modules = source_closure(frozenset(roots))
    for name in modules:
        hasher.update(f"\n{name}\n{_normalised(_path_of(name))}".encode())
    if any(name.startswith(NATIVE) for name in modules):
        for path in sorted((ROOT / "kernels" / "native").glob("*")):
            if path.suffix in {".cpp", ".cc", ".h", ".hpp"}:
                hasher.update(f"\n{path.name}\n".encode() + path.read_bytes())
    return hasher.hexdigest()


def code_version(digest: str) -> str:
    """The version that enters the run id: the pinned label if there is one, else the digest."""
    return os.environ.get(CODE_VERSION_VARIABLE) or digest


@cache
def source_closure(roots: frozenset[str]) -> tuple[str, ...]:
    """Names of the package's modules reachable from the roots and the training loop, sorted."""
    reached: set[str] = set()
    waiting = [*roots, *TRAINING_ROOTS]
    while waiting:
        name = waiting.pop()
        if name in reached or name in NOT_FOLLOWED or _path_or_none(name) is None:
            continue
        reached.add(name)
        waiting.extend(_imports(name))
    return tuple(sorted(reached))


def _imports(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(_path_of(name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            # "from package import module" names a module; "from package import thing" names the package.
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                found.add(module if _path_or_none(module) else node.module)
    return found


def _path_or_none(name: str) -> Path | None:
    parts = name.split(".")[1:]
    for path in (ROOT.joinpath(*parts).with_suffix(".py") if parts else None, ROOT.joinpath(*parts, "__init__.py")):
        if path is not None and path.is_file():
            return path
    return None


def _path_of(name: str) -> Path:
    path = _path_or_none(name)
    assert path is not None
    return path


@cache
def _normalised(path: Path) -> str:
    """The source without comments, docstrings and layout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
