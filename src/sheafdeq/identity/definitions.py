"""The graph of definitions and its digests.

A node is a definition in normal form; an edge, labelled with a name, leads to what the name means.
A digest covers everything reachable:

    digest(d) = H(normal form of d, sorted (label, digest of the target)).

Definitions that refer to each other are a strongly connected component C. Inside it the digests are
refined |C| times from the normal forms and the edges that leave C (Moore's partition refinement),
so two members get one digest only if nothing reachable from them tells them apart. The digest of a
definition does not depend on what else is in the graph.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sheafdeq.identity.normal_form import canonical, free_names, native_normal_form, normalise
from sheafdeq.identity.sources import (
    PACKAGE,
    Definition,
    External,
    Meaning,
    Module,
    NativeSources,
    Sources,
    WholeModule,
)

__all__ = ["STANDS_FOR_ITSELF", "Definitions"]

STANDS_FOR_ITSELF = frozenset(
    {
        "build_model", "model_spec", "MODELS",  # the chosen model is a role
        "load_task", "entries",  # the chosen task is a role
        "rule_for", "registered_rule",  # the chosen rule is a role
    }
)  # fmt: skip
"""Definitions of this package that count by their name alone.

So do classes named ``...Config`` (their values are in the run's id), and errors and warnings.
"""

_ERRORS = ("Error", "Exception", "Warning")
_VALUES = "Config"


@dataclass(frozen=True)
class _Effects:
    """What importing a module does."""

    module: str


_Key = Meaning | _Effects


@dataclass(frozen=True)
class _Node:
    text: str
    edges: tuple[tuple[str, _Key], ...]


class Definitions:
    """Digests of definitions in given sources."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._nodes: dict[_Key, _Node] = {}
        self._digests: dict[_Key, str] = {}

    def digest(self, meaning: Meaning) -> str:
        """SHA-256 of a definition and everything it reaches."""
        if meaning not in self._digests:
            for component in self._components(meaning):
                self._settle(component)
        return self._digests[meaning]

    def reached(self, meanings: Iterable[Meaning]) -> set[_Key]:
        """Everything the meanings depend on, themselves included."""
        found: set[_Key] = set()
        waiting: list[_Key] = list(meanings)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting += [target for _, target in self._node(key).edges]
        return found

    # ------------------------------------------------------------------ nodes

    def _node(self, key: _Key) -> _Node:
        if key not in self._nodes:
            self._nodes[key] = self._make(key)
        return self._nodes[key]

    def _make(self, key: _Key) -> _Node:
        if isinstance(key, External):
            return _Node(f"external {key.name}", ())
        if isinstance(key, NativeSources):
            return _Node(self._native(key.package), ())
        module = self.sources.module(key.name if isinstance(key, WholeModule) else key.module)
        if module is None:  # a namespace: what its sub-modules hold is named where it is used
            return _Node("namespace", ())
        if isinstance(key, WholeModule):
            edges = (
                (name, meant)
                for name in module.bindings
                for meant in self.sources.meanings(module, name)
            )
            return _Node(
                "module", (*(edge for edge in edges if edge[1] != key), *self._effects_of(module))
            )
        if isinstance(key, _Effects):
            texts, edges_of_all = [], []
            for index in module.effects:
                text, edges_of_one = self._read(module, index)
                texts.append(text)
                edges_of_all += edges_of_one
            return _Node("effects " + "\n".join(texts), tuple(dict.fromkeys(edges_of_all)))
        statement = module.statements[key.index]
        if module.name.partition(".")[0] == PACKAGE and self._stands_for_itself(module, statement):
            return _Node(
                f"named {getattr(statement, 'name', None) or ast.unparse(_target(statement))}", ()
            )
        text, edges_of_definition = self._read(module, key.index)
        return _Node(text, (*edges_of_definition, *self._effects_of(module)))

    def _native(self, package: str) -> str:
        texts = []
        for path in self.sources.native_files(package):
            self.sources.read(path)
            texts.append(hashlib.sha256(native_normal_form(path).encode()).hexdigest())
        return "native " + " ".join(sorted(texts))

    def _effects_of(self, module: Module) -> list[tuple[str, _Key]]:
        """What importing this module does, and importing the user's modules it imports."""
        found: list[tuple[str, _Key]] = []
        seen, waiting = {module.name}, [module]
        while waiting:
            present = waiting.pop()
            if present.effects:
                found.append(("", _Effects(present.name)))
            if present.name.partition(".")[0] == PACKAGE:
                continue  # importing a module of the package has no effect others need (a test)
            for name in sorted(present.imported_modules() - seen):
                seen.add(name)
                if name.partition(".")[0] != PACKAGE and self.sources.follows(name):
                    inner = self.sources.module(name)
                    waiting += [inner] if inner is not None else []
        return found

    def _stands_for_itself(self, module: Module, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.ClassDef) and statement.bases:
            base = statement.bases[0]
            if isinstance(base, ast.Name) and base.id.endswith(_ERRORS):
                return True
            if statement.name.endswith(_VALUES):
                return True
        name = getattr(statement, "name", None) or getattr(_target(statement), "id", None)
        return name in STANDS_FOR_ITSELF

    def _read(self, module: Module, index: int) -> tuple[str, list[tuple[str, _Key]]]:
        """Normal form and edges of one statement."""
        statement = copy.deepcopy(module.statements[index])
        local: dict[str, list[Any]] = {}
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for bound, target in module.imports(statement):
                local.setdefault(bound, []).append(target)
        through = _ThroughModules(self.sources, module, local, statement)
        normal = normalise(statement, through.rewrite)
        if normal is None:
            return "nothing", []
        edges: list[tuple[str, _Key]] = list(through.edges)
        for name in sorted(free_names(normal)):
            if name in through.replaced:
                continue
            meanings = [
                meant
                for meant in self.sources.meanings(module, name, local)
                if meant != Definition(module.name, index)
            ]
            edges += [
                (name if len(meanings) == 1 else f"{name}#{number}", meant)
                for number, meant in enumerate(meanings)
            ]
        return canonical(normal), edges

    # ------------------------------------------------------------------ digests

    def _components(self, root: _Key) -> Iterator[list[_Key]]:
        """Strongly connected components reachable from ``root``, each after those it leads to
        (Tarjan, without recursion)."""
        number: dict[_Key, int] = {root: 0}
        low: dict[_Key, int] = {root: 0}
        stack, on_stack = [root], {root}
        path = [(root, iter(self._node(root).edges))]
        while path:
            key, edges = path[-1]
            for _, target in edges:
                if target in self._digests:
                    continue
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    path.append((target, iter(self._node(target).edges)))
                    break
                if target in on_stack:
                    low[key] = min(low[key], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[key])
                if low[key] == number[key]:
                    component: list[_Key] = []
                    while not component or component[-1] != key:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component

    def _settle(self, component: list[_Key]) -> None:
        present = {key: _hash([self._node(key).text]) for key in component}
        for _ in component:
            present = {
                key: _hash([present[key], *self._targets(key, present)]) for key in component
            }
        self._digests |= present

    def _targets(self, key: _Key, present: dict[_Key, str]) -> list[str]:
        """Labels with the digests of their targets, those inside the component as they are now."""
        edges = self._node(key).edges
        return sorted(f"{label}={self._digests.get(to) or present[to]}" for label, to in edges)


class _ThroughModules:
    """Expressions that name a module: ``module.thing`` becomes ``thing``, a string that names a
    module a constant.

    So a module's own name is not part of the normal form. Where two chains of one statement end in
    the same name, both are left.
    """

    def __init__(
        self, sources: Sources, module: Module, local: dict[str, list[Any]], statement: ast.stmt
    ) -> None:
        self.sources, self.module, self.local = sources, module, local
        self.edges: list[tuple[str, _Key]] = []
        self.replaced: set[str] = set()
        self._meanings: dict[str, Meaning] = {}
        self._ambiguous: set[str] = {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name)
        }
        chains = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute)]
        for node in chains:
            found = self._resolve(node)
            if found is not None and self._meanings.setdefault(node.attr, found) != found:
                self._ambiguous.add(node.attr)

    def rewrite(self, node: ast.expr) -> ast.expr | None:
        """The replacement of an attribute chain or string, or None."""
        if isinstance(node, ast.Constant):
            return self._string(node)
        assert isinstance(node, ast.Attribute)
        found = self._resolve(node)
        if found is None:
            return None
        if node.attr in self._ambiguous:
            self.edges.append((ast.unparse(node), found))
            return None
        self.edges.append((node.attr, found))
        self.replaced.add(node.attr)
        return ast.Name(node.attr, ast.Load())

    def _resolve(self, node: ast.Attribute) -> Meaning | None:
        """What ``a.b.c`` means if ``a.b`` is a followed module and ``c`` something in it."""
        parts = [node.attr]
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            return None
        meanings = self.sources.meanings(self.module, inner.id, self.local)
        if len(meanings) != 1:
            return None
        present = meanings[0]
        for part in reversed(parts):
            if not isinstance(present, WholeModule) or part.startswith("__"):
                return None
            present = self.sources.member(present.name, part)
        return None if isinstance(present, WholeModule) else present

    def _string(self, node: ast.Constant) -> ast.expr | None:
        """A string such as "package.module" that names something followed."""
        text = str(node.value)
        parts = text.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            return None
        if not self.sources.follows(parts[0]):
            return None
        parent = ".".join(parts[:-1])
        meant = self.sources.member(parent, parts[-1])
        if meant == WholeModule(parent):  # no such thing there: a string like any other
            return None
        self.edges.append(("a string that names a module", meant))
        return ast.Constant("module")


def _target(statement: ast.stmt) -> ast.expr:
    if isinstance(statement, ast.Assign):
        return statement.targets[0]
    return statement.target if isinstance(statement, ast.AnnAssign) else ast.Constant(None)


def _hash(parts: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part.encode() + b"\0")
    return hasher.hexdigest()
