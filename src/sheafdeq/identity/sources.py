"""Modules as sources: where they are, which statements they hold, and what a name in them means.

Followed are this package and a user's own modules: those that are not in the standard library, not
installed, and those that define an object somebody asks about, installed or not.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sheafdeq.errors import InputError

__all__ = [
    "PACKAGE",
    "Definition",
    "External",
    "Meaning",
    "Module",
    "NativeSources",
    "Sources",
    "WholeModule",
]

PACKAGE = "sheafdeq"
LIBRARIES = frozenset({"numpy", "pydantic", "safetensors", "scipy", "torch", "torch_geometric"})
"""Never followed, wherever they are installed."""

NATIVE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"})


@dataclass(frozen=True)
class Definition:
    """The ``index``-th statement of a module."""

    module: str
    index: int


@dataclass(frozen=True)
class WholeModule:
    """A module as a value: everything it holds."""

    name: str


@dataclass(frozen=True)
class NativeSources:
    """The C++ sources of a package, behind its compiled extension."""

    package: str


@dataclass(frozen=True)
class External:
    """Something of a library, by its dotted name."""

    name: str


Meaning = Definition | WholeModule | NativeSources | External


@dataclass(frozen=True)
class _Imported:
    """``from module import attribute``, or the module itself."""

    module: str
    attribute: str | None


@dataclass
class Module:
    """A parsed module."""

    name: str
    is_package: bool
    statements: list[ast.stmt]
    bindings: dict[str, list[int | _Imported]] = field(
        default_factory=dict
    )  # name -> statements that bind it, or imports
    effects: list[int] = field(
        default_factory=list
    )  # statements that act when the module is imported

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module an import statement names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*base, node.module] if node.module else base)

    def imports(self, tree: ast.AST) -> Iterator[tuple[str, _Imported]]:
        """(name bound, what it stands for) of every import in a tree; ``*`` is the name of a star
        import."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        yield alias.asname, _Imported(alias.name, None)
                    else:
                        yield alias.name.split(".")[0], _Imported(alias.name.split(".")[0], None)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    yield alias.asname or alias.name, _Imported(self.absolute(node), alias.name)

    def imported_modules(self) -> set[str]:
        """Names of modules that may be loaded when this one is imported (some may turn out to be
        other things)."""
        found: set[str] = set()
        for node in (node for statement in self.statements for node in ast.walk(statement)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(self.absolute(node))
                found.update(f"{self.absolute(node)}.{alias.name}" for alias in node.names)
        return found


class Sources:
    """The modules of this process, or of the folders in ``locations`` (top-level name -> folder or
    file).

    ``asked`` names top-level modules to follow although they are installed.
    """

    def __init__(
        self, locations: dict[str, Path] | None = None, asked: frozenset[str] = frozenset()
    ) -> None:
        self.locations = dict(locations or {})
        self.asked = asked
        self.stamps: dict[
            Path, tuple[int, int]
        ] = {}  # what was read: path -> (time of change, size)
        self._modules: dict[str, Module | None] = {}
        self._followed: dict[str, bool] = {}

    def unchanged(self) -> bool:
        """Whether every file is as it was when it was read."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())

    # ------------------------------------------------------------------ where

    def follows(self, name: str) -> bool:
        """Whether a module's sources count."""
        top = name.partition(".")[0]
        if top not in self._followed:
            self._followed[top] = top not in LIBRARIES | sys.stdlib_module_names and (
                top == PACKAGE
                or top in self.locations
                or top in self.asked
                or _is_users(self._top(top))
            )
        return self._followed[top]

    def _top(self, top: str) -> list[Path]:
        """File or folders of a top-level module; empty when it has no sources."""
        if top in self.locations:
            return [self.locations[top]]
        loaded = sys.modules.get(top)
        spec = getattr(loaded, "__spec__", None)
        if spec is None and loaded is not None:  # __main__, or a module made by hand
            file = getattr(loaded, "__file__", None)
            return [Path(file)] if file else []
        if spec is None:
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError):
                return []
        if spec is None:
            return []
        if spec.submodule_search_locations is not None:
            return [Path(folder) for folder in spec.submodule_search_locations]
        return [Path(spec.origin)] if spec.has_location and spec.origin else []

    def path(self, name: str) -> Path | None:
        """The source file of a followed module."""
        top, *parts = name.split(".")
        for place in self._top(top):
            if place.suffix == ".py":
                if not parts and place.is_file():
                    return place
                continue
            for path in (
                place.joinpath(*parts, "__init__.py"),
                place.joinpath(*parts).with_suffix(".py") if parts else None,
            ):
                if path is not None and path.is_file():
                    return path
        loaded = getattr(sys.modules.get(name), "__file__", None)  # loaded from a place of its own
        return (
            Path(loaded)
            if loaded and top not in self.locations and Path(loaded).suffix == ".py"
            else None
        )

    def native_files(self, package: str) -> list[Path]:
        """C++ sources anywhere in a package."""
        return [
            path
            for place in self._top(package)
            for path in sorted(place.rglob("*"))
            if path.suffix in NATIVE_SUFFIXES
        ]

    # ------------------------------------------------------------------ what is there

    def module(self, name: str) -> Module | None:
        """A followed module, parsed; None when there is no such source."""
        if name not in self._modules:
            path = self.path(name)
            self._modules[name] = None if path is None else self._parse(name, path)
        return self._modules[name]

    def read(self, path: Path) -> str:
        """The text of a source file, remembered for :meth:`unchanged`."""
        self.stamps[path] = _stamp(path)
        return path.read_text(encoding="utf-8")

    def _parse(self, name: str, path: Path) -> Module:
        try:
            tree = ast.parse(self.read(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(
                f"{path}: not readable Python source, so no result can be named by it: {error}"
            ) from error
        module = Module(name, path.name == "__init__.py", tree.body)
        for index, statement in enumerate(tree.body):
            if not isinstance(statement, _OWN_SCOPE):
                for bound, target in module.imports(statement):
                    module.bindings.setdefault(bound, []).append(target)
            for bound in _stored(statement):
                module.bindings.setdefault(bound, []).append(index)
            if _acts(statement):
                module.effects.append(index)
        return module

    # ------------------------------------------------------------------ what a name means

    def meanings(
        self, module: Module, name: str, local: dict[str, list[_Imported]] | None = None
    ) -> list[Meaning]:
        """What a name stands for in a module (imports inside a definition are ``local``); empty for
        builtins."""
        found: list[Meaning] = []
        for binding in [*(local or {}).get(name, []), *module.bindings.get(name, [])]:
            meant = (
                Definition(module.name, binding)
                if isinstance(binding, int)
                else self.imported(binding)
            )
            if meant not in found:
                found.append(meant)
        if not found:
            for binding in module.bindings.get("*", []):
                if isinstance(binding, _Imported) and self.follows(binding.module):
                    source = self.module(binding.module)
                    found += self.meanings(source, name) if source is not None else []
        return found

    def imported(self, target: _Imported) -> Meaning:
        """What an import brings."""
        name = target.module if target.attribute is None else f"{target.module}.{target.attribute}"
        if not self.follows(name):
            return External(name)
        if target.attribute is None:
            return WholeModule(name)
        return self.member(target.module, target.attribute)

    def member(self, module_name: str, attribute: str) -> Meaning:
        """What ``module.attribute`` stands for, through re-exports, sub-modules, extensions and
        module ``__getattr__``."""
        module = self.module(module_name)
        if module is not None and (found := self.meanings(module, attribute)):
            return found[0] if len(found) == 1 else WholeModule(module_name)
        name = f"{module_name}.{attribute}"
        if self.module(name) is not None or self._is_namespace(name):
            return WholeModule(name)
        if module is None or "__getattr__" not in module.bindings:
            # Not in the sources: the extension of a package with native sources (built here or
            # not), or something made at run time.
            top = name.partition(".")[0]
            native = module is None or (module.is_package and self.native_files(top))
            return NativeSources(top) if native else WholeModule(module_name)
        try:
            value = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError):
            return WholeModule(module_name)
        return self.object(value) or WholeModule(module_name)

    def _is_namespace(self, name: str) -> bool:
        top, *parts = name.split(".")
        return any(place.joinpath(*parts).is_dir() for place in self._top(top) if place.is_dir())

    def object(self, value: Any) -> Meaning | None:
        """The definition of a class or function; External for a library's, None where no source can
        be found."""
        module_name, qualified = (
            getattr(value, "__module__", None),
            getattr(value, "__qualname__", None),
        )
        if not isinstance(module_name, str) or not isinstance(qualified, str):
            return None
        if not self.follows(module_name):
            return External(f"{module_name}.{qualified}")
        module = self.module(module_name)
        statements = (
            module.bindings.get(qualified.partition(".")[0], []) if module is not None else []
        )
        indices = [index for index in statements if isinstance(index, int)]
        return Definition(module_name, indices[-1]) if indices else None


_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _stored(statement: ast.stmt) -> list[str]:
    """Names a statement binds in its module."""
    if isinstance(statement, _OWN_SCOPE):
        return [statement.name]
    found: list[str] = []
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _OWN_SCOPE):
            found.append(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.append(node.name)
        waiting += ast.iter_child_nodes(node)
    return list(dict.fromkeys(found))


def _acts(statement: ast.stmt) -> bool:
    """Whether importing the module does more by this statement than bind names: calls, and changes
    of other objects."""
    if isinstance(statement, ast.If) and ast.unparse(statement.test).startswith(
        ("__name__", "TYPE_CHECKING", "typing.")
    ):
        return False
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _OWN_SCOPE):
            continue
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
        waiting += ast.iter_child_nodes(node)
    return False


def _is_users(places: list[Path]) -> bool:
    """Sources that are neither the standard library's nor installed."""
    return bool(places) and all(
        not any(root in place.resolve().parents for root in _installed_roots()) for place in places
    )


@cache
def _installed_roots() -> frozenset[Path]:
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    folders += [
        entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")
    ]
    scripts = {
        sysconfig.get_path(name) for name in ("scripts", "data", "include")
    }  # "data" may be the root of everything
    return frozenset(Path(folder).resolve() for folder in folders if folder not in scripts)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except OSError:
        return (0, -1)
    return (facts.st_mtime_ns, facts.st_size)
